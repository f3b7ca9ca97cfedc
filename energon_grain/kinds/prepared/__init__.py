# SPDX-License-Identifier: Apache-2.0
"""What the kinds of prepared shards share: an index of their parts, and the configuration beside them."""
