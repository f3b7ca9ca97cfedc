"""Sample types."""
