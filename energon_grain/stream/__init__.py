"""Running a dataset: compile, plan, read, encode, lanes, prefetch, cursor, errors and statistics."""
