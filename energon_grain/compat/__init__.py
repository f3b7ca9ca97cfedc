"""What exists for programs that were written for Megatron-Energon, and would not be here without them."""
