# SPDX-License-Identifier: Apache-2.0
"""What exists for programs that were written for Megatron-Energon, and would not be here without them."""
