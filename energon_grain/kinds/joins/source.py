# SPDX-License-Identifier: Apache-2.0
"""Random access to the rows of a join: samples with the same key in several datasets, and rows of arrays."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import repeat
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, KeyNotFoundError, StaleIndexError
from energon_grain.formats.columns import COLUMNS_JSON, SIZES, ColumnFolder, KeptColumns, Measured
from energon_grain.formats.index_pages import IndexPages
from energon_grain.kinds.joins.index import JoinHeader, JoinIndex
from energon_grain.samplers.expression import Expression
from energon_grain.sources.remote_runs import ReadInRuns, RemoteExtents, RemoteSource
from energon_grain.sources.rows import Rows, SelectedSource
from energon_grain.sources.source import (
    HasParts,
    PartValue,
    RawBatch,
    ReadsByKeys,
    SampleLocation,
    Source,
    in_pieces,
    in_range,
)
from energon_grain.storage.location import name_of
from energon_grain.storage.remote import RemoteFiles, mirror_of

Int64Array = npt.NDArray[np.int64]
_SEARCHED_AT_ONCE = 1 << 18


class MemberSource(Source, Protocol):
    """A member of a join. An unnamed part, as of an array, takes the name of the member."""

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of its parts."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberBatch:
    """The samples of one dataset or array of a join for a batch of rows.

    Attributes:
        places: The rows of the batch with a sample, ascending.
        samples: Number of each of these samples in the whole dataset, or row of the array.
        batch: The samples, in that order. None if there are none.
    """

    places: Int64Array
    samples: Int64Array
    batch: RawBatch | None

    def nbytes(self) -> int:
        return 0 if self.batch is None else self.batch.nbytes()


class JoinedBatch(RawBatch):
    """Rows of a join. Keys, shards and parts are those of the primary.

    Attributes:
        indices: (n,) index of each row in its source.
        members: Samples of each dataset and array, the primary first.
        names: Prefix of the part names of each member, before a dot; None: the member's parts are left out.
        wanted: The requested parts; None: all. Some kinds of members read more.
    """

    __slots__ = ("members", "names", "wanted")

    def __init__(
        self,
        *,
        indices: Int64Array,
        keys: list[str],
        shards: list[str],
        columns: Mapping[str, Sequence[PartValue | None]],
        orders: Sequence[tuple[str, ...]] | None,
        members: list[MemberBatch],
        names: Sequence[str | None],
        wanted: frozenset[str] | None,
    ) -> None:
        super().__init__(indices=indices, keys=keys, shards=shards, columns=columns, orders=orders)
        self.members, self.names, self.wanted = members, names, wanted

    def _parts_of_each(self) -> list[dict[str, PartValue]]:
        """The parts of each row, with parts of other members named as in `JoinedSource.part_names`."""
        found = super()._parts_of_each()
        for name, member in zip(self.names[1:], self.members[1:], strict=True):
            if name is not None and member.batch is not None:
                for place, parts in zip(member.places.tolist(), member.batch._parts_of_each(), strict=True):
                    found[place].update({_named(name, part): value for part, value in parts.items()})
        if self.wanted is None:
            return found
        return [{part: value for part, value in each.items() if part in self.wanted} for each in found]

    def nbytes(self) -> int:
        """Payload bytes of all parts of all datasets, including rows of arrays."""
        return sum(member.nbytes() for member in self.members)


def _part_names(member: MemberSource) -> tuple[str, ...]:
    """Names of all parts of a member, including those not read."""
    return getattr(member, "all_part_names", member.part_names)


def _named(member: str, part: str) -> str:
    """Name of a member's part or column in the join."""
    return f"{member}.{part}" if part else member


def _check_members(members: Sequence[MemberSource], header: JoinHeader) -> None:
    """Check that these are the joined members. Raises ConfigError and StaleIndexError."""
    if members and "" in members[0].part_names:
        raise ConfigError(f"{members[0].path}: an array cannot be the primary of a join; list a dataset before it")
    if len(members) != len(header.members):
        raise ConfigError(f"the join has {len(header.members)} datasets, but {len(members)} were given; pass all")
    for member, joined in zip(members, header.members, strict=True):
        if not member.content_id.startswith(joined.content_id[:16]):
            raise StaleIndexError(
                f"{member.path}: its content changed after the join was built; run `energon-grain prepare` on the "
                "metadataset"
            )
        if len(member) != joined.samples:
            raise ConfigError(
                f"{member.path}: a dataset in a join must serve all of its {joined.samples} samples, not {len(member)}"
            )


