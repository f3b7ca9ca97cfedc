"""Local files read in sorted, merged ranges, and the door to object stores."""
