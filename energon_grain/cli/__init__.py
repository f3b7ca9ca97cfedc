"""The energon-grain command."""
