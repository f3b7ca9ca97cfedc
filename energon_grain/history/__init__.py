"""Which samples made a step, and samples and batches made again."""
