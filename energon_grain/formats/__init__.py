"""What lies on disk: tar, .tar.idx, .nv-meta, the columnar index."""
