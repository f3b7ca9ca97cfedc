"""Sample types and batches."""
