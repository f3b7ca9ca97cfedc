"""Files of tables: Parquet, Arrow and MDS. Rows are samples."""
