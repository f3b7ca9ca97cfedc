"""Bytes by (path, offset, size): local files now, object stores behind the same seam."""
