"""Measuring where the time of loading goes, on the user's own data. `energon-grain bench` is its face."""
