"""The order of samples as arithmetic: index maps from positions to draws."""
