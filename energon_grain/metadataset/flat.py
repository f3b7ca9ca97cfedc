# SPDX-License-Identifier: Apache-2.0
"""Flat views of mixtures: the children of nested blends, and the share of each leaf in the stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import TypeVar

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset, ConcatDataset
from energon_grain.kinds.joins.leaf import JoinedLeafDataset
from energon_grain.metadataset.resolve import Leaf
from energon_grain.samplers.weights import exact

S = TypeVar("S")
_ONE = Fraction(1)
Course = tuple[tuple[int, Fraction], ...]
"""(from_position, share) of each segment."""
Schedule = tuple[tuple[int, tuple[Fraction, ...]], ...]
"""(from_position, one share per child) of each segment; the shares of a segment add up to 1."""


def children_of(node: SavableDataset) -> tuple[SavableDataset, ...]:
    """Return the children of a mixture; a leaf has none."""
    return node.datasets if isinstance(node, BlendDataset | BlendEpochizedDataset | ConcatDataset) else ()


def leaves_of(tree: SavableDataset) -> tuple[Leaf, ...]:
    """Return the leaves in document order; a join counts as one."""
    if isinstance(tree, LeafDataset | JoinedLeafDataset):
        return (tree,)
    return tuple(leaf for child in children_of(tree) for leaf in leaves_of(child))


def flatten_blend(blend: BlendDataset) -> tuple[tuple[SavableDataset, ...], Schedule]:
    """Return the children of a blend with their absolute shares, and with nested blends by samples dissolved.

    A share is the product of the normalised weights down to the child. Schedules of all blends are merged: a segment
    starts at each change in any of them, because all count positions of the outermost blend. Other children (leaves,
    joins, concats) stay unchanged. If no segment changes anything, the schedule has one segment.
    """
    children, courses = zip(*_dissolve(blend, ((0, _ONE),)), strict=True)
    starts = sorted({start for course in courses for start, _ in course})
    return children, changes((start, tuple(share_at(course, start) for course in courses)) for start in starts)


def flatten_epochized(blend: BlendEpochizedDataset) -> list[tuple[SavableDataset, Fraction]]:
    """Return the children of an epochized blend, with nested epochized blends dissolved and repetitions multiplied."""
    found: list[tuple[SavableDataset, Fraction]] = []
    for child, number in zip(blend.datasets, map(exact, blend.repetitions), strict=True):
        inner = flatten_epochized(child) if isinstance(child, BlendEpochizedDataset) else [(child, _ONE)]
        found += [(each, number * times) for each, times in inner]
    return found


def flattened(tree: SavableDataset) -> SavableDataset:
    """Return the same mixture without blends directly inside blends of their kind."""
    if isinstance(tree, BlendDataset):
        children, schedule = flatten_blend(tree)
        unit = None if tree.weight_unit is None else str(tree.weight_unit)
        return BlendDataset(*map(flattened, children), schedule=schedule, weight_unit=unit)
    if isinstance(tree, BlendEpochizedDataset):
        return BlendEpochizedDataset(*((flattened(child), number) for child, number in flatten_epochized(tree)))
    return ConcatDataset(*map(flattened, tree.datasets)) if isinstance(tree, ConcatDataset) else tree


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatLeaf:
    """A leaf and its place in the stream.

    Attributes:
        leaf: A dataset or a join.
        shares: (from_position, share of the outermost blend's positions) in order; None outside of blends. Inside a
            concat, the share of the whole concat, which its leaves divide by their lengths.
        repetitions: Occurrences of each sample in an epoch; None outside of epochized blends.
        concat: The concat that the share or the repetitions apply to; None: they apply to the leaf.
    """

    leaf: Leaf
    shares: Course | None = None
    repetitions: Fraction | None = None
    concat: ConcatDataset | None = None


def flatten(
    tree: SavableDataset,
    shares: Course | None = None,
    repetitions: Fraction | None = None,
    concat: ConcatDataset | None = None,
) -> Iterator[FlatLeaf]:
    """Yield every leaf in document order, with its absolute share or its multiplied repetitions."""
    if isinstance(tree, LeafDataset | JoinedLeafDataset):
        course = None if shares is None else changes(shares)
        yield FlatLeaf(leaf=tree, shares=course, repetitions=repetitions, concat=concat)
    elif isinstance(tree, BlendDataset):
        for child, course in _dissolve(tree, shares or ((0, _ONE),)):
            yield from flatten(child, course, repetitions, concat)
    elif isinstance(tree, BlendEpochizedDataset):
        for child, number in flatten_epochized(tree):
            yield from flatten(child, shares, (repetitions or _ONE) * number, concat)
    elif isinstance(tree, ConcatDataset):
        alone = shares is None and repetitions is None
        for child in tree.datasets:
            yield from flatten(child, shares, repetitions, None if alone else concat or tree)


def _dissolve(blend: BlendDataset, outer: Course) -> Sequence[tuple[SavableDataset, Course]]:
    found: list[tuple[SavableDataset, Course]] = []
    steps = [(start, list(map(exact, weights))) for start, weights in blend.schedule]
    totals = [sum(weights) for _, weights in steps]
    for number, child in enumerate(blend.datasets):
        own = tuple((start, weights[number] / total) for (start, weights), total in zip(steps, totals, strict=True))
        starts = sorted({start for start, _ in (*outer, *own)})
        course = tuple((start, share_at(outer, start) * share_at(own, start)) for start in starts)
        if isinstance(child, BlendDataset) and blend.weight_unit is None is child.weight_unit:
            found.extend(_dissolve(child, course))
        else:
            found.append((child, course))
    return found


def share_at(course: Course, position: int) -> Fraction:
    """Return the share at a position, which must not be before the first segment."""
    return next(share for start, share in reversed(course) if start <= position)


def changes(steps: Iterable[tuple[int, S]]) -> tuple[tuple[int, S], ...]:
    """Return the steps that change the value."""
    return tuple(next(same) for _, same in groupby(steps, lambda step: step[1]))
