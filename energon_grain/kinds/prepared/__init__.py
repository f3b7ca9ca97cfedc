# SPDX-License-Identifier: Apache-2.0
"""Shared by the kinds of prepared shards: the index of their parts, and the configuration files beside them."""
