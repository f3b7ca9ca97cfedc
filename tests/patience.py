"""How long tests wait for what takes a moment: it must come on a machine that is ten times slower, too."""

PATIENCE_S = 600.0
