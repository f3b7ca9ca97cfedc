# SPDX-License-Identifier: Apache-2.0
"""Indexed datasets of Megatron-LM. Documents are samples."""
