# SPDX-License-Identifier: Apache-2.0
"""A join with its configuration read and its indices open, and the loader that makes samples of its rows."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from typing import Any, cast

from energon_grain.kinds.joins.source import JoinedBatch, JoinedSource, MemberBatch, MemberSource
from energon_grain.samples.columns import column_constructor
from energon_grain.samples.sample import BASE_FIELDS
from energon_grain.samples.types import CrudeSample
from energon_grain.sources.source import LazySources, RawBatch
from energon_grain.stream.flow import Flow, Numbers
from energon_grain.stream.spec import Ordering, ResolvedLeaf
from energon_grain.stream.stage import LeafLoader, own_hook
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedArray:
    """An array that exists. Picklable."""

    source: MemberSource
    field: str


@dataclass(frozen=True, slots=True)
class JoinRow:
    """A joiner, as a function of a row.

    Attributes:
        function: The user's, or a sample type's `from_joined`.
        names: Keywords by which it gets its samples; None: by position.
        sample_type: Type of its result, if known; None: crude samples.
        merges: Whether it is the default merge, of fields by name into `sample_type`, or of the parts of crude samples.
    """

    function: Callable[..., Any]
    names: tuple[str, ...] | None
    sample_type: type[Any] | None
    merges: bool = False

    def __call__(self, row: tuple[Any, ...]) -> Any:
        """The sample of a row. Missing samples are None."""
        if self.names is None:
            return self.function(*row)
        return self.function(**dict(zip(self.names, row, strict=True)))


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedJoin:
    """A joined leaf with its configuration read and its indices open. Picklable.

    Attributes:
        members: How samples of each dataset are made, the primary first; and the arrays.
        row: Makes one sample from those of a row.
    """

    source: JoinedSource
    members: tuple[ResolvedLeaf | ResolvedArray, ...]
    row: JoinRow
    ordering: Ordering

    @property
    def primary(self) -> ResolvedLeaf:
        """The first dataset."""
        primary = self.members[0]
        assert isinstance(primary, ResolvedLeaf)
        return primary

    @property
    def sample_type(self) -> type[Any] | None:
        """Type of the samples of rows; None for crude samples, which are cooked."""
        return self.row.sample_type

    @property
    def subflavors(self) -> dict[str, Any]:
        """Tags of the primary's samples."""
        return self.primary.subflavors

    @property
    def decoder(self) -> SampleDecoder | None:
        """The primary's decoder."""
        return self.primary.decoder

    @property
    def field_map(self) -> FieldMap | None:
        """The primary's field map."""
        return self.primary.field_map

    @property
    def path(self) -> str:
        """The primary's folder, for provenance."""
        return os.fspath(self.source.path)

    def loader(self, number: int, hook_key: int, failure_tolerance: int) -> JoinLoader:
        """The loader of samples of rows."""
        return JoinLoader(number, self, hook_key, failure_tolerance)


class ArrayColumn:
    """Converts rows of an array for the joiner.

    A user's joiner gets the bare rows. The default merge gets samples of one field, or crude samples of one part, so
    rows are merged in the same way as samples of datasets.
    """

    def __init__(self, array: ResolvedArray, row: JoinRow) -> None:
        self._source, self._field = array.source, array.field
        self._merges, self._crude = row.merges, row.sample_type is None
        if self._merges and not self._crude:
            fields = [(self._field, Any), ("__sources__", Any)]
            self._construct = column_constructor(dataclasses.make_dataclass("ArrayRow", fields, slots=True))

    def values(self, member: MemberBatch, rows: int) -> list[Any]:
        """One value for each joined row, None if the array has none."""
        found: list[Any] = [] if member.batch is None else [*member.batch.columns[""]]
        if self._merges:
            sources = map(LazySources, repeat(self._source), member.samples.tolist())
            if self._crude:
                parts = zip(found, sources, strict=True)
                found = [CrudeSample({self._field: row, "__sources__": source}) for row, source in parts]
            else:
                found = self._construct(len(found), {self._field: found, "__sources__": sources})
        if len(found) == rows:
            return found
        column: list[Any] = [None] * rows
        for place, value in zip(member.places.tolist(), found, strict=True):
            column[place] = value
        return column


