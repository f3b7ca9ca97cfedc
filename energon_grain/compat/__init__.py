# SPDX-License-Identifier: Apache-2.0
"""Features for programs that were written for Megatron-Energon."""
