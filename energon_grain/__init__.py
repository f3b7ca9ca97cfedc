"""Exact, elastic and fast data loading for Energon WebDatasets."""
