"""What the ending of a path says that it is."""

from __future__ import annotations

import os

from energon_grain.storage.location import is_url

METADATASET_ENDINGS = (".yaml", ".yml")


def is_file_of(location: str, endings: str | tuple[str, ...]) -> bool:
    """Whether a path or URL names a file with one of these endings. A folder may be called like one."""
    return location.endswith(endings) and (is_url(location) or not os.path.isdir(location))
