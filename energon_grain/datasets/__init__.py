# SPDX-License-Identifier: Apache-2.0
"""Dataset nodes: small immutable descriptions of what is read and done."""
