"""DLIO (MLPerf Storage) with energon-grain's loader, see README.md."""
