"""Dataset nodes: small immutable descriptions of what is read and done."""
