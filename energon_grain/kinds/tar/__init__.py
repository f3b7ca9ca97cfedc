"""Tars, prepared or bare."""
