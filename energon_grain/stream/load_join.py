"""From the raw samples of several datasets to the samples of a join."""

from __future__ import annotations

from typing import Any, cast

from energon_grain.datasets.joined_leaf import ResolvedJoin
from energon_grain.datasets.leaf import ResolvedLeaf
from energon_grain.sources.joined import JoinedBatch
from energon_grain.sources.raw import RawBatch
from energon_grain.stream.flow import Flow
from energon_grain.stream.load import LeafLoader
from energon_grain.stream.spec import HookSpec


class JoinLoader:
    """Makes the samples of one joined leaf: those of each dataset, and then one of each row.

    A row is dropped if the sample of any of its datasets is. Arguments are those of `LeafLoader`.
    """

    def __init__(self, number: int, leaf: ResolvedJoin, leaf_key: int, failure_tolerance: int) -> None:
        self._members = [LeafLoader(number, member, leaf_key, failure_tolerance) for member in leaf.members]
        self._hook = HookSpec(
            name="join",
            function=leaf.row,
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
            column: list[Any] = [None] * rows
            columns.append(column)
            if member.batch is None:
                continue
            if flow is None:
                flow = loader.load(member.batch, draws)
                for place, value in zip(flow.places, flow.values, strict=True):
                    column[place] = value
                continue
            places = member.places.tolist()
            own = cast("Any", tuple([numbers[place] for place in places] for numbers in draws))
            part = loader.load(member.batch, own)
            for place, value in zip(part.places, part.values, strict=True):
                column[places[place]] = value
            for place, dropped in part.dropped.items():
                flow.dropped.setdefault(places[place], dropped)
        assert flow is not None
        values = list(zip(*columns, strict=True))
        if flow.dropped:
            flow.places = [place for place in range(rows) if place not in flow.dropped]
            values = [values[place] for place in flow.places]
        flow.values = values
        flow.apply(self._hook)
        return flow


def loader_of(
    number: int, leaf: ResolvedLeaf | ResolvedJoin, leaf_key: int, failure_tolerance: int
) -> LeafLoader | JoinLoader:
    """What makes the samples of a leaf. Arguments are those of `LeafLoader`."""
    if isinstance(leaf, ResolvedJoin):
        return JoinLoader(number, leaf, leaf_key, failure_tolerance)
    return LeafLoader(number, leaf, leaf_key, failure_tolerance)
