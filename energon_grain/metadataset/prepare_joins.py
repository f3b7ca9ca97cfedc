# SPDX-License-Identifier: Apache-2.0
"""Prepare a metadataset: write the indexes of all its joins."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from energon_grain.errors import ConfigError, IndexFileError
from energon_grain.kinds.joins.build import (
    JOIN_MEMORY_BYTES,
    build_join,
    energon_name_of,
    name_of,
    only_datasets,
    write_energon_form,
)
from energon_grain.kinds.joins.index import (
    JoinIndex,
    cache_folder,
    index_file_name,
    join_folder,
    open_join_index,
    writing_joins,
)
from energon_grain.kinds.joins.leaf import JoinedLeafDataset
from energon_grain.kinds.joins.members import JoinMember
from energon_grain.kinds.joins.opening import can_hold_joins, fetch_join, store_joins
from energon_grain.storage.location import absolute, is_url
from energon_grain.words import counted

JoinProgress = Callable[[str, int, int], None]
"""Called with the position of a join, the keys processed in all joins so far, and the total number of keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedJoin:
    """One join of a metadataset.

    Attributes:
        places: Its position; several if splits share it.
        folder: The cache folder with its index.
        name: The digits in the index name.
        rows: Number of rows.
        skipped: Primary samples without a row.
        missing: Rows without a sample of a dataset, by the dataset's path.
        built: False if a valid index already existed.
    """

    places: tuple[str, ...]
    folder: Path
    name: str
    rows: int
    skipped: int
    missing: dict[str, int]
    built: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadatasetReport:
    """The result of preparing a metadataset.

    Attributes:
        path: The metadataset: a path, or a URL as text.
        joins: Its joins, including those of nested metadatasets, in document order.
        removed: Names of removed indexes that no join needs any more.
        notes: Remarks that are not errors.
        elapsed_s: Wall-clock time.
    """

    path: Path | str
    joins: tuple[PreparedJoin, ...]
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    elapsed_s: float


