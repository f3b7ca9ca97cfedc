# SPDX-License-Identifier: Apache-2.0
"""Tars without preparation: found, and indexed when they are first opened.

    <base>/.nv-meta/bare/<id>/state.json     the indexed files, and the folder of the index; replaced atomically
    <base>/.nv-meta/bare/<id>/<folder>/      with a `.nv-meta`, as in a prepared dataset
    <base>/.nv-meta/bare/<id>/scan.log       during indexing: the scans of completed shards

For all other code they are a prepared, crude dataset whose `.nv-meta` is in another folder: beside the data if that is
writable, else in the user's cache folder, which is also used for object stores. `<id>` identifies the list of tars,
relative to their base.

Every time they are opened, the tars are listed and every file is checked. If nothing changed, nothing is written.
Otherwise new and changed tars are scanned, the rest is copied from the previous index, and the index gets a new folder:
readers of the old one continue, and it is removed a day after it was replaced. One process at a time does this, on all
machines whose file system has shared locks; the others wait and use the result.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import logging
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from energon_grain.atomic_files import atomic_write_bytes, explaining_writes, is_writable, locked, open_unlinked
from energon_grain.errors import ConfigError, DatasetNotFoundError, EnergonGrainError
from energon_grain.formats.brace_patterns import expand_braces
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.columnar_header import COLUMNS_JSON, columnar_folder, index_cache_folder
from energon_grain.formats.columns import COLUMNS_FOLDER
from energon_grain.formats.data_folder import BARE_FOLDER, DataFolder
from energon_grain.formats.dataset_config import DatasetConfig, write_dataset_config
from energon_grain.formats.local_files import LocalFiles
from energon_grain.formats.nv_meta import META_FOLDER, DatasetInfo, write_info
from energon_grain.formats.scan import ShardScan
from energon_grain.formats.splits import DEFAULT_SPLIT_CONFIG, SplitConfig, write_split_config
from energon_grain.forms import Form, encode_json
from energon_grain.kinds.prepared.leaf import WHOLE_PART
from energon_grain.kinds.tar.tar_list import TarList, ends_like_a_tar, is_pattern, is_tar
from energon_grain.prepare.columnar_build import open_columnar, write_columnar
from energon_grain.prepare.listing import check_shards, find_shards, in_order, list_files
from energon_grain.prepare.scan import PrepareProgress, ScanLog, ScannedDataset, ScannedShard, scan_dataset, shard_tasks
from energon_grain.storage.epath import glob_to_regex
from energon_grain.storage.location import as_joined, is_url, join
from energon_grain.storage.remote import has_lists, mirror_of, remote_files, shared_client
from energon_grain.storage.settings import storage_settings

_STATE, _LOG, _LOCK = "state.json", "scan.log", ".lock"
_VERSION = 1
_FIRST_LOG_S, _LOG_INTERVAL_S = 2.0, 10.0
_KEPT_S = 24 * 3600.0
_logger = logging.getLogger("energon_grain")


class _State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The indexed state.

    Attributes:
        folder: Folder of the index, beside this file.
        shards: The files, in order.
        replaced: Folders of older indices, and the time each was replaced, in seconds since 1970.
    """

    version: int = _VERSION
    folder: Annotated[str, msgspec.Meta(pattern="^g[0-9a-f]+$")]
    shards: tuple[ScannedShard, ...]
    replaced: dict[str, float] = {}


_FORM = Form(_State)