class JoinRows(Rows):
    """All rows of a join, in the order of the primary. See `JoinedSource`.

    Attributes:
        members: The datasets, the primary first.
        wanted: The requested parts; None: all.
    """

    def __init__(
        self,
        index: JoinIndex,
        members: Sequence[Source],
        names: Sequence[str | None] | None = None,
        wanted: frozenset[str] | None = None,
    ) -> None:
        self.index, self.members, self.wanted = index, cast("tuple[MemberSource, ...]", tuple(members)), wanted
        _check_members(self.members, index.header)
        self.path = self.members[0].path
        self.lost_by_fork = any(getattr(member, "lost_by_fork", False) for member in self.members)
        named = zip(names or repeat(None), self.members, strict=False)
        all_names = [name or name_of(member.path) for name, member in named]
        # A name that several members share refers to none of them.
        self._numbers = {name: number for number, name in enumerate(all_names) if all_names.count(name) == 1}
        self.names = [name if name in self._numbers else None for name in all_names]
        self._samples = np.asarray(index.rows)
        self._pages = IndexPages((index.rows,), samples=len(index), rows=len(index) * len(self.members))

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinRows, (self.index, self.members, self.names, self.wanted)

    def __repr__(self) -> str:
        return f"JoinRows({', '.join(repr(each.path) for each in self.members)}, rows={len(self.index)})"

    @property
    def digest(self) -> str:
        """Digest of the datasets and of the rows."""
        return self.index.content_id[:16]

    @property
    def shard_counts(self) -> dict[str, int]:
        return {name_of(self.path): len(self.index)}

    @property
    def primary(self) -> MemberSource:
        return self.members[0]

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of all parts: of the primary, and of other members and arrays with a unique name."""
        found = [*_part_names(self.primary)]
        for name, number in self._numbers.items():
            if number:
                found += [_named(name, part) for part in _part_names(self.members[number])]
        return tuple(found)

    def with_parts(self, parts: frozenset[str]) -> JoinRows:
        """The same rows with only these parts `wanted`; members that support it read no others."""
        members: list[Source] = []
        for name, member in zip(self.names, self.members, strict=True):
            before = f"{name}." if members else ""
            own = frozenset(part.removeprefix(before) for part in parts if part.startswith(before))
            members.append(member.with_parts(own) if isinstance(member, HasParts) else member)
        return JoinRows(self.index, members, self.names, parts)

    @property
    def run_rows(self) -> int | None:
        """As for the primary, whose order rows have."""
        return self.primary.run_samples if isinstance(self.primary, ReadInRuns) else None

    @property
    def remote_files(self) -> Sequence[RemoteFiles]:
        """Readers of members in object stores."""
        return [files for member in self.members if isinstance(member, RemoteSource) for files in member.remote_files]

    def extents(self, numbers: Int64Array) -> list[RemoteExtents]:
        """See `RemoteSource`. Covers all members except arrays."""
        samples = self.samples(numbers)
        found: list[RemoteExtents] = []
        for number, member in enumerate(self.members):
            if isinstance(member, RemoteSource) and member.remote_files:
                places = np.flatnonzero(samples[:, number] >= 0)
                own = member.extents(samples[places, number])
                found += [replace(extents, owner=places[extents.owner]) for extents in own]
        return found

    def samples(self, numbers: Int64Array) -> Int64Array:
        """(n, members) number of each row's sample in each dataset, or row in each array; -1 if it has none.

        Raises IndexFileError.
        """
        self.index.check(numbers)
        samples = self._samples[numbers]
        self._pages.touch(numbers)
        return samples

    def keys(self, numbers: Int64Array) -> list[str]:
        """The key of each row: the primary's. Raises as `samples`."""
        return self.primary.keys(self.samples(numbers)[:, 0])

    def find(self, key: str, member: int | None = None) -> list[int]:
        """The rows with a sample of this key: of a member by its number, or of the first one that has the key."""
        for number in range(len(self.members)) if member is None else [member]:
            of: Any = self.members[number]
            found = of.find(key).tolist() if hasattr(of, "find") else [int(key)] if key.isdecimal() else []
            rows = [row for sample in found for row in self._rows_of(number, sample)]
            if rows:
                return rows
        return []

    def _rows_of(self, member: int, sample: int) -> list[int]:
        """The rows with a sample of a member. Rows have the order of the primary's samples."""
        if member == 0:
            row = bisect_left(range(len(self.index)), sample, key=lambda row: self._sample_of(row, 0))
            return [row] if row < len(self.index) and self._sample_of(row, 0) == sample else []
        if sample < len(self.index) and self._sample_of(sample, member) == sample:  # as in arrays
            return [sample]
        found: list[int] = []
        for at in range(0, len(self.index), _SEARCHED_AT_ONCE):
            samples = self.samples(np.arange(at, min(at + _SEARCHED_AT_ONCE, len(self.index))))
            found += (at + np.flatnonzero(samples[:, member] == sample)).tolist()
        return found

    def _sample_of(self, row: int, member: int) -> int:
        return int(self.samples(np.array([row], np.int64))[0, member])

    def read_rows(self, numbers: Int64Array) -> JoinedBatch:
        samples = self.samples(numbers)
        primary = self.primary.read(samples[:, 0])
        members = [MemberBatch(places=np.arange(len(numbers)), samples=samples[:, 0], batch=primary)]
        for number, member in enumerate(self.members[1:], 1):
            column = samples[:, number]
            places = np.flatnonzero(column >= 0)
            own = column[places]
            batch = None
            if len(places) and isinstance(member, ReadsByKeys):
                whole = len(places) == len(numbers)
                keys = primary.keys if whole else [primary.keys[place] for place in places.tolist()]
                batch = member._read_by_keys(own, keys)
            elif len(places):
                batch = member.read(own)
            members.append(MemberBatch(places=places, samples=own, batch=batch))
        return JoinedBatch(
            indices=numbers,
            keys=primary.keys,
            shards=primary.shards,
            columns=primary.columns,
            orders=primary.orders,
            members=members,
            names=self.names,
            wanted=self.wanted,
        )

    def sizes(self, numbers: Int64Array) -> Int64Array:
        """(n,) bytes of each row, of all members together."""
        samples = self.samples(numbers)
        taken = self.primary.sizes(samples[:, 0])
        for number, member in enumerate(self.members[1:], 1):
            places = np.flatnonzero(samples[:, number] >= 0)
            if len(places):
                taken[places] += member.sizes(samples[places, number])
        return taken

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Source.columns`: columns of rows, of the primary, and of other members, prefixed by a name and a dot.

        The prefix also works for the primary. An array with one number per row is the column with its name.
        """
        found = [*(self.kept or ()), *self.primary.columns]
        for name, number in self._numbers.items():
            if number:
                found += [_named(name, column) for column in self.members[number].columns]
        return tuple(dict.fromkeys(found))

    @cached_property
    def kept(self) -> KeptColumns | None:
        """Measured columns of all rows, stored beside the index. None for an index in memory."""
        folder = _column_folder(self.index)
        of = Measured(content_id=self.index.content_id, samples=len(self.index), parts=())
        return None if folder is None else KeptColumns(folder, of)

    def _member_of(self, column: str) -> tuple[int, str]:
        """The member of a column, and the member's name for it. Raises KeyNotFoundError."""
        if column in self.primary.columns:
            return 0, column
        for name, number in self._numbers.items():
            member = self.members[number]
            if column == name and "" in member.columns:
                return number, ""
            if column.startswith(f"{name}.") and "" not in member.part_names:
                return number, column.removeprefix(f"{name}.")
        if "." in column or len(self.members) == 1:
            raise KeyNotFoundError(f"{self!r}: no column {column!r}; the columns are {', '.join(self.columns)}")
        return 0, column  # the primary's error names the command that creates it

    def column(self, name: str, numbers: Int64Array | slice) -> npt.NDArray[Any]:
        """See `Rows.column`. If a row has no sample of a member, its sizes are 0, other columns NaN."""
        if self.kept is not None and name in self.kept:
            return self.kept.at(name, numbers)
        if isinstance(numbers, slice):
            return in_pieces(numbers, numbers.stop, partial(self.column, name))
        number, column = self._member_of(name)
        member, samples = self.members[number], self.samples(numbers)[:, number]
        if not self.index.header.members[number].missing:
            return member.column(column, samples)
        present = samples >= 0
        own = samples[present]
        values = member.column(column, own)
        sizes = column == SIZES or column.startswith(f"{SIZES}.")
        found = np.zeros(len(samples), values.dtype) if sizes else np.full(len(samples), np.nan)
        found[present] = values
        return found

    def column_id(self, name: str) -> str:
        if self.kept is not None and name in self.kept:
            return self.kept.id(name)
        number, column = self._member_of(name)
        return self.members[number].column_id(column)

    def locate_all(self, number: int) -> tuple[SampleLocation | None, ...]:
        """Location of a row's sample in each dataset, or row in each array; None if it has none."""
        samples = self.samples(np.array([number], np.int64))[0].tolist()
        return tuple(
            member.locate(sample) if sample >= 0 else None for member, sample in zip(self.members, samples, strict=True)
        )

    def locate(self, number: int) -> SampleLocation:
        """Location of the primary's sample of a row."""
        place = self.locate_all(number)[0]
        assert place is not None
        return place

    def close(self) -> None:
        for member in self.members:
            member.close()


class JoinedSource(SelectedSource):
    """The rows of a join, in the order of the primary. Thread-safe and picklable, like every `Source`.

    A read is one batched read of each dataset or array that has a sample for any of the rows.

    Args:
        members: The datasets, the primary first, and arrays after the primary. Each serves *all* samples of its
            dataset, without excludes, so its indices are the sample numbers in the rows. Each reads only the parts
            requested.
        names: Prefixes of the members' columns, before a dot; None for one or all: the name of its folder.
        start: First row to serve.
        stop: One past the last; default: the end.
        where: Condition on columns that served rows meet; default: none.

    Raises:
        ConfigError: The range, the number of datasets, or the samples of a dataset do not match the rows.
        EmptyDatasetError: The range is empty.
        StaleIndexError: A dataset was prepared with other samples, or an array changed, after the join.
    """

    _rows: JoinRows

    def __init__(
        self,
        index: JoinIndex,
        members: Sequence[Source],
        *,
        names: Sequence[str | None] | None = None,
        start: int = 0,
        stop: int | None = None,
        where: Expression | None = None,
    ) -> None:
        super().__init__(JoinRows(index, members, names), start=start, stop=stop, where=where)

    @property
    def index_id(self) -> str:
        """Digest of the datasets and of all rows, independent of the selection."""
        return self._rows.index.content_id

    @property
    def members(self) -> tuple[MemberSource, ...]:
        return self._rows.members

    def with_parts(self, parts: frozenset[str]) -> JoinedSource:
        """The same source with only these parts. See `JoinRows.with_parts`."""
        narrowed = copy(self)
        narrowed._rows = self._rows.with_parts(parts)
        return narrowed

    def numbers(self, indices: npt.NDArray[np.integer[Any]]) -> Int64Array:
        """(n,) number of each row among all rows. Raises IndexError."""
        return self._selection.to_raw(in_range(indices, len(self), where=self.path, what="row"))

    def samples(self, indices: Int64Array) -> Int64Array:
        """See `JoinRows.samples`. Also raises IndexError."""
        return self._rows.samples(self.numbers(indices))

    def find_in(self, member: int, key: str) -> Int64Array:
        """(k,) the samples whose sample of a member, by its number, has a key."""
        found = self._rows.find(key, member)
        return np.concatenate([np.empty(0, np.int64), *map(self._selection.indices_of, found)])

    def locate_all(self, index: int) -> tuple[SampleLocation | None, ...]:
        """See `JoinRows.locate_all`. Raises IndexError when `index` is out of range."""
        return self._rows.locate_all(self._number(index))


def _column_folder(index: JoinIndex) -> ColumnFolder | None:
    """Folder of the columns of rows, beside their index; None for an index in memory. Raises ReadError."""
    if index.folder is None:
        return None
    location = str(index.folder) if index.url is None else index.url
    cache, name = os.path.split(location)
    if index.url is not None:
        mirror = mirror_of(cache)
        with mirror.locked():
            mirror.refresh([f"{name}/{COLUMNS_JSON}"])
    return ColumnFolder(
        dataset=cache.removesuffix(".cache"),
        location=location,
        local=index.folder,
        mirrored=None if index.url is None else cache,
        identity=(location,),
    )
