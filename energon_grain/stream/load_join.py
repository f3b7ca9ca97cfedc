"""From the raw samples of several datasets to the samples of a join."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from itertools import repeat
from operator import attrgetter
from typing import Any, cast

from energon_grain.datasets.joined_leaf import ResolvedArray, ResolvedJoin
from energon_grain.datasets.leaf import ResolvedLeaf
from energon_grain.samples.columns import column_constructor
from energon_grain.samples.sample import BASE_FIELDS
from energon_grain.sources.joined import JoinedBatch
from energon_grain.sources.provenance import LazyRowSources
from energon_grain.sources.raw import RawBatch
from energon_grain.stream.array_column import ArrayColumn
from energon_grain.stream.flow import Flow
from energon_grain.stream.load import LeafLoader
from energon_grain.stream.spec import HookSpec


class JoinLoader:
    """Makes the samples of one joined leaf: those of each dataset, and then one of each row.

    A row is dropped if the sample of any of its datasets is. Arguments are those of `LeafLoader`.
    """

    def __init__(self, number: int, leaf: ResolvedJoin, leaf_key: int, failure_tolerance: int) -> None:
        row = leaf.row
        self._merge = ColumnMerge(row.sample_type) if row.merges and row.sample_type is not None else None
        self._members = [
            ArrayColumn(member, row)
            if isinstance(member, ResolvedArray)
            else LeafLoader(number, member, leaf_key, failure_tolerance)
            for member in leaf.members
        ]
        self._source = leaf.source
        self._joins_sources = not row.merges
        self._hook = HookSpec(
            name="join",
            function=row if row.names is not None else lambda samples, function=row.function: function(*samples),
            failure_tolerance=failure_tolerance,
            restore_seeds=False,
            concurrent=True,
        )

    def load(
        self, raw: RawBatch, draws: tuple[list[int], list[int], list[int]], groups: tuple[range, ...] = ()
    ) -> Flow:
        """Decode, construct and join. See `LeafLoader.load`."""
        del groups  # samples of different datasets stand between the rows of a batch
        joined = cast("JoinedBatch", raw)
        rows = len(joined)
        columns: list[list[Any]] = []
        flow: Flow | None = None
        for loader, member in zip(self._members, joined.members, strict=True):
            if isinstance(loader, ArrayColumn):
                columns.append(loader.values(member, rows))
                continue
            if member.batch is None:
                columns.append([None] * rows)
                continue
            assert isinstance(member.batch, RawBatch)
            whole = len(member.places) == rows
            places = [] if whole else member.places.tolist()
            own = draws if whole else cast("Any", tuple([numbers[place] for place in places] for numbers in draws))
            part = loader.load(member.batch, own, restore_keys=flow.restore_keys if flow and whole else None)
            flow = flow or part
            if whole and not part.dropped:
                columns.append(part.values)
                continue
            column: list[Any] = [None] * rows
            columns.append(column)
            places = places or range(rows)
            for place, value in zip(part.places, part.values, strict=True):
                column[places[place]] = value
            for place, dropped in part.dropped.items():
                flow.dropped.setdefault(places[place], dropped)
        assert flow is not None
        sources = list(map(LazyRowSources, repeat(self._source), joined.indices.tolist()))
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


def _add_sources(flow: Flow, primary: list[Any], sources: list[LazyRowSources]) -> None:
    """Name the sources of all members at the samples of a joiner that took over the primary's."""
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
    """The default merge, field by field for all rows at once: what `Sample.from_joined` does for each.

    Args:
        sample_type: Of the result.
    """

    def __init__(self, sample_type: type[Any]) -> None:
        self._construct = column_constructor(sample_type)
        self._fields = {field.name for field in dataclasses.fields(sample_type)}

    def __call__(self, columns: list[list[Any]], sources: list[LazyRowSources]) -> list[Any] | None:
        """Samples of the rows; None where they must be merged one by one.

        Args:
            columns: For each dataset its sample of each row.
            sources: Of each row.
        """
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
            return None  # a field has no value: each row says so by itself


def _sources_of(samples: list[Any]) -> list[Any]:
    """The sources of whatever a joiner takes or makes; None where it has none."""
    with suppress(AttributeError):
        return list(map(attrgetter("__sources__"), samples))
    return [
        sample.get("__sources__") if isinstance(sample, dict) else getattr(sample, "__sources__", None)
        for sample in samples
    ]


def loader_of(
    number: int, leaf: ResolvedLeaf | ResolvedJoin, leaf_key: int, failure_tolerance: int
) -> LeafLoader | JoinLoader:
    """What makes the samples of a leaf. Arguments are those of `LeafLoader`."""
    if isinstance(leaf, ResolvedJoin):
        return JoinLoader(number, leaf, leaf_key, failure_tolerance)
    return LeafLoader(number, leaf, leaf_key, failure_tolerance)