class JoinLoader:
    """Makes the samples of one joined leaf: those of each dataset, then one per row.

    A row is dropped if the sample of any of its datasets is. Arguments as for `LeafLoader`, for a single leaf.
    """

    def __init__(self, number: int, leaf: ResolvedJoin, hook_key: int, failure_tolerance: int) -> None:
        row = leaf.row
        self._merge = ColumnMerge(row.sample_type) if row.merges and row.sample_type is not None else None
        self._members = [
            ArrayColumn(member, row)
            if isinstance(member, ResolvedArray)
            else LeafLoader({number: member}, {number: hook_key}, failure_tolerance)
            for member in leaf.members
        ]
        self._source = leaf.source
        self._joins_sources = not row.merges
        function = row if row.names is not None else lambda samples, function=row.function: function(*samples)
        self._hook = own_hook(name="join", function=function, failure_tolerance=failure_tolerance)

    def load(self, raw: RawBatch, draws: Numbers, groups: tuple[range, ...] = ()) -> Flow:
        """Decode, construct and join. See `LeafLoader.load`."""
        del groups  # a batch alternates between samples of different datasets
        joined = cast("JoinedBatch", raw)
        rows = len(joined)
        columns: list[list[Any]] = []
        flow: Flow | None = None
        for loader, member in zip(self._members, joined.members, strict=True):
            if isinstance(loader, ArrayColumn):
                columns.append(loader.values(member, rows))
            elif member.batch is None:
                columns.append([None] * rows)
            else:
                column, flow = self._of_member(loader, member, draws, rows, flow)
                columns.append(column)
        assert flow is not None
        sources = list(map(LazySources, repeat(self._source), joined.indices.tolist()))
        flow.sources = sources.__getitem__
        merged = None if self._merge is None or flow.dropped else self._merge(columns, sources)
        if merged is not None:
            flow.values = merged
            return flow
        flow.values = list(zip(*columns, strict=True))
        if flow.dropped:
            flow.places = [place for place in range(rows) if place not in flow.dropped]
            flow.values = [flow.values[place] for place in flow.places]
        flow.apply(self._hook)
        if self._joins_sources:
            _add_sources(flow, columns[0], sources)
        return flow

    def _of_member(
        self, loader: LeafLoader, member: MemberBatch, draws: Numbers, rows: int, flow: Flow | None
    ) -> tuple[list[Any], Flow]:
        """Samples of a member, one per row, and the flow of the first member, which records what all of them drop."""
        assert isinstance(member.batch, RawBatch)
        whole = len(member.places) == rows
        places = range(rows) if whole else member.places.tolist()
        own = draws if whole else cast("Any", tuple([numbers[place] for place in places] for numbers in draws))
        part = loader.load(member.batch, own, restore_keys=flow.restore_keys if flow and whole else None)
        flow = flow or part
        if whole and not part.dropped:
            return part.values, flow
        column: list[Any] = [None] * rows
        for place, value in zip(part.places, part.values, strict=True):
            column[places[place]] = value
        for place, dropped in part.dropped.items():
            flow.dropped.setdefault(places[place], dropped)
        return column, flow


def _add_sources(flow: Flow, primary: list[Any], sources: list[LazySources]) -> None:
    """Set the sources of all members on samples whose joiner copied the primary's sources."""
    if flow.dropped:
        primary = [primary[place] for place in flow.places]
        sources = [sources[place] for place in flow.places]
    before, after = _sources_of(primary), _sources_of(flow.values)
    for value, given, found, row in zip(flow.values, before, after, sources, strict=True):
        if found is not given or found is None:
            continue
        if isinstance(value, dict):
            value["__sources__"] = row
        else:
            value.__sources__ = row


class ColumnMerge:
    """The default merge, field by field for all rows at once; equivalent to `Sample.from_joined` for each."""

    def __init__(self, sample_type: type[Any]) -> None:
        self._construct = column_constructor(sample_type)
        self._fields = {field.name for field in dataclasses.fields(sample_type)}

    def __call__(self, columns: list[list[Any]], sources: list[LazySources]) -> list[Any] | None:
        """Samples of the rows; None if they must be merged individually."""
        merged: dict[str, Any] = {}
        for column in columns:
            types = set(map(type, column))
            if len(types) != 1 or not dataclasses.is_dataclass(next(iter(types))):
                return None  # a sample is missing, or types differ
            for field in dataclasses.fields(types.pop()):
                if field.name not in BASE_FIELDS:
                    merged[field.name] = list(map(attrgetter(field.name), column))
        for name in BASE_FIELDS:
            merged[name] = list(map(attrgetter(name), columns[0]))
        merged["__sources__"] = sources
        if merged.keys() - self._fields:
            return None
        try:
            return self._construct(len(columns[0]), merged)
        except TypeError:
            return None  # a field has no value: the merge of each row reports it


def _sources_of(samples: list[Any]) -> list[Any]:
    """The sources of the inputs or outputs of a joiner; None for values without sources."""
    with suppress(AttributeError):
        return list(map(attrgetter("__sources__"), samples))
    return [
        sample.get("__sources__") if isinstance(sample, dict) else getattr(sample, "__sources__", None)
        for sample in samples
    ]
