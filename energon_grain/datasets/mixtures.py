# SPDX-License-Identifier: Apache-2.0
"""Mixtures: blend by weights, blend by repetitions, and concatenation.

Also the arguments of a task encoder's builders: the datasets of a metadataset, and how to combine them.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from energon_grain.datasets.dataset import SavableDataset, check_dataset, put
from energon_grain.datasets.lowering import IndexPart, LanePart, LeafPart, Lowering, Part
from energon_grain.errors import ConfigError
from energon_grain.samplers.blend import Blend, StepBlend
from energon_grain.samplers.epochized_blend import EpochizedBlend
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.routing import Concat, Router, RouteTree
from energon_grain.samplers.weights import Anchor, LaneStart, Smooth
from energon_grain.stream.extensions import BLEND_BY_COST, extension
from energon_grain.stream.index_map import EqualPasses
from energon_grain.stream.lanes import Item, Items, Lane, LaneOperator, Reference, State
from energon_grain.stream.state import Form, Number, OneOf
from energon_grain.stream.worker_config import WorkerConfig

Weight = int | float | Fraction
Weighted = tuple[SavableDataset, Weight] | SavableDataset
_LABELS_AHEAD = 64


@dataclass(frozen=True, slots=True)
class AmendedAt:
    """Start of the segment of an amendment: a round of each lane, see `Lowering.begins`.

    Attributes:
        number: Number of the amendment in its run.
        smooth: Whether it carries on the divisions of the segment before it, see `samplers.blend`.
    """

    number: int
    smooth: bool = False


@dataclass(frozen=True, slots=True, init=False)
class BlendDataset(SavableDataset):
    """An endless mixture: each child receives its exact share of positions and is repeated forever.

    A weight counts attempted positions, not accepted samples: dropped samples reduce the share of their dataset.

    Args:
        *dataset_weights: (dataset, weight) pairs, or one iterable of pairs; weights above 0, with any sum.
        schedule: Replaces the weights: `[(from_position, weights), …]`, from position 0 on. Weight 0 pauses a child.
        weight_unit: Unit of the shares. Default: the number of samples. A column of all children (`"tokens"`), or
            arithmetic of columns (`"bytes.jpg + 40 * tokens"`), uses the sum of that value over samples. In every
            prefix, no child is further from its share than the largest single item. The order of the children must be
            known without their data: filters, groups, batches and packs go above the blend.
        per_step: Choose one child for a whole global step instead of one per item. All hosts' items of a step then come
            from one child, and their shapes agree. A number above 1 chooses for that many consecutive items.
        worker_config: Default: the configuration of the first child.

    Raises:
        ConfigError: There is no child, one is not a dataset, or the weights are invalid.
    """

    datasets: tuple[SavableDataset, ...]
    schedule: tuple[tuple[int, tuple[Weight, ...]], ...]
    per_step: bool | int
    weight_unit: Expression | None

    def __init__(
        self,
        *dataset_weights: Weighted | Iterable[Weighted],
        schedule: Sequence[tuple[int, Sequence[Weight]]] | None = None,
        per_step: bool | int = False,
        weight_unit: str | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        datasets, weights = _pairs(self, "weight", dataset_weights)
        unit = None if weight_unit is None else Expression.parse(str(weight_unit), where="BlendDataset: weight_unit")
        if unit is not None and per_step:
            raise ConfigError(
                f"BlendDataset: per_step={per_step!r} with weight_unit={weight_unit!r}: a step from one dataset cannot "
                f"have exact shares by cost at every item; remove one of them"
            )
        if per_step < 0:
            raise ConfigError(f"BlendDataset: per_step={per_step}: expected True, False or a number of items")
        if schedule is None:
            _check_numbers(self, "weight", weights)
            steps = ((0, weights),)
        else:
            steps = tuple((_position(start), tuple(weights)) for start, weights in schedule)
            _check_schedule(steps, len(datasets))
        put(self, datasets=datasets, worker_config=worker_config or datasets[0].worker_config)
        put(self, schedule=steps, per_step=per_step, weight_unit=unit)

    def lower(self, to: Lowering) -> Part:
        """See `SavableDataset.lower`. Above filters it counts items, for exact shares of the remaining samples."""
        if self.weight_unit is not None:
            parts = to.children(self.datasets, endless=True)
            return extension(BLEND_BY_COST)(to, parts, self.schedule, self.weight_unit)
        router, width = self._router(to)
        nested = any(not hasattr(dataset, "identity") for dataset in self.datasets)  # leaves need no rounds
        parts = to.children(self.datasets, endless=True, counts_at=router.counts_at if nested else None)
        weights, starts = router.weights, router.starts
        if to.begins:
            weights, starts = weights[-1:], (0,)
        mixture: dict[str, Any] = {
            "blend": [list(map(list, weights)), list(starts)],
            "of": _mixtures(parts),
        }
        if width:
            mixture["per_step"] = width
        batches = _batched(parts)
        if batches and not width:
            to.graph.ragged = True
        arithmetic = _arithmetic(parts)
        if len(arithmetic) == len(parts):
            return _endless(arithmetic, router, mixture)
        blend = BlendLanes(
            parts=tuple(to.operator(part, stripe=1, endless=True) for part in parts),
            router=router,
            lanes=to.lanes,
            shares=tuple(weight / sum(weights[0]) for weight in weights[0]),
        )
        return LanePart(blend, mixture, batches)

    def _router(self, to: Lowering) -> tuple[Blend | StepBlend, int]:
        """Return the router, and the number of items that share a choice (0: one choice per item)."""
        lanes, width = to.lanes, self._width(to)
        key = fold(to.seed, "blend", to.place)
        if width <= 1:
            return Blend(
                [(_start(start, to), list(weights)) for start, weights in self.schedule], lanes=lanes, key=key
            ), 0
        uneven = [start for start, _ in self.schedule if not to.begins and start % width]
        if uneven:
            raise ConfigError(
                f"BlendDataset: the schedule changes at {uneven}, inside a step of {width} items: start segments at "
                f"multiples of {width}"
            )
        schedule = [(_start(start, to, width), list(weights)) for start, weights in self.schedule]
        return StepBlend(Blend(schedule, lanes=lanes // width, key=key), width=width), width

    def _width(self, to: Lowering) -> int:
        lanes, hosts = to.lanes, to.hosts
        width = hosts if self.per_step is True else int(self.per_step)
        if width and (lanes % width or width % hosts):
            raise ConfigError(
                f"BlendDataset: per_step={self.per_step!r} chooses for {width} items at once, with {hosts} hosts and "
                f"{lanes} lanes. It must be a multiple of the number of hosts and divide the lanes: set per_step to "
                f"the largest number of hosts that the run will use, and lanes to a multiple of it"
            )
        return width


@dataclass(frozen=True, slots=True, init=False)
class BlendEpochizedDataset(SavableDataset):
    """A finite mixture: an epoch contains every sample of each child exactly as often as its repetitions.

    Fractions continue at the end of the last epoch: with 0.7 repetitions of 55 samples, an epoch contains 38 or 39 of
    them, and after ten epochs each was seen 7 times.

    Args:
        *dataset_repetitions: (dataset, repetitions) pairs, or one iterable of pairs; above 0. Write fractions as
            `fractions.Fraction` or as decimal numbers, which are taken as written.
        worker_config: Default: the configuration of the first child.

    Raises:
        ConfigError: There is no child, one is not a dataset, or a number is not above 0.
    """

    datasets: tuple[SavableDataset, ...]
    repetitions: tuple[Weight, ...]

    def __init__(
        self,
        *dataset_repetitions: Weighted | Iterable[Weighted],
        worker_config: WorkerConfig | None = None,
    ) -> None:
        datasets, repetitions = _pairs(self, "repetitions", dataset_repetitions)
        _check_numbers(self, "repetitions", repetitions)
        config = worker_config or datasets[0].worker_config
        put(self, datasets=datasets, repetitions=repetitions, worker_config=config)

    def lower(self, to: Lowering) -> Part:
        parts: list[IndexPart] = []
        for part in to.children(self.datasets):
            if not isinstance(part, IndexPart):
                raise ConfigError(
                    "BlendEpochizedDataset: one of the datasets generates, groups, batches or packs, so its length is "
                    "unknown in advance. Blend by repetitions first and pack (or batch) the blend, or use a "
                    "BlendDataset by weights"
                )
            parts.append(part)
        lengths = [part.equal_length("a blend by repetitions") for part in parts]
        key = fold(to.seed, "blend_epochized", to.place)
        router = EpochizedBlend(lengths, self.repetitions, lanes=to.lanes, key=key)
        return IndexPart(
            leaves=_leaves(parts),
            routes=RouteTree(router, [part.routes for part in parts]),
            passes=router,
            mixture={
                "blend_epochized": [str(number) for number in self.repetitions],
                "of": _mixtures(parts),
            },
            drops=any(part.drops for part in parts),
            batches=_batched(parts),
        )


@dataclass(frozen=True, slots=True, init=False)
class ConcatDataset(SavableDataset):
    """Concatenates finite datasets.

    Args:
        *datasets: Datasets in order, or one iterable of them. (dataset, weight) pairs, as passed to
            `build_val_datasets`, count as their dataset.
        worker_config: Default: the configuration of the first dataset.

    Raises:
        ConfigError: There is no dataset, or an argument is not one.
    """

    datasets: tuple[SavableDataset, ...]

    def __init__(self, *datasets: Weighted | Iterable[Weighted], worker_config: WorkerConfig | None = None) -> None:
        parts, _ = _pairs(self, "weight", datasets)
        put(self, datasets=parts, worker_config=worker_config or parts[0].worker_config)

    def lower(self, to: Lowering) -> Part:
        parts = to.children(self.datasets)
        mixture = {"concat": len(parts), "of": _mixtures(parts)}
        batches = _batched(parts)
        if len(parts) > 1 and batches:
            to.graph.ragged = True
        arithmetic = [p for p in parts if isinstance(p, IndexPart) and isinstance(p.passes, EqualPasses | None)]
        if len(arithmetic) == len(parts):
            return _concatenated(arithmetic, mixture)
        operators = tuple(to.operator(part, endless=False) for part in parts)
        if not all(operator.finite for operator in operators):
            raise ConfigError(
                "a concatenation takes finite datasets, but one of them is endless (a blend by weights, or repeated)"
            )
        return LanePart(ConcatLanes(operators), mixture, batches)


def amended_blend(
    blend: BlendDataset,
    datasets: tuple[SavableDataset, ...],
    schedule: tuple[tuple[int | AmendedAt | Anchor, tuple[Weight, ...]], ...],
) -> BlendDataset:
    """Return the same blend over a whole run: all children that it ever had, and the weights of each segment."""
    amended = copy.copy(blend)
    put(amended, datasets=datasets, schedule=schedule)
    return amended


def _start(start: int | AmendedAt | Anchor, to: Lowering, width: int = 1) -> LaneStart:
    """Return the start of a segment, for a blend that chooses once for `width` positions."""
    if isinstance(start, AmendedAt):
        rounds = StepBlend.shared_rounds(to.begins[start.number], width)
        return Smooth(rounds) if start.smooth else rounds
    if isinstance(start, Anchor):
        return replace(start, earlier=[(_start(each, to, width), weights) for each, weights in start.earlier])
    return start // width


def _endless(parts: Sequence[IndexPart], router: Router, mixture: dict[str, Any]) -> IndexPart:
    """Return an endless mixture as an index map."""
    return IndexPart(
        leaves=_leaves(parts),
        routes=RouteTree(router, [part.routes for part in parts]),
        passes=None,
        mixture=mixture,
        batches=_batched(parts),
        one_pass=sum(part.items() for part in parts),
    )


def _concatenated(parts: Sequence[IndexPart], mixture: dict[str, Any]) -> IndexPart:
    lengths = [part.equal_length("a concatenation") for part in parts]
    return IndexPart(
        leaves=_leaves(parts),
        routes=RouteTree(Concat(lengths), [part.routes for part in parts]),
        passes=EqualPasses(sum(lengths)),
        mixture=mixture,
        drops=any(part.drops for part in parts),
        same_pass=all(part.same_pass for part in parts),
        batches=_batched(parts),
    )


def _arithmetic(parts: Sequence[Part]) -> list[IndexPart]:
    """Return the parts whose positions are items."""
    return [part for part in parts if isinstance(part, IndexPart) and not part.drops]


def _mixtures(parts: Sequence[Part]) -> list[Any]:
    return [part.mixture for part in parts]


def _batched(parts: Sequence[Part]) -> bool:
    return any(part.batches for part in parts)


def _leaves(parts: Sequence[IndexPart]) -> list[LeafPart]:
    return [leaf for part in parts for leaf in part.leaves]


def _pairs(
    node: SavableDataset, second: str, entries: tuple[Any, ...]
) -> tuple[tuple[SavableDataset, ...], tuple[Weight, ...]]:
    """Return the datasets, and the number of each (1 by default)."""
    # No object of this library is a list of datasets: a loader, for example, is endless and is rejected below.
    ours = type(entries[0]).__module__.startswith("energon_grain") if entries else True
    if len(entries) == 1 and isinstance(entries[0], Iterable) and not ours:
        inside: tuple[Any, ...] = tuple(entries[0])
        if all(isinstance(each, SavableDataset | tuple) for each in inside):
            entries = inside
    if not entries:
        raise ConfigError(f"{type(node).__name__}: got nothing to combine; pass datasets, or (dataset, {second}) pairs")
    datasets: list[SavableDataset] = []
    numbers: list[Weight] = []
    for entry in entries:
        dataset, number = _pair(node, second, entry)
        check_dataset(node, dataset)
        datasets.append(dataset)
        numbers.append(number)
    return tuple(datasets), tuple(numbers)


def _pair(node: SavableDataset, second: str, entry: Any) -> tuple[Any, Any]:
    if not isinstance(entry, tuple):
        return entry, 1
    if len(entry) != 2:  # type: ignore[arg-type]
        raise ConfigError(f"{type(node).__name__}: {entry!r}: expected a dataset, or a (dataset, {second}) pair")
    return entry[0], entry[1]  # type: ignore[return-value]


def _check_numbers(node: SavableDataset, name: str, numbers: Sequence[Weight]) -> None:
    for place, number in enumerate(numbers):
        if not _is_number(number) or number <= 0:
            raise ConfigError(
                f"{type(node).__name__}: {name} of dataset {place} is {number!r}: expected a number above 0"
            )


def _position(start: int) -> int:
    try:
        return operator.index(start)
    except TypeError:
        raise ConfigError(
            f"BlendDataset: a segment of the schedule starts at {start!r}: expected a whole number of positions, "
            f"such as 1_000_000 for 1e6"
        ) from None


def _check_schedule(steps: Sequence[tuple[int, tuple[Weight, ...]]], children: int) -> None:
    starts = [start for start, _ in steps]
    if not starts or starts[0] != 0 or any(late <= early for early, late in pairwise(starts)):
        raise ConfigError(f"BlendDataset: a schedule must start at position 0 and ascend, but its starts are {starts}")
    for start, weights in steps:
        _check_weights(start, weights, children)
    for place, weights in enumerate(zip(*(weights for _, weights in steps), strict=True)):
        if not any(weights):
            raise ConfigError(
                f"BlendDataset: weight {place} is 0 in every segment, so its dataset is never used: remove it"
            )


def _check_weights(start: int, weights: tuple[Weight, ...], children: int) -> None:
    if len(weights) != children:
        raise ConfigError(f"BlendDataset: {children} datasets, but {len(weights)} weights from position {start} on")
    if not all(_is_number(weight) and weight >= 0 for weight in weights):
        raise ConfigError(
            f"BlendDataset: weights {list(weights)} from position {start} on: each weight must be 0 or more"
        )
    if not any(weights):
        raise ConfigError(
            f"BlendDataset: all weights from position {start} on are 0; give one dataset a weight above 0"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


@dataclass(frozen=True, slots=True, eq=False)
class _OverSeveral(LaneOperator):
    """Common base of operators over several children. A reference is (number of the child, its reference)."""

    chooses: ClassVar[bool] = True
    parts: tuple[LaneOperator, ...]

    @property
    def reference_form(self) -> Form:
        return OneOf(tuple(part.reference_form for part in self.parts))

    def number(self, reference: Reference) -> int:
        return fold(self.parts[reference[0]].number(reference[1]), reference[0])

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        return self.parts[reference[0]].rebuild(reference[1], lane)

    @property
    def children(self) -> tuple[LaneOperator, ...]:
        return self.parts

    def items(self) -> int:
        return sum(part.items() for part in self.parts)


@dataclass(frozen=True, slots=True, eq=False)
class BlendLanes(_OverSeveral):
    """An endless blend of items: the router assigns round r of a lane to a child, regardless of drops.

    The items of each child are delivered in order. A child whose pass ends starts the next one.

    Attributes:
        router: A `Blend`, from positions `r * L + lane` to children.
        shares: Fraction of the items of each child, for prefetching.
    """

    router: Router
    lanes: int
    shares: tuple[float, ...]

    @property
    def finite(self) -> bool:
        return False

    def open(self, lane: Lane, state: State | None) -> Items:
        rounds, places = (0, ((0, None),) * len(self.parts)) if state is None else state
        first = lane.at_pass(0)
        children = [part.open(first, below) for part, (_, below) in zip(self.parts, places, strict=True)]
        return _Blend(self, lane, children, rounds, [pass_number for pass_number, _ in places])

    @property
    def state_form(self) -> Form:
        """Rounds, and the pass and state of each child."""
        return Number(), tuple((Number(), part.state_form) for part in self.parts)

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        return self.parts[reference[0]].rebuild(reference[1], lane.at_pass(0))


class _Blend:
    __slots__ = ("_children", "_first", "_labels", "_lane", "_node", "_passes", "_places", "_rounds")

    def __init__(self, node: BlendLanes, lane: Lane, children: list[Items], rounds: int, passes: list[int]) -> None:
        self._node = node
        self._lane = lane
        self._children = children
        self._rounds = rounds
        self._passes = passes
        self._first = 0
        self._labels: list[int] = []
        self._places = [(passed, child.state()) for passed, child in zip(passes, children, strict=True)]

    def next(self) -> Item | None:
        place = self._rounds - self._first
        if not 0 <= place < len(self._labels):
            self._first, place = self._rounds, 0
            rounds = np.arange(self._rounds, self._rounds + _LABELS_AHEAD)
            self._labels = self._node.router.route(rounds * self._node.lanes + self._lane.number)[0].tolist()
        label = self._labels[place]
        child = self._children[label]
        while (item := child.next()) is None:
            self._lane.count_pass()
            self._passes[label] += 1
            child.begin(self._passes[label])
        self._rounds += 1
        self._places[label] = self._passes[label], child.state()
        return (label, item[0]), item[1]

    def begin(self, pass_number: int) -> None:
        del pass_number

    def state(self) -> State:
        return self._rounds, tuple(self._places)

    def expect(self, items: float) -> None:
        for child, share in zip(self._children, self._node.shares, strict=True):
            child.expect(items * share)


@dataclass(frozen=True, slots=True, eq=False)
class ConcatLanes(_OverSeveral):
    """Finite children, concatenated in each lane."""

    @property
    def finite(self) -> bool:
        return True

    def open(self, lane: Lane, state: State | None) -> Items:
        at, pass_number, below = (0, lane.pass_number, (None,) * len(self.parts)) if state is None else state
        children = [part.open(lane, child) for part, child in zip(self.parts, below, strict=True)]
        return _Concat(children, at, pass_number)

    @property
    def state_form(self) -> Form:
        """Number of the current child, the pass, and the state of each child."""
        return Number(len(self.parts)), Number(), tuple(part.state_form for part in self.parts)


class _Concat:
    __slots__ = ("_at", "_children", "_pass", "_states")

    def __init__(self, children: list[Items], at: int, pass_number: int) -> None:
        self._children = children
        self._at = at
        self._pass = pass_number
        self._states: list[State] = [child.state() for child in children]

    def next(self) -> Item | None:
        while True:
            item = self._children[self._at].next()
            self._states[self._at] = self._children[self._at].state()
            if item is not None:
                return (self._at, item[0]), item[1]
            if self._at + 1 == len(self._children):
                return None
            self._at += 1
            self._children[self._at].begin(self._pass)

    def begin(self, pass_number: int) -> None:
        self._pass = pass_number
        self._at = 0
        self._children[0].begin(pass_number)
        self._states[0] = self._children[0].state()

    def state(self) -> State:
        return self._at, self._pass, tuple(self._states)

    def expect(self, items: float) -> None:
        for number, child in enumerate(self._children):
            child.expect(items if number == self._at else 0)


Schedule = Sequence[tuple[int, Sequence[Weight]]]


class DatasetBlendMode(Enum):
    """The meaning of the numbers in `LoadedDataset` pairs."""

    NONE = "none"
    """No meaning: a single dataset."""
    DATASET_WEIGHT = "dataset_weight"
    """Weights of an endless blend."""
    SAMPLE_REPETITIONS = "sample_repetitions"
    """Occurrences of each sample in an epoch."""


class LoadedDataset(tuple[SavableDataset, Weight]):
    """A (dataset, number) pair for `BlendDataset` and `BlendEpochizedDataset`, with its origin.

    Attributes:
        dataset: A leaf, or a mixture if a metadataset nests nodes other than blends (`concat`).
        weight: Its weight in a blend as a float, as in Energon; the pair holds the exact value. None in other modes.
        repetitions: Its repetitions in an epochized blend; None in other modes.
        subflavors: Tags of a leaf's samples, without those of its own `dataset.yaml`; empty for a mixture.
        path: Folder of a leaf; None for a mixture, as are the next two.
        split_part: Split part of a leaf.
        name: The leaf's identity in the random order, if the metadataset sets one.
        combined_at: Position of the blend in its file, for messages; empty if there is none.
    """

    weight: float | None
    repetitions: Weight | None
    subflavors: Mapping[str, Any]
    path: str | None
    split_part: str | None
    name: str | None
    combined_at: str

    def __new__(
        cls,
        dataset: SavableDataset,
        weight: Weight | None = None,
        *,
        repetitions: Weight | None = None,
        subflavors: Mapping[str, Any] | None = None,
        path: str | None = None,
        split_part: str | None = None,
        name: str | None = None,
        combined_at: str = "",
    ) -> LoadedDataset:
        """Make a pair of the dataset and its weight, its repetitions, or 1."""
        number = weight if weight is not None else repetitions if repetitions is not None else 1
        made = super().__new__(cls, (dataset, number))
        made.weight = None if weight is None else float(weight)
        made.repetitions = repetitions
        made.subflavors = subflavors or {}
        made.path = path
        made.split_part = split_part
        made.name = name
        made.combined_at = combined_at
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    @property
    def dataset(self) -> SavableDataset:
        """The dataset: the first element of the pair."""
        return self[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedDatasets:
    """The datasets at the top of a metadataset.

    Attributes:
        datasets: At least one.
        blend_mode: How they are combined.
            schedule: (from_position, one weight per dataset) of each segment, if weights change over time.
    """

    datasets: list[LoadedDataset]
    blend_mode: DatasetBlendMode
    schedule: Schedule | None = None
