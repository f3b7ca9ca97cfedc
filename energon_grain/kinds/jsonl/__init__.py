"""JSONL files. Lines are samples."""
