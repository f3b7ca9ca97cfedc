# SPDX-License-Identifier: Apache-2.0
"""Advice in messages about JSONL files that are not a dataset."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection

from energon_grain.storage.location import is_url, name_of

_UNPACK = {".gz": "gzip -dk", ".zst": "zstd -d", ".bz2": "bzip2 -dk", ".xz": "xz -dk"}
"""Commands that unpack a file and keep the original, by ending."""
_OF_MEDIA = "metadata.jsonl"
"""Describes the media files of a folder, as on the Hugging Face Hub. It is not a dataset."""


def hint_for_lines(location: str, names: Collection[str]) -> str | None:
    """Advice for a folder with JSONL files, or for a compressed one; None for anything else."""
    lines = sorted(name for name in names if name.endswith(".jsonl") and name != _OF_MEDIA)
    if not lines:
        return _compressed(location)
    one = f"{location.rstrip('/')}/{lines[0]}"
    return (
        f"contains JSONL files, each of which is a dataset: pass one of them, such as {one}, or a metadataset that "
        "lists them in a `concat` or a `blend`"
    )


def _compressed(location: str) -> str | None:
    """Advice for a compressed JSONL file, with the command that unpacks it; None for other names."""
    plain, ending = os.path.splitext(location)
    if ending not in _UNPACK or not plain.endswith((".jsonl", ".ndjson", ".json")):
        return None
    here, copied = (location, "") if not is_url(location) else (name_of(location), "copy it to this machine, and ")
    return (
        f"is compressed as a whole, so single lines cannot be read; {copied}unpack it with "
        f"`{_UNPACK[ending]} {shlex.quote(here)}` into a .jsonl file"
    )
