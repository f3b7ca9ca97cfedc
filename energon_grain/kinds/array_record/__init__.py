"""Prepared folders of ArrayRecord files."""
