"""One adapter per loader. They run in the interpreters of their loaders (README.md)."""
