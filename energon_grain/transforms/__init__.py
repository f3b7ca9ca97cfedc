"""Pure functions of a sample, or of a list of samples: decode, map fields, collate."""
