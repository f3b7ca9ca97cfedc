"""Bring the files of a data set into the page cache, so that a row measures loaders and not the disk."""

from __future__ import annotations

from pathlib import Path


def warm(folder: Path) -> None:
    """Read every file of a folder once, before each measurement: some kernels drop pages that rest for a minute."""
    buffer = bytearray(1 << 22)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
