# SPDX-License-Identifier: Apache-2.0
"""Recognises folders with `.nv-meta`, and defines the kind of unprepared ones."""

from __future__ import annotations

import os
from os.path import isfile
from pathlib import Path

from energon_grain.formats.commit_journal import finish_interrupted_prepare
from energon_grain.formats.data_folder import mirror_dataset
from energon_grain.formats.nv_meta import INDEX_SQLITE, INFO_JSON, META_FOLDER, is_prepared, loose_files, preparing
from energon_grain.kinds.prepared.file_stores import files_below
from energon_grain.kinds.prepared.leaf import PreparedLeaves
from energon_grain.prepare.containers import containers
from energon_grain.sources.kinds import Kind, Listing
from energon_grain.storage.location import is_url


def local_folder(location: str) -> Path:
    """The local folder with the small files of `.nv-meta`: the folder itself, or a mirror.

    Completes a `prepare` that was killed while it moved its files into place. Raises as `open_folder`.
    """
    if is_url(location):
        return mirror_dataset(location).folder
    finish_interrupted_prepare(Path(location))
    return Path(location)


def _is_plain_folder(at: Listing) -> bool:
    local = at.once(local_folder)
    return not is_prepared(local) and isfile(local / META_FOLDER / INDEX_SQLITE)


def of_plain_folder(path: str) -> str:
    """Advice for a folder with `index.sqlite` but no info file, opened as a dataset."""
    names = os.listdir(path)
    found = next((each for each in containers() if any(map(each.is_shard, names))), None)
    if found is not None:
        return (
            f"{path}: {META_FOLDER}/{INFO_JSON} is missing: its preparation was interrupted, or not all files were "
            f"copied; run `{preparing(path, found.flags)}`"
        )
    return (
        f"{path}: a folder of single files, without shards, can only be an auxiliary store (`aux`); "
        f"{loose_files(path, names) or 'a dataset has tar files'}"
    )


FILESYSTEM = Kind(
    name="filesystem",
    described="a folder of files",
    marked=_is_plain_folder,
    opener=PreparedLeaves(),
    is_configured=True,
    file_store=files_below,
)
"""A folder with only `index.sqlite` in `.nv-meta`. It can only be an auxiliary store."""
