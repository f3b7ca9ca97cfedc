# SPDX-License-Identifier: Apache-2.0
"""Dataset nodes: small immutable descriptions of data sources and of the operations on them."""
