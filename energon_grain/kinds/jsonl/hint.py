# SPDX-License-Identifier: Apache-2.0
"""What messages say of JSONL files that are not a dataset as they are."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection

from energon_grain.storage.location import is_url, name_of

_UNPACK = {".gz": "gzip -dk", ".zst": "zstd -d", ".bz2": "bzip2 -dk", ".xz": "xz -dk"}
"""Commands that unpack a file and keep it, by its ending."""
_OF_MEDIA = "metadata.jsonl"
"""The file that describes the media files of a folder, as on the Hugging Face Hub: not a dataset by itself."""


def hint_of_lines(location: str, names: Collection[str]) -> str | None:
    """What a folder with JSONL files is, or one that is compressed; None: it is something else."""
    lines = sorted(name for name in names if name.endswith(".jsonl") and name != _OF_MEDIA)
    if not lines:
        return _compressed(location)
    one = f"{location.rstrip('/')}/{lines[0]}"
    return (
        f"holds JSONL files, each of which is a dataset, read as it is: give one, as {one}, or a metadataset that "
        "names them, in a `concat` or a `blend`"
    )


def _compressed(location: str) -> str | None:
    """Of a JSONL file that is compressed, that it is, and the command that unpacks it; None: it is not called so."""
    plain, ending = os.path.splitext(location)
    if ending not in _UNPACK or not plain.endswith((".jsonl", ".ndjson", ".json")):
        return None
    here, copied = (location, "") if not is_url(location) else (name_of(location), "copy it to this machine, and ")
    return (
        f"is compressed as a whole, so that no line of it can be read by itself; {copied}unpack it by "
        f"`{_UNPACK[ending]} {shlex.quote(here)}` into a .jsonl file"
    )