def open_tars(text: str) -> DataFolder:
    """Locate bare tars and their index; create or update the index if necessary.

    Raises:
        DatasetNotFoundError: There are none, or a named one is missing.
        TarError: Some are compressed, damaged or empty.
        ConfigError: The text is invalid, names a tar twice, or no folder for an index is writable.
        StaleIndexError: One changed during the scan.
        ReadError: A store cannot be reached.
    """
    tars = find_tars(text)
    found = [(place, state) for place in tars.places() if (state := _read(place)) is not None]
    for place, state in found:
        if tars.are(state):
            if (place / _LOG).exists():  # of a process that was killed at the very end
                with contextlib.suppress(OSError), _locked(place, text) as alone:
                    _sweep(place, alone=alone)
            return tars.folder(place / state.folder)
    place = next(filter(is_writable, tars.places()), None)
    if place is None:
        raise ConfigError(
            f"{text}: cannot be indexed, because neither {META_FOLDER} beside the tars nor {tars.places()[-1]} is "
            "writable; set XDG_CACHE_HOME to a writable folder, or prepare the tars as a user with write permission"
        )
    with _locked(place, text) as alone:
        state = _read(place)
        if state is None or not tars.are(state):
            old = (place, state) if state is not None else next(iter(found), None)
            state = _index(tars, place, old, alone=alone)
            _sweep(place, alone=alone)
    return tars.folder(place / state.folder)


@dataclass(frozen=True, kw_only=True, slots=True)
class BareTars:
    """Tars that exist."""

    listed: TarList
    names: tuple[str, ...]

    def places(self) -> tuple[Path, ...]:
        """Possible folders of the index, the preferred one first."""
        base = self.listed.base
        named = hashlib.blake2b("\n".join(self.listed.pieces).encode("utf-8", "surrogateescape"), digest_size=8)
        below = Path(BARE_FOLDER, "all" if self.listed.is_folder else named.hexdigest())
        if is_url(base):
            return (mirror_of(base).folder / below,)
        in_cache = index_cache_folder(Path(base)) / below
        return (Path(base, META_FOLDER) / below, in_cache) if self.listed.in_one_folder else (in_cache,)

    def folder(self, local: Path) -> DataFolder:
        """The dataset that an index defines."""
        location = self.listed.base
        bare = DataFolder(location=location, local=local, store=remote_files(storage_settings()), bare=self.listed.text)
        if is_url(location):
            return bare
        return DataFolder(
            location=location, local=local, store=LocalFiles(indexed_by=bare.indexed_by), bare=self.listed.text
        )

    def are(self, state: _State) -> bool:
        names = tuple(shard.name for shard in state.shards)
        return names == self.names and len(self.unchanged(state)) == len(names)

    def unchanged(self, state: _State) -> dict[str, ScannedShard]:
        """The tars that have not changed since they were indexed."""
        names, base = set(self.names), self.listed.base

        def look(shard: ScannedShard) -> bool:
            with contextlib.suppress(FileNotFoundError):
                return shard.name in names and not shard.task.files and shard.holds(base)
            return False

        each = shared_client(storage_settings()).map if is_url(base) else map
        return {shard.name: shard for shard, same in zip(state.shards, each(look, state.shards), strict=True) if same}


def find_tars(text: str) -> BareTars:
    """List the tars that a text names. See `open_tars`."""
    listed = TarList.parse(text)
    names = [name for piece in listed.pieces for name in _find(listed, piece)]
    if len(set(names)) < len(names):
        twice = next(name for name, times in Counter(names).items() if times > 1)
        raise ConfigError(f"{text}: names {twice} twice; to repeat samples, use `repetitions` in a blend")
    if not is_url(listed.base):
        _check_there(listed.base, names)
    return BareTars(listed=listed, names=check_shards(names, None))


def _check_there(base: str, names: Sequence[str]) -> None:
    missing = [name for name in names if not os.path.isfile(os.path.join(base, name))]
    if missing:
        more = f" ({len(missing) - 1} more are missing)" if len(missing) > 1 else ""
        raise DatasetNotFoundError(f"{join(base, missing[0])}: no such file{more}")


def _find(listed: TarList, piece: str) -> Iterator[str]:
    base, where = listed.base, os.path.join(listed.base, piece).rstrip("/")
    if not is_pattern(where):
        if not is_tar(where):
            yield from (f"{piece}/{name}".lstrip("/") for name in find_shards(where))
        else:
            yield as_joined(base, piece)
        return
    for one in expand_braces(piece):
        if not is_pattern(os.path.join(base, one)) and not re.search(r"[*?\[]", one):
            yield as_joined(base, one)
            continue
        found = sorted(filter(ends_like_a_tar, _matches(base, one)), key=in_order)
        if not found:
            raise DatasetNotFoundError(f"{os.path.join(base, one)}: the pattern matches no *.tar file; check it")
        yield from found


