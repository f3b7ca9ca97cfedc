"""Arrays of zarr and N5. Rows are samples."""
