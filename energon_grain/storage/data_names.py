# SPDX-License-Identifier: Apache-2.0
"""Names of the data files at a path, a folder or a URL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from energon_grain.storage.location import is_url, name_of
from energon_grain.storage.remote import has_lists, shared_client
from energon_grain.storage.settings import storage_settings

GLOB = re.compile(r"[*?\[]")
"""Characters of patterns."""


def names_at(location: str, endings: tuple[str, ...]) -> Iterator[str]:
    """Names of the files with these extensions at a path: the path itself, or files below that folder.

    In a store, the extension of the path decides, or a listing.

    Raises ReadError: a store cannot be reached.
    """
    if location.endswith(endings):
        yield name_of(location)
    elif not is_url(location):
        yield from data_below(location, endings)
    elif not GLOB.search(name_of(location)) and has_lists(location, storage_settings()):
        yield from (name for name in shared_client(storage_settings()).list(location) if is_data(name, endings))


def is_data(name: str, endings: tuple[str, ...]) -> bool:
    """Whether a name below a folder is a data file; hidden files, `_metadata` and `cache-….arrow` are not."""
    steps = name.split("/")
    no_data = any(step.startswith((".", "_")) for step in steps) or steps[-1].startswith("cache-")
    return name.endswith(endings) and not no_data


def data_below(folder: str, endings: tuple[str, ...]) -> Iterator[str]:
    """Names of the data files below a local folder."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        inside = os.path.relpath(root, folder).replace(os.sep, "/")
        names = files if inside == "." else [f"{inside}/{name}" for name in files]
        yield from (name for name in names if is_data(name, endings))
