"""Lane operators: dataset nodes whose output depends on more than a position."""
