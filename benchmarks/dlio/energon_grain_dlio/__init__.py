"""energon-grain as a data loader of dlio_benchmark: `loader.EnergonGrainDataLoader`."""
