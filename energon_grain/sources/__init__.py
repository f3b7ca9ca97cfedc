"""Random-access collections of raw samples, built on formats."""