def _matches(base: str, pattern: str) -> Iterator[str]:
    if not is_url(base):
        return (name for name in glob.iglob(pattern, root_dir=base, recursive=True) if ".nv-meta/" not in name)
    if not has_lists(base, storage_settings()):
        raise ConfigError(
            f"{os.path.join(base, pattern)}: a web server has no listing for patterns; name the files as "
            "shard-{000..099}.tar, or in a list"
        )
    return filter(re.compile(glob_to_regex(pattern)).fullmatch, list_files(base))


@contextlib.contextmanager
def _locked(place: Path, text: str) -> Generator[bool]:
    """Hold the lock for indexing into a folder, on all machines; yields False if locks are not supported."""
    descriptor = open_unlinked(place / _LOCK)
    try:
        with locked(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) as alone:
            if alone:
                yield True
                return
        _logger.info("%s: waiting for another process that is indexing these tars", text)
        with locked(descriptor) as alone:
            yield alone
    finally:
        os.close(descriptor)


def _read(place: Path) -> _State | None:
    """The state of a folder; None if there is none, or it cannot be used."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        state = _FORM.from_json((place / _STATE).read_bytes())
        if state.version == _VERSION and (place / state.folder).is_dir():
            return state
    return None


_WHEN_FULL = (
    "the index of these tars is in the cache folder, which XDG_CACHE_HOME can move to another disk; "
    "`energon-grain prepare` stores it beside the tars instead"
)
_WHEN_READ_ONLY = "the index of these tars is in the cache folder: set XDG_CACHE_HOME to a writable folder"


def _index(tars: BareTars, place: Path, old: tuple[Path, _State] | None, *, alone: bool) -> _State:
    """Index tars into a locked folder. Without locks (`alone` is False) several processes may do so at once."""
    base = tars.listed.base
    index, known = (None, {}) if old is None else _previous_index(tars, *old)
    new = [name for name in tars.names if name not in known]
    log_path = place / (_LOG if alone else f"scan-{secrets.token_hex(8)}.log")
    folder = f"g{secrets.token_hex(8)}"
    try:
        with (
            explaining_writes(place, full=_WHEN_FULL, read_only=_WHEN_READ_ONLY),
            contextlib.closing(ScanLog(log_path)) as log,
        ):
            scanned = scan_dataset(base, shard_tasks(base, new), log, progress=_ProgressLog(tars.listed.text))
            shards = known | {shard.name: shard for shard in scanned.shards}
            header = write_columnar(columnar_folder(place / folder), tars.names, _scans(tars.names, scanned, index))
            counts = _describe(tars, place / folder, shards)
            scanned.check_unchanged()
        if old is not None:
            _take_columns(columnar_folder(old[0] / old[1].folder), columnar_folder(place / folder))
    except BaseException:
        shutil.rmtree(place / folder, ignore_errors=True)
        raise
    state = _State(folder=folder, shards=tuple(shards[name] for name in tars.names), replaced=_replaced_in(place, old))
    atomic_write_bytes(place / _STATE, encode_json(state))
    if not alone:
        log_path.unlink()
    message = "%s: indexed %d samples in %d tars (content id %s)"
    _logger.info(message, tars.listed.text, sum(counts.values()), len(counts), header.content_id)
    return state


def _previous_index(tars: BareTars, place: Path, state: _State) -> tuple[ColumnarIndex | None, dict[str, ScannedShard]]:
    """The previous index, if it is usable, and the tars that have not changed."""
    index, known = None, dict[str, ScannedShard]()
    with contextlib.suppress(EnergonGrainError):  # a damaged index is ignored
        index = open_columnar(tars.folder(place / state.folder))
        index.check()
        known = tars.unchanged(state)
    _log_changes(tars, state, known)
    return index, known


def _replaced_in(place: Path, old: tuple[Path, _State] | None) -> dict[str, float]:
    """The time each index in a folder was replaced."""
    if old is None or old[0] != place:
        return {}
    return old[1].replaced | {old[1].folder: time.time()}


def _describe(tars: BareTars, folder: Path, shards: Mapping[str, ScannedShard]) -> dict[str, int]:
    """Write the small files of a prepared dataset: crude, with a single split part."""
    counts = {name: shards[name].samples for name in tars.names}
    write_info(folder, DatasetInfo(shard_counts=counts))
    write_dataset_config(folder, DatasetConfig(kind="crude"))
    split = SplitConfig(split_parts={WHOLE_PART: tars.names})
    write_split_config(folder / META_FOLDER / DEFAULT_SPLIT_CONFIG, split)
    return counts


def _log_changes(tars: BareTars, state: _State, known: Mapping[str, ScannedShard]) -> None:
    before, now = {shard.name for shard in state.shards}, set(tars.names)
    _logger.warning(
        "%s: %d tars added, %d removed and %d replaced since the last indexing; scanning %d of %d",
        *(tars.listed.text, len(now - before), len(before - now), len((now & before) - known.keys())),
        *(len(now - known.keys()), len(now)),
    )


def _take_columns(old: Path, new: Path) -> None:
    """Copy measured columns. They record the samples that they belong to, and touched tars often have the same ones."""
    if (old / COLUMNS_JSON).exists():
        shutil.copytree(old / COLUMNS_FOLDER, new / COLUMNS_FOLDER)
        shutil.copy(old / COLUMNS_JSON, new / COLUMNS_JSON)


def _scans(names: tuple[str, ...], scanned: ScannedDataset, index: ColumnarIndex | None) -> Iterator[ShardScan]:
    """The scans of all tars; those not scanned now come from the old index."""
    tasks = {shard.name: shard.task for shard in scanned.shards}
    places = {} if index is None else {name: place for place, name in enumerate(index.shards)}
    for name in names:
        if name in tasks:
            yield scanned.log.scan(tasks[name])
        else:
            assert index is not None
            yield index.scan(places[name])


def _sweep(place: Path, *, alone: bool) -> None:
    """Remove unused files from a locked folder, the log of scans last.

    An index is kept for a day after it was replaced; without locks, every file younger than that is kept.
    """
    state, now = _read(place), time.time()
    assert state is not None
    kept = {state.folder, *(name for name, when in state.replaced.items() if now - when < _KEPT_S)}
    for path in [*place.glob("g*"), *place.glob("scan-*.log"), *place.glob(f".{_STATE}.*.tmp"), place / _LOG]:
        with contextlib.suppress(OSError):
            if path.name not in kept and (alone or now - path.stat().st_mtime > _KEPT_S):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


class _ProgressLog:
    """Logs the progress of long scans."""

    def __init__(self, text: str) -> None:
        self._text, self._next = text, time.monotonic() + _FIRST_LOG_S
        self._first: tuple[float, int] | None = None  # time and number of the first completed shards

    def __call__(self, now: PrepareProgress) -> None:
        seconds = time.monotonic()
        if self._first is None and now.shards_done:
            self._first = seconds, now.shards_done
        if seconds >= self._next and now.shards_done < now.shards_total:
            self._next = seconds + _LOG_INTERVAL_S
            begun_s, before = self._first or (seconds, 0)
            rate = (now.shards_done - before) / max(seconds - begun_s, 0.001)
            left = f", {(now.shards_total - now.shards_done) / rate:,.0f} s left" if rate else ""
            _logger.warning(
                "%s: indexing tars once: %d of %d done, %d samples%s. `energon-grain prepare` does this in advance",
                *(self._text, now.shards_done, now.shards_total, now.samples, left),
            )
