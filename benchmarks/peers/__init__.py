"""One file a peer: how its data set is written and the program that reads it. They run in the peers' interpreter."""
