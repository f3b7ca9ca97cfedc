"""The Grain exposure: data sources, datasets, checkpointable iterators, device placement."""