def prepare_joins(
    path: str,
    joins: Sequence[JoinedLeafDataset],
    *,
    progress: JoinProgress | None = None,
    memory_bytes: int = JOIN_MEMORY_BYTES,
) -> MetadatasetReport:
    """Write the indexes of the joins of a metadataset; see `prepare_metadataset`."""
    started = time.monotonic()
    pending = _without_repetitions(joins)
    total = sum(each.keys for each in pending)
    before = 0
    done: list[PreparedJoin] = []
    with contextlib.ExitStack() as stack:
        for folder in dict.fromkeys(each.folder for each in pending):
            stack.enter_context(writing_joins(folder))
        for each in pending:

            def advance(keys: int, _: int, place: str = each.places[0], before: int = before) -> None:
                if progress is not None:
                    progress(place, before + keys, total)

            try:
                done.append(_prepare(each, memory_bytes, advance))
            except ConfigError as error:
                raise ConfigError(f"{each.places[0]}: {error}") from error
            before += each.keys
        own = cache_folder(absolute(path, os.getcwd()))
        removed = _remove_stale(own, {each.name for each in done if each.folder == own})
        notes = tuple(_name_for_energon(pending))
        notes += tuple(_kept_here(pending))
        removed = tuple(dict.fromkeys((*removed, *_store_remote(pending, path))))
    return MetadatasetReport(
        path=path if is_url(path) else Path(path),
        joins=tuple(done),
        removed=removed,
        notes=notes,
        elapsed_s=time.monotonic() - started,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinPlan:
    """A join of a metadataset that gets an index.

    Attributes:
        places: Its position; several if splits share it.
        keys: Number of keys to compare, in all its datasets.
        write: The folder of its index. An existing valid index is kept.
    """

    places: tuple[str, ...]
    keys: int
    write: Path

    def lines(self) -> Iterator[str]:
        """Yield the lines of a description of the plan."""
        yield f"  join    {', '.join(self.places)}: {counted(self.keys, 'key')}"
        yield f"  write   {self.write}, unless a valid index exists"


def plan_joins(joins: Sequence[JoinedLeafDataset]) -> tuple[JoinPlan, ...]:
    """Return what `prepare_joins` will write."""
    return tuple(
        JoinPlan(places=tuple(each.places), keys=each.keys, write=join_folder(each.folder, each.name))
        for each in _without_repetitions(joins)
    )


@dataclass(kw_only=True, slots=True)
class _Pending:
    """A join that needs an index."""

    places: list[str] = field(default_factory=list[str])
    metadataset: str
    folder: Path
    name: str
    keys: int
    inputs: Sequence[JoinMember]
    has_arrays: bool
    energon_name: str | None

    def stored_names(self) -> list[str]:
        """Return the names of its files in its folder."""
        files = (index_file_name(self.name), self.energon_name)
        existing = [name for name in files if name and (self.folder / name).exists()]
        return [join_folder(self.folder, self.name).name, *existing]


def _without_repetitions(joins: Sequence[JoinedLeafDataset]) -> list[_Pending]:
    found: dict[tuple[Path, str], _Pending] = {}
    for join in joins:
        assert join.metadataset is not None  # the join comes from a file
        samples = join.inputs()
        folder, name = cache_folder(join.metadataset), name_of(samples)
        if (folder, name) not in found:
            found[folder, name] = _Pending(
                metadataset=join.metadataset,
                folder=folder,
                name=name,
                keys=sum(each.total for each in samples),
                inputs=samples,
                has_arrays=only_datasets(samples) is None,
                energon_name=energon_name_of(samples),
            )
        if str(join.place) not in found[folder, name].places:
            found[folder, name].places.append(str(join.place))
    return list(found.values())


def _prepare(pending: _Pending, memory_bytes: int, advance: Callable[[int, int], None]) -> PreparedJoin:
    index = _existing(pending)
    built = index is None
    if index is None:
        index = build_join(pending.inputs, pending.folder, progress=advance, memory_bytes=memory_bytes)
    advance(pending.keys, pending.keys)
    header = index.header
    return PreparedJoin(
        places=tuple(pending.places),
        folder=pending.folder,
        name=pending.name,
        rows=header.rows,
        skipped=header.skipped,
        missing={member.path: member.missing for member in header.members if member.missing},
        built=built,
    )


def _store_remote(pending: Sequence[_Pending], path: str) -> list[str]:
    """Copy indexes of metadatasets in object stores next to these. Returns the names of indexes removed there."""
    metadatasets = dict.fromkeys(each.metadataset for each in pending if is_url(each.metadataset))
    if is_url(path):
        metadatasets[path] = None
    removed: list[str] = []
    for metadataset in filter(can_hold_joins, metadatasets):
        cache = cache_folder(metadataset)
        own = [each for each in pending if each.folder == cache]
        names = [name for each in own for name in each.stored_names()]
        removed += store_joins(metadataset, {each.name for each in own}, names, only=metadataset == path)
    return removed


def _kept_here(pending: Sequence[_Pending]) -> list[str]:
    """Return notes about indexes that other machines will not find."""
    return [
        f"{each.places[0]}: a web server is read-only, so the index is only on this machine. Prepare the metadataset "
        f"on the machine that holds its files, and serve {each.metadataset}.cache too"
        for each in pending
        if not can_hold_joins(each.metadataset)
    ]


def _existing(pending: _Pending) -> JoinIndex | None:
    try:
        fetch_join(pending.metadataset, join_folder(pending.folder, pending.name))
        index = open_join_index(join_folder(pending.folder, pending.name))
        index.check()
        index.release()
    except (FileNotFoundError, IndexFileError):
        return None
    file = pending.folder / index_file_name(pending.name)
    datasets = None if file.exists() else only_datasets(pending.inputs)
    if datasets is not None:  # Energon's `prepare` removes files that it did not write
        write_energon_form(file, datasets, index.rows)
    return index


def _remove_stale(cache: Path, wanted: set[str]) -> tuple[str, ...]:
    """Remove joins of this library that are no longer needed, in both forms."""
    removed: list[str] = []
    prefix = join_folder(cache, "").name
    for folder in sorted(cache.glob(f"{prefix}*")):
        name = folder.name.removeprefix(prefix)
        if name in wanted:
            continue
        file = cache / index_file_name(name)
        for other in cache.glob(index_file_name("*")):
            with contextlib.suppress(OSError):
                if other != file and other.samefile(file):  # the same file under Energon's name
                    other.unlink()
        file.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        removed.append(name)
    return tuple(removed)


def _name_for_energon(joins: Sequence[_Pending]) -> list[str]:
    """Link index files under the names that Energon expects, if these are unambiguous. Returns notes on the others."""
    notes = ((join.places[0], _name_one_for_energon(join, joins)) for join in joins)
    return [f"{where}: {note}" for where, note in notes if note]


def _name_one_for_energon(join: _Pending, joins: Sequence[_Pending]) -> str:
    """Return the reason why there is no such name; empty if there is one."""
    if join.has_arrays:
        return "Energon cannot load this join, because it does not support arrays"
    if join.energon_name is None:
        return (
            "Energon cannot load this join: a dataset has no index.uuid, or several excluded samples, for which each "
            "Energon process expects a different name"
        )
    theirs, ours = join.folder / join.energon_name, join.folder / index_file_name(join.name)
    named = {each.places[0]: (each.folder, each.energon_name) for each in joins if each is not join}
    if rivals := [place for place, name in named.items() if name == (join.folder, join.energon_name)]:
        return f"Energon has the same name for this join and for {', '.join(rivals)}, so neither gets it"
    if not theirs.exists():
        _link(ours, theirs)
    elif not (ours.samefile(theirs) or filecmp.cmp(ours, theirs, shallow=False)):
        return (
            f"{theirs}, which Energon would load, has other rows or another order and is kept. To replace it, remove "
            f"it and prepare again"
        )
    return ""


def _link(file: Path, name: Path) -> None:
    try:
        os.link(file, name)
    except OSError:
        temporary = name.with_name(f".tmp_{name.name}")
        shutil.copyfile(file, temporary)
        os.replace(temporary, name)
