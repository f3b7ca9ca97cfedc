# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's indexed datasets. Documents are samples."""
