"""Building indices and splits for a folder of tars."""
