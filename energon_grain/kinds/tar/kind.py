# SPDX-License-Identifier: Apache-2.0
"""Tars as kinds of data: prepared, and bare ones, which are indexed when they are first opened."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from energon_grain.formats.commit_journal import PREPARE_FOLDER
from energon_grain.formats.data_folder import BARE_FOLDER, naming
from energon_grain.formats.nv_meta import META_FOLDER, holds_records, is_prepared, names_below
from energon_grain.kinds.prepared.kind import local_folder
from energon_grain.kinds.prepared.leaf import BareLeaves, PreparedLeaves
from energon_grain.kinds.tar.bare_tars import find_tars, open_tars
from energon_grain.kinds.tar.container import Tars
from energon_grain.kinds.tar.source import WebdatasetFileStore, WebDatasetSource
from energon_grain.kinds.tar.tar_list import ends_like_a_tar, lists_tars
from energon_grain.prepare.containers import Shards, open_data
from energon_grain.sources.kinds import Kind, Listing


def _store(location: str) -> WebdatasetFileStore:
    folder = open_data(location)
    with naming(folder):
        return WebdatasetFileStore(folder)


def _is_prepared(at: Listing) -> bool:
    local = at.once(local_folder)
    return is_prepared(local) and not holds_records(local)


def _holds_bare_tars(at: Listing) -> bool:
    """Whether there is a tar below, and no prepared dataset, not even one with missing files."""
    if not at.is_url:
        return at.is_folder and _has_bare_tars(at.location)
    names = names_below(at.location) or ()
    has_meta = any(META_FOLDER in name.split("/") for name in names)
    return not has_meta and any(map(ends_like_a_tar, names))


def _has_bare_tars(folder: str) -> bool:
    seen = set[str]()
    for path, folders, files in os.walk(folder, followlinks=True):
        if META_FOLDER in folders:
            with contextlib.suppress(OSError):
                if set(os.listdir(os.path.join(path, META_FOLDER))) - {BARE_FOLDER, Path(PREPARE_FOLDER).name}:
                    return False
        if any(map(ends_like_a_tar, files)):
            return True
        real = {name: os.path.realpath(os.path.join(path, name)) for name in folders}
        folders[:] = [name for name in folders if name != META_FOLDER and real[name] not in seen]
        seen |= {real[name] for name in folders}
    return False


TARS = Tars()
WEBDATASET = Kind(
    name="webdataset",
    described="a prepared dataset",
    marked=_is_prepared,
    shards=Shards(container=TARS, source=WebDatasetSource),
    opener=PreparedLeaves(),
    is_configured=True,
    hint=TARS.hint,
    store=_store,
)
BARE_TARS = Kind(
    name="bare tars",
    described="a folder or list of unprepared tars",
    endings=(".tar",),
    named=lists_tars,
    holds=_holds_bare_tars,
    files="tars",
    pattern="**/*.tar",
    shards=Shards(container=TARS, source=WebDatasetSource, open_folder=open_tars),
    opener=BareLeaves("tars", find_tars, open_tars),
    has_plain_bytes=True,
    store=_store,
)
