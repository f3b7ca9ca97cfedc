"""Sample types, batches and their form as JAX pytrees."""
