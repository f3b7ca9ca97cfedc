# SPDX-License-Identifier: Apache-2.0
"""Object stores, the Hub and the web: requests, retries, the page cache, mirrors. The kernel imports it by name."""
