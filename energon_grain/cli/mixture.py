# SPDX-License-Identifier: Apache-2.0
"""What a metadataset comes to: its tree, with the share of the stream that each dataset gets, as data and as text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset, ConcatDataset
from energon_grain.get_datasets import get_train_dataset
from energon_grain.kinds.joins.leaf import JoinedLeafDataset
from energon_grain.metadataset.documents import load_dataset, load_metadataset
from energon_grain.metadataset.flat import Course, FlatLeaf, changes, children_of, flatten, share_at
from energon_grain.metadataset.resolve import Leaf
from energon_grain.planning.costs import Costs
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.subset import part_of
from energon_grain.sources.source import Source
from energon_grain.stream.spec import LeafSpec, StreamSpec, leaf_draws
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.words import counted, table

NodeKind = Literal["blend", "blend_epochized", "concat", "dataset"]
MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A part of the stream from a position on: 0 to 1, and exactly the same as a fraction such as `3/10`."""

    from_position: int
    share: float
    exact: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafSummary:
    """A dataset and its part in the stream.

    Attributes:
        label: Its name or its path as written, with what tells it from its siblings.
        path: Its folder.
        place: Where in the metadataset it stands.
        split_part: What is read of it.
        subset: The range that is taken of that; None: all.
        where: The condition that samples of it meet; None: there is none.
        of_samples: How many there are without that condition.
        name: As the metadataset names it.
        subflavors: Tags, without those of the dataset's own configuration.
        samples: After subset, excludes and `where`.
        shares: Of the samples of the stream; several where a schedule changes it.
        cost_shares: Of what all datasets in the outermost blend by cost that it is in cost; else empty.
        seen_per_epoch: How often an epoch has each of its samples, on average over epochs; None in an endless blend.
        seen_per_million: How often a million positions have each of its samples, for each of `shares`.
    """

    label: str
    path: str
    place: str
    split_part: str
    subset: str | None
    where: str | None
    of_samples: int
    name: str | None
    subflavors: dict[str, Any]
    samples: int
    shares: tuple[Share, ...]
    cost_shares: tuple[Share, ...]
    seen_per_epoch: float | None
    seen_per_million: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSummary:
    """A node of the tree.

    Attributes:
        kind: A blend, a concatenation or a dataset.
        weights: In the blend that it is a child of, one for each step of that blend's schedule; empty elsewhere.
        repetitions: In the epochized blend that it is a child of; None elsewhere.
        samples: Of all datasets below.
        shares: Of the stream, of all datasets below.
        cost_shares: Likewise.
        leaf: Number of the dataset among `leaves`; None for a combination.
        children: Of a combination.
    """

    kind: NodeKind
    weights: tuple[float, ...] = ()
    repetitions: float | None = None
    samples: int
    shares: tuple[Share, ...]
    cost_shares: tuple[Share, ...]
    leaf: int | None = None
    children: tuple[NodeSummary, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureSummary:
    """What one split of a metadataset comes to in training.

    Attributes:
        path: The file.
        split: The split.
        endless: Whether it is a blend by weights, which has no epochs.
        weight_unit: What weights are shares of where they are not shares of samples, the outermost such ones; several
            with commas between. None: all are.
        samples: Of all leaves.
        epoch_positions: Length of the first epoch; later ones of an epochized blend can differ by a few. None where
            it is endless.
        tree: Its root.
        leaves: In document order.
    """

    path: str
    split: str
    endless: bool
    weight_unit: str | None
    samples: int
    epoch_positions: int | None
    tree: NodeSummary
    leaves: tuple[LeafSummary, ...]

    @property
    def changes(self) -> tuple[int, ...]:
        """Positions at which a schedule changes the share of a leaf."""
        starts = {share.from_position for leaf in self.leaves for share in leaf.shares}
        return tuple(sorted(starts - {0}))


def summarize_mixture(
    path: str | Path,
    *,
    split: str = "train",
    seed: int = 0,
    lanes: int | None = None,
    trusted_modules: Collection[str] = (),
) -> tuple[MixtureSummary, StreamSpec]:
    """Describe one split of a metadataset, as `get_train_dataset` reads it. The spec has its order, to count on.

    Raises ConfigError, DatasetNotFoundError and SplitError.
    """
    document = load_dataset(path)
    tree = load_metadataset(document, split_part=split)
    endless = isinstance(tree, BlendDataset)
    dataset = get_train_dataset(
        document,
        split_part=split,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=endless,
        seed=seed,
        lanes=lanes,
        trusted_modules=trusted_modules,
    )
    spec = compile_dataset(dataset)
    flat = list(flatten(tree))
    sizes = [len(leaf.leaf.source) for leaf in spec.leaves]
    courses = leaf_shares(flat, sizes)
    costs: list[Course] = [()] * len(flat)
    by_cost = [*_blends_by_cost(tree)]
    if by_cost:
        starts = sorted({start for course in courses for start, _ in course})
        courses = _drawn(spec, sizes, starts)
    for cost, below in by_cost:
        costs[below] = _costs(spec.leaves[below], cost, courses[below])
    leaves = tuple(
        _leaf(each, course, cost, resolved.leaf.source, label, endless)
        for each, course, cost, resolved, label in zip(flat, courses, costs, spec.leaves, _labels(flat), strict=True)
    )
    summary = MixtureSummary(
        path=str(path),
        split=split,
        endless=endless,
        weight_unit=", ".join(dict.fromkeys(str(unit) for unit, _ in by_cost)) or None,
        samples=sum(sizes),
        epoch_positions=spec.order.length(0),
        tree=_node(tree, list(zip(courses, costs, sizes, strict=True)), 0),
        leaves=leaves,
    )
    return summary, spec


def leaf_shares(flat: Sequence[FlatLeaf], sizes: Sequence[int]) -> list[Course]:
    """Give the share of the stream that each leaf gets, from each position on: exact fractions that add up to 1.

    Weights are shares as they stand; a concat in a blend divides its share by the lengths of its leaves. Without
    weights, the share of a leaf is its part in an epoch: repetitions times length.
    """
    if flat[0].shares is None:
        rates = [size * (each.repetitions or Fraction(1)) for each, size in zip(flat, sizes, strict=True)]
        return [((0, Fraction(rate) / sum(rates)),) for rate in rates]
    courses: list[Course] = []
    for each, size in zip(flat, sizes, strict=True):
        together = size if each.concat is None else _length_of(each.concat, flat, sizes)
        courses.append(tuple((start, share * Fraction(size, together)) for start, share in each.shares or ()))
    return courses


def _length_of(concat: object, flat: Sequence[FlatLeaf], sizes: Sequence[int]) -> int:
    return sum(size for each, size in zip(flat, sizes, strict=True) if each.concat is concat)


def _blends_by_cost(tree: SavableDataset, first: int = 0) -> Iterator[tuple[Expression, slice]]:
    """The outermost blends whose weights are shares of a cost: that, and which leaves are below, from `first` on."""
    if isinstance(tree, BlendDataset) and tree.weight_unit is not None:
        yield tree.weight_unit, slice(first, first + _count_leaves(tree))
        return
    for child in children_of(tree):
        yield from _blends_by_cost(child, first)
        first += _count_leaves(child)


def _count_leaves(tree: SavableDataset) -> int:
    return sum(map(_count_leaves, children_of(tree))) or 1


def _drawn(spec: StreamSpec, sizes: Sequence[int], starts: Sequence[int]) -> list[Course]:
    """The share of the samples that each leaf gets where blends by cost decide, from each start on: estimates."""
    before = [leaf_draws(spec.mixture, sizes, start) for start in starts]
    behind = [leaf_draws(spec.mixture, sizes, stop) for stop in (*starts[1:], starts[-1] + MILLION)]
    drawn = [[late - early for early, late in zip(*both, strict=True)] for both in zip(before, behind, strict=True)]
    return [_course(starts, [Fraction(row[leaf] / sum(row)) for row in drawn]) for leaf in range(len(sizes))]


def _costs(leaves: Sequence[LeafSpec], unit: Expression, courses: Sequence[Course]) -> list[Course]:
    """The share of the leaves' cost that each of them gets, by what its first million samples cost on average."""
    means = [
        Fraction(int(each.sum()), len(each))
        for leaf in leaves
        for each in [Costs(leaf.leaf.source, unit, "weight_unit").of(slice(0, MILLION))]
    ]
    totals = [
        sum(share * mean for (_, share), mean in zip(row, means, strict=True)) for row in zip(*courses, strict=True)
    ]
    return [
        _course(
            [start for start, _ in course],
            [share * mean / total for (_, share), total in zip(course, totals, strict=True)],
        )
        for course, mean in zip(courses, means, strict=True)
    ]


def _course(starts: Sequence[int], shares: Sequence[Fraction]) -> Course:
    return tuple((start, share.limit_denominator(MILLION)) for start, share in zip(starts, shares, strict=True))


def _leaf(flat: FlatLeaf, course: Course, cost: Course, source: Source, label: str, endless: bool) -> LeafSummary:
    leaf, samples = flat.leaf, len(source)
    where = getattr(source, "where", None)
    return LeafSummary(
        label=label,
        path=leaf.path,
        place=str(leaf.place),
        split_part=leaf.split_part,
        subset=None if leaf.subset is None else str(leaf.subset),
        where=None if leaf.where is None else str(leaf.where),
        of_samples=samples if where is None else where["of"],
        name=leaf.name,
        subflavors=dict(leaf.tags),
        samples=samples,
        shares=_shares(course),
        cost_shares=_shares(cost),
        seen_per_epoch=None if endless else float(flat.repetitions or 1),
        seen_per_million=tuple(float(share * MILLION / samples) for _, share in course),
    )


def _labels(flat: Sequence[FlatLeaf]) -> list[str]:
    """A label for each leaf, as short as it can be while none is there twice; joins are called by all their members."""
    leaves = [each.leaf for each in flat]
    labels = [leaf.name or _written(leaf) for leaf in leaves]
    splits = {leaf.split_part for leaf in leaves}
    for number, leaf in enumerate(leaves):
        if len(splits) > 1:
            labels[number] += f":{leaf.split_part}"
        if part := part_of(leaf.subset, leaf.where):
            labels[number] += f" {part}"
    return [
        f"{label} #{labels[: number + 1].count(label)}" if labels.count(label) > 1 else label
        for number, label in enumerate(labels)
    ]


def _written(leaf: Leaf) -> str:
    if isinstance(leaf, JoinedLeafDataset):
        return " + ".join(str(member.leaf.written) for member in leaf.members)
    return str(leaf.written)


def _node(
    tree: SavableDataset,
    leaves: Sequence[tuple[Course, Course, int]],
    first: int,
    weights: tuple[float, ...] = (),
    repetitions: float | None = None,
) -> NodeSummary:
    """Summarise a node, whose leaves are those from `first` on: shares of samples and of cost, and samples of each."""
    children: list[NodeSummary] = []
    at = first
    for number, child in enumerate(children_of(tree)):
        said = tuple(float(step[number]) for _, step in tree.schedule) if isinstance(tree, BlendDataset) else ()
        often = float(tree.repetitions[number]) if isinstance(tree, BlendEpochizedDataset) else None
        children.append(_node(child, leaves, at, said, often))
        at += _count_leaves(child)
    courses, costs, samples = zip(*leaves[first : at if children else first + 1], strict=True)
    return NodeSummary(
        kind=_kind(tree) if children else "dataset",
        weights=weights,
        repetitions=repetitions,
        samples=sum(samples),
        shares=_shares(_sum(courses)),
        cost_shares=_shares(_sum(costs)),
        leaf=None if children else first,
        children=tuple(children),
    )


def _kind(tree: SavableDataset) -> NodeKind:
    if isinstance(tree, ConcatDataset):
        return "concat"
    return "blend" if isinstance(tree, BlendDataset) else "blend_epochized"


def _sum(courses: Sequence[Course]) -> Course:
    """Shares of several leaves together; empty where one has none."""
    if len(courses) == 1 or not all(courses):
        return courses[0] if len(courses) == 1 else ()
    starts = sorted({start for course in courses for start, _ in course})
    return changes((start, sum((share_at(course, start) for course in courses), Fraction(0))) for start in starts)


def _shares(course: Course) -> tuple[Share, ...]:
    return tuple(Share(from_position=start, share=float(share), exact=str(share)) for start, share in course)


def mixture_lines(summary: MixtureSummary) -> list[str]:
    """Lay out a summary as a table with the tree in its first column."""
    said = "repetitions" if summary.tree.kind == "blend_epochized" else "weight"
    seen = f"seen in {MILLION:,}" if summary.endless else "seen per epoch"
    unit = "" if summary.weight_unit is None else f"of {summary.weight_unit}"
    share = "of samples" if unit else "share"
    rows = _without_empty([("", "samples", said, unit, share, seen), *_rows(summary, summary.tree, "", "")])
    lines = [
        f"{summary.path}, split {summary.split}: {_length(summary)}",
        "",
        *table(rows, "<" + ">" * (len(rows[0]) - 1)),
    ]
    if summary.changes:
        lines += ["", f"Shares change at position {', '.join(f'{start:,}' for start in summary.changes)}."]
    return [*lines, *_kept_lines(summary), *_tag_lines(summary)]


def _without_empty(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows of a table without columns of weights and costs that are empty below their title."""
    shown = [place for place in range(len(rows[0])) if place not in (2, 3) or any(row[place] for row in rows[1:])]
    return [tuple(row[place] for place in shown) for row in rows]


def _kept_lines(summary: MixtureSummary) -> Iterator[str]:
    leaves = [leaf for leaf in summary.leaves if leaf.where]
    yield from ("", "Kept by `where`") if leaves else ()
    for leaf in leaves:
        share = leaf.samples / leaf.of_samples
        yield f"  {leaf.label}: {leaf.samples:,} of {leaf.of_samples:,} samples ({share:.3%})"


def _tag_lines(summary: MixtureSummary) -> Iterator[str]:
    leaves = [leaf for leaf in summary.leaves if leaf.subflavors]
    yield from ("", "Subflavors") if leaves else ()
    for leaf in leaves:
        yield f"  {leaf.label}: {', '.join(f'{name}={value}' for name, value in leaf.subflavors.items())}"


def _length(summary: MixtureSummary) -> str:
    datasets = f"{counted(len(summary.leaves), 'dataset')}, {counted(summary.samples, 'sample')}"
    if summary.epoch_positions is None:
        return f"{datasets}, endless"
    return f"{datasets}, {summary.epoch_positions:,} positions an epoch"


def _rows(summary: MixtureSummary, node: NodeSummary, first: str, further: str) -> Iterator[tuple[str, ...]]:
    """Rows of a node and all below it; `first` and `further` are the tree's lines before its label and its children."""
    leaf = None if node.leaf is None else summary.leaves[node.leaf]
    said = _chain([f"{weight:.6g}" for weight in node.weights])
    if node.repetitions is not None:
        said = f"{node.repetitions:.6g}"
    label = node.kind if leaf is None else leaf.label
    yield (
        first + label,
        f"{node.samples:,}",
        said,
        *(_chain(_percentages(each)) for each in (node.cost_shares, node.shares)),
        "" if leaf is None else _seen(leaf),
    )
    for number, child in enumerate(node.children):
        last = number == len(node.children) - 1
        yield from _rows(summary, child, further + ("└─ " if last else "├─ "), further + ("   " if last else "│  "))


def _seen(leaf: LeafSummary) -> str:
    if leaf.seen_per_epoch is not None:
        return f"{leaf.seen_per_epoch:.6g}"
    return _chain([f"{times:,.4g}" if times < 1000 else f"{times:,.0f}" for times in leaf.seen_per_million])


def _percentages(shares: Sequence[Share]) -> list[str]:
    return [f"{100 * share.share:.4g}%" for share in shares]


def _chain(texts: Sequence[str]) -> str:
    """What changes along the stream: the first, and the last after `…` where there are many."""
    shown = [*texts[:2], "…", texts[-1]] if len(texts) > 4 else texts
    return " → ".join(shown)
