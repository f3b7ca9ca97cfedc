"""Trees seen flat: what a runner blends, and for each leaf its share of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from energon_grain.metadataset.load import Source, load_metadataset
from energon_grain.metadataset.tree import Blend, BlendEpochized, Concat, Join, LeafReference, TreeLeaf, TreeNode
from energon_grain.storage.epath import EPath

_ONE = Fraction(1)
Schedule = tuple[tuple[int, tuple[Fraction, ...]], ...]
"""(from_position, a share for each child) of each segment; the shares of a segment add up to 1."""


def flatten_blend(blend: Blend) -> tuple[tuple[TreeNode, ...], Schedule]:
    """Give the children of a blend with all blends inside it dissolved, and their absolute shares.

    A share is the product of the normalised weights down to the child. Schedules of all blends are merged: a segment
    begins wherever one of them has a step, as all count positions of the outermost blend. Children that are no blend
    (leaves, joins, concats) stay as they are. Where no segment changes anything the schedule has a single one.
    """
    children: list[TreeNode] = []
    courses: list[_Course] = []
    for child, course in _dissolve(blend, ((0, _ONE),)):
        children.append(child)
        courses.append(course)
    starts = sorted({start for course in courses for start, _ in course})
    segments: list[tuple[int, tuple[Fraction, ...]]] = []
    for start in starts:
        shares = tuple(_at(course, start) for course in courses)
        if not segments or segments[-1][1] != shares:
            segments.append((start, shares))
    return tuple(children), tuple(segments)


def flatten_epochized(blend: BlendEpochized) -> tuple[tuple[TreeNode, ...], tuple[Fraction, ...]]:
    """Give the children of an epochized blend with all such blends inside it dissolved, repetitions multiplied."""
    children: list[TreeNode] = []
    repetitions: list[Fraction] = []
    for child, number in zip(blend.children, blend.repetitions, strict=True):
        inner = flatten_epochized(child) if isinstance(child, BlendEpochized) else ((child,), (_ONE,))
        children.extend(inner[0])
        repetitions.extend(number * each for each in inner[1])
    return tuple(children), tuple(repetitions)


def leaves_of(tree: TreeNode) -> tuple[TreeLeaf, ...]:
    """The leaves in document order; a join counts as one."""
    if isinstance(tree, LeafReference | Join):
        return (tree,)
    return tuple(leaf for child in tree.children for leaf in leaves_of(child))


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatLeaf:
    """A leaf and its place in the stream.

    Attributes:
        leaf: A dataset, or a join.
        shares: (from_position, share of the outermost blend's positions) in order; None outside of blends. Inside a
            concat it is the share of the whole concat, which its leaves divide by their lengths.
        repetitions: How often an epoch has each sample; None outside of epochized blends.
        concat: The concat that the share or the repetitions belong to; None: they are the leaf's own.
    """

    leaf: TreeLeaf
    shares: tuple[tuple[int, Fraction], ...] | None = None
    repetitions: Fraction | None = None
    concat: Concat | None = None

    @property
    def weight(self) -> Fraction | None:
        """The share, where it never changes along the stream; else None."""
        return self.shares[0][1] if self.shares is not None and len(self.shares) == 1 else None


def flatten(tree: TreeNode) -> tuple[FlatLeaf, ...]:
    """Give every leaf in document order, with its absolute share or its multiplied repetitions."""
    return tuple(_flatten(tree, None, None, None))


@dataclass(frozen=True, kw_only=True, slots=True)
class TraversedDatasetReference:
    """A leaf of a metadataset, as `traverse_metadataset` gives it.

    Attributes:
        path: The dataset.
        split_part: The part that is read.
        aux: Where auxiliary stores lie, by name.
        subflavors: Tags of all levels, without those of the dataset's own `dataset.yaml`.
    """

    path: EPath
    split_part: str
    aux: dict[str, EPath]
    subflavors: dict[str, Any]


def traverse_metadataset(path: Source, *, split_part: str) -> list[TraversedDatasetReference]:
    """List the datasets that a split of a metadataset comes to, in document order. They need not exist.

    The datasets of a join are listed one by one, without its arrays.

    Raises:
        ConfigError: A document is not valid.
        DatasetNotFoundError: A nested metadataset is missing.
    """
    tree = load_metadataset(path, split_part=split_part, require_data=False)
    return [
        TraversedDatasetReference(
            path=EPath(dataset.path),
            split_part=dataset.split_part,
            aux={name: EPath(aux.path) for name, aux in dataset.aux.items()},
            subflavors=dict(dataset.subflavors),
        )
        for leaf in leaves_of(tree)
        for dataset in (leaf.datasets if isinstance(leaf, Join) else (leaf,))
    ]


_Course = tuple[tuple[int, Fraction], ...]


def _dissolve(blend: Blend, outer: _Course) -> Sequence[tuple[TreeNode, _Course]]:
    found: list[tuple[TreeNode, _Course]] = []
    totals = [sum(weights) for _, weights in blend.schedule]
    for number, child in enumerate(blend.children):
        own = tuple((at[0], at[1][number] / total) for at, total in zip(blend.schedule, totals, strict=True))
        course = _times(outer, own)
        found.extend(_dissolve(child, course) if isinstance(child, Blend) else [(child, course)])
    return found


def _times(a: _Course, b: _Course) -> _Course:
    starts = sorted({start for start, _ in (*a, *b)})
    return tuple((start, _at(a, start) * _at(b, start)) for start in starts)


def _at(course: _Course, position: int) -> Fraction:
    return next(share for start, share in reversed(course) if start <= position)


def _flatten(
    tree: TreeNode, course: _Course | None, repetitions: Fraction | None, concat: Concat | None
) -> Sequence[FlatLeaf]:
    if isinstance(tree, LeafReference | Join):
        shares = None if course is None else _shortened(course)
        return [FlatLeaf(leaf=tree, shares=shares, repetitions=repetitions, concat=concat)]
    found: list[FlatLeaf] = []
    if isinstance(tree, Blend):
        for child, inner in _dissolve(tree, course or ((0, _ONE),)):
            found.extend(_flatten(child, inner, repetitions, concat))
    elif isinstance(tree, BlendEpochized):
        for child, number in zip(*flatten_epochized(tree), strict=True):
            found.extend(_flatten(child, course, (repetitions or _ONE) * number, concat))
    else:
        alone = course is None and repetitions is None
        for child in tree.children:
            found.extend(_flatten(child, course, repetitions, None if alone else concat or tree))
    return found


def _shortened(course: _Course) -> _Course:
    return tuple(
        (start, share) for number, (start, share) in enumerate(course) if not number or course[number - 1][1] != share
    )
