"""Small datasets of every kind, for tests and first steps."""
