# SPDX-License-Identifier: Apache-2.0
"""The tree of a metadataset, with the share of the stream that each dataset gets, as data and as text."""

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
from energon_grain.mixture_shares import leaf_draws
from energon_grain.planning.costs import Costs
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.subset import part_of
from energon_grain.sources.source import Source
from energon_grain.stream.spec import LeafSpec, StreamSpec
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.words import counted, table

NodeKind = Literal["blend", "blend_epochized", "concat", "dataset"]
MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A share of the stream from a position on: from 0 to 1, and as an exact fraction such as `3/10`."""

    from_position: int
    share: float
    exact: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafSummary:
    """A dataset and its share of the stream.

    Attributes:
        label: Its name or its path as written, with what distinguishes it from its siblings.
        path: Its folder.
        place: Its place in the metadataset.
        split_part: Its split part.
        subset: Range of the split part; None: all.
        where: Condition on its samples; None: none.
        of_samples: Number of samples without that condition.
        name: Its name in the metadataset.
        subflavors: Tags, without those of the dataset's own configuration.
        samples: Number of samples after subset, excludes and `where`.
        shares: Shares of the samples of the stream; several if a schedule changes the share.
        cost_shares: Shares of the cost of all datasets in the outermost blend by cost; empty without such a blend.
        seen_per_epoch: Times that an epoch has each sample, on average over epochs; None in an endless blend.
        seen_per_million: Times that a million positions have each sample, for each of `shares`.
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
        weights: Weights in its parent blend, one for each step of the schedule; empty without such a parent.
        repetitions: Repetitions in its parent epochized blend; None without such a parent.
        samples: Samples of all datasets below.
        shares: Shares of the stream of all datasets below.
        cost_shares: Shares of the cost of all datasets below.
        leaf: Number of the dataset in `leaves`; None for a combination.
        children: Children of a combination.
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
    """One split of a metadataset in training.

    Attributes:
        path: The file.
        split: The split.
        endless: Whether it is a blend by weights, which has no epochs.
        weight_unit: Unit of the weights of the outermost blends by cost, separated by commas; None: all weights are
            shares of samples.
        samples: Samples of all leaves.
        epoch_positions: Length of the first epoch; later epochs of an epochized blend can differ by a few positions.
            None if it is endless.
        tree: The root.
        leaves: The datasets in document order.
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
    split_ratio: str | None = None,
    trusted_modules: Collection[str] = (),
) -> tuple[MixtureSummary, StreamSpec]:
    """Describe one split of a metadataset as `get_train_dataset` reads it. The spec holds its order.

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
        split_ratio=split_ratio,
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
    """Return the share of the stream that each leaf gets, from each position on: exact fractions that add up to 1.

    Weights are shares; a concat in a blend divides its share in proportion to the lengths of its leaves. Without
    weights, the share of a leaf is its share of an epoch: repetitions times length.
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
    """The outermost blends whose weights are shares of a cost: the cost, and the numbers of the leaves below."""
    if isinstance(tree, BlendDataset) and tree.weight_unit is not None:
        yield tree.weight_unit, slice(first, first + _count_leaves(tree))
        return
    for child in children_of(tree):
        yield from _blends_by_cost(child, first)
        first += _count_leaves(child)


def _count_leaves(tree: SavableDataset) -> int:
    return sum(map(_count_leaves, children_of(tree))) or 1


def _drawn(spec: StreamSpec, sizes: Sequence[int], starts: Sequence[int]) -> list[Course]:
    """The estimated share of the samples that each leaf gets in blends by cost, from each start on."""
    before = [leaf_draws(spec.mixture, sizes, start) for start in starts]
    behind = [leaf_draws(spec.mixture, sizes, stop) for stop in (*starts[1:], starts[-1] + MILLION)]
    drawn = [[late - early for early, late in zip(*both, strict=True)] for both in zip(before, behind, strict=True)]
    return [_course(starts, [Fraction(row[leaf] / sum(row)) for row in drawn]) for leaf in range(len(sizes))]


def _costs(leaves: Sequence[LeafSpec], unit: Expression, courses: Sequence[Course]) -> list[Course]:
    """The share of the cost that each leaf gets, by the mean cost of its first million samples."""
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
    """The shortest distinct label of each leaf. The label of a join names all its members."""
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
    """Summarize a node. `leaves` holds the shares of samples and of cost, and the samples; its own begin at `first`."""
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
    """The sum of the shares of several leaves; empty if any leaf has none."""
    if len(courses) == 1 or not all(courses):
        return courses[0] if len(courses) == 1 else ()
    starts = sorted({start for course in courses for start, _ in course})
    return changes((start, sum((share_at(course, start) for course in courses), Fraction(0))) for start in starts)


def _shares(course: Course) -> tuple[Share, ...]:
    return tuple(Share(from_position=start, share=float(share), exact=str(share)) for start, share in course)


def mixture_lines(summary: MixtureSummary) -> list[str]:
    """Lay out a summary as a table, with the tree in the first column."""
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
    """The rows of a table without empty columns of weights and costs."""
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
    return f"{datasets}, {summary.epoch_positions:,} positions per epoch"


def _rows(summary: MixtureSummary, node: NodeSummary, first: str, further: str) -> Iterator[tuple[str, ...]]:
    """Rows of a node and its descendants; `first` and `further` are drawn before its label and before its children."""
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
    """Values that change along the stream; if there are many, the first ones and the last."""
    shown = [*texts[:2], "…", texts[-1]] if len(texts) > 4 else texts
    return " → ".join(shown)
