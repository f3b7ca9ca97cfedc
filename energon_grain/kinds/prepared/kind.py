"""What marks a folder with `.nv-meta`, and the kind of those that are not prepared."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path

from energon_grain.formats.commit_journal import finish_interrupted_prepare
from energon_grain.formats.data_folder import mirror_dataset
from energon_grain.formats.nv_meta import INDEX_SQLITE, META_FOLDER, is_prepared
from energon_grain.kinds.prepared.file_stores import files_below
from energon_grain.kinds.prepared.leaf import PreparedLeaves
from energon_grain.sources.kinds import Kind, Listing
from energon_grain.storage.location import is_url


def local_folder(location: str) -> Path:
    """The folder of this machine that has the small files of `.nv-meta`: the same, or a mirror.

    A `prepare` that was killed while it put its files in place is completed. Raises as `open_folder`.
    """
    if is_url(location):
        return mirror_dataset(location).folder
    finish_interrupted_prepare(Path(location))
    return Path(location)


def _is_plain_folder(at: Listing) -> bool:
    local = at.once(local_folder)
    return not is_prepared(local) and isfile(local / META_FOLDER / INDEX_SQLITE)


FILESYSTEM = Kind(
    name="filesystem",
    described="a folder of files",
    marked=_is_plain_folder,
    opener=PreparedLeaves(),
    is_configured=True,
    file_store=files_below,
)
"""A folder with nothing but `index.sqlite` in `.nv-meta`: it may only be an auxiliary store."""
