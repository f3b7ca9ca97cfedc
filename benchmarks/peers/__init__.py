"""One file per peer: how its dataset is written, and the program that reads it. They run in the peers' interpreter."""
