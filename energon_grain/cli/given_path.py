"""What stands for PATH on a command line."""

from __future__ import annotations

import os

METADATASET_ENDINGS = (".yaml", ".yml")


def is_file_of(location: str, endings: str | tuple[str, ...]) -> bool:
    """Whether a path or URL is meant to be a file with one of these endings. A folder may be called like one."""
    return location.endswith(endings) and not os.path.isdir(location)
