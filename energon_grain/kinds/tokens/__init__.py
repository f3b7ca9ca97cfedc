"""Indexed datasets of Megatron-LM. Documents are samples."""
