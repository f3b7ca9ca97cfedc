# SPDX-License-Identifier: Apache-2.0
"""Worker processes: a pool of fresh interpreters, what runs in one, and what goes between processes."""
