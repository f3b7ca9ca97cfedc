# SPDX-License-Identifier: Apache-2.0
"""Several datasets in one stream: blend by weights, blend by repetitions, one after the other.

And what a task encoder's builders get: the datasets of a metadataset, and how it says to combine them.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.dataset import SavableDataset, check_dataset, put
from energon_grain.datasets.lowering import IndexPart, LanePart, LeafPart, Lowering, Part
from energon_grain.errors import ConfigError
from energon_grain.samplers.blend import Blend, StepBlend
from energon_grain.samplers.epochized_blend import EpochizedBlend
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.routing import Concat, Router, RouteTree
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
    """Where the segment of an amendment begins: at a round of each lane, see `Lowering.begins`.

    Attributes:
        number: Of the amendment in its run.
    """

    number: int


@dataclass(frozen=True, slots=True, init=False)
class BlendDataset(SavableDataset):
    """An endless mixture: each child gets its share of positions, exactly, and is repeated for ever.

    A weight counts positions that are attempted, not samples that are accepted: samples that are dropped lower the
    share of their dataset.

    Args:
        *dataset_weights: (dataset, weight) for each child, or one iterable of them; weights above 0, of any sum.
        schedule: In place of the weights: `[(from_position, weights), …]`, beginning at position 0 of this blend. A
            weight of 0 pauses a child.
        weight_unit: What weights are shares of: by default the number of samples; with a column of all children
            (`"tokens"`), or arithmetic of columns (`"bytes.jpg + 40 * tokens"`), the sum of that over samples. At every
            prefix no child is further from its share than the largest single item. Children are datasets whose order
            is known without their data: what filters, groups, batches or packs goes above the blend.
        per_step: Choose the child once for a whole global step in place of once for each item, so that all hosts' items
            of a step are of one child and their shapes agree; a number above 1 is that many consecutive items, in
            place of a step's.
        worker_config: Default: that of the first child.

    Raises:
        ConfigError: There is no child, one is not a dataset, or weights are not as described.
    """

    datasets: tuple[SavableDataset, ...]
    schedule: tuple[tuple[int | AmendedAt, tuple[Weight, ...]], ...]
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
                f"BlendDataset: per_step={per_step!r} with weight_unit={weight_unit!r}: a step cannot be of one "
                f"dataset and shares by cost exact at every item; leave one of them out"
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
        """See `SavableDataset.lower`. Above filters it counts items, so that shares are exact in what is left."""
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

    def amended(
        self, datasets: tuple[SavableDataset, ...], schedule: tuple[tuple[int | AmendedAt, tuple[Weight, ...]], ...]
    ) -> BlendDataset:
        """The same blend over a whole run: all children that it ever had, and the weights of each segment."""
        blend = copy.copy(self)
        put(blend, datasets=datasets, schedule=schedule)
        return blend

    def _router(self, to: Lowering) -> tuple[Blend | StepBlend, int]:
        """The arithmetic, and how many items share a choice (0: each has its own)."""
        lanes, width = to.lanes, self._width(to)
        key = fold(to.seed, "blend", to.place)
        if width <= 1:
            return Blend(
                [(_start(start, to), list(weights)) for start, weights in self.schedule], lanes=lanes, key=key
            ), 0
        uneven = [start for start, _ in self.schedule if isinstance(start, int) and start % width]
        if uneven:
            raise ConfigError(
                f"BlendDataset: the schedule changes at {uneven}, inside a step of {width} items: begin segments "
                f"at multiples of it"
            )
        schedule = [(_start(start, to, width), list(weights)) for start, weights in self.schedule]
        return StepBlend(Blend(schedule, lanes=lanes // width, key=key), width=width), width

    def _width(self, to: Lowering) -> int:
        lanes, hosts = to.lanes, to.hosts
        width = hosts if self.per_step is True else int(self.per_step)
        if width and (lanes % width or width % hosts):
            raise ConfigError(
                f"BlendDataset: per_step={self.per_step!r} is {width} items a choice, with {hosts} hosts and {lanes} "
                f"lanes: it must be a multiple of the number of hosts and divide the lanes. Give per_step=<the largest "
                f"number of hosts that the run shall continue on> and a multiple of it as lanes="
            )
        return width


@dataclass(frozen=True, slots=True, init=False)
class BlendEpochizedDataset(SavableDataset):
    """A finite mixture: an epoch has every sample of each child as often as its repetitions say, exactly.

    Fractions go on where the last epoch ended: with 0.7 repetitions of 55 samples an epoch has 38 or 39 of them, and
    after ten epochs each was seen 7 times.

    Args:
        *dataset_repetitions: (dataset, repetitions) for each child, or one iterable of them; above 0. Give fractions
            as `fractions.Fraction` or decimal numbers, which count as they are written.
        worker_config: Default: that of the first child.

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
                    "not known beforehand: blend by repetitions first, and pack (or batch) the blend; or use a "
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
    """Finite datasets one after the other.

    Args:
        *datasets: In order, or one iterable of them; of a (dataset, weight) pair, as `build_val_datasets` gets them,
            the dataset.
        worker_config: Default: that of the first one.

    Raises:
        ConfigError: There is no dataset, or one is something else.
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


def _start(start: int | AmendedAt, to: Lowering, width: int = 1) -> int | npt.NDArray[np.int64]:
    """Where a segment begins, for a blend that chooses once for `width` positions."""
    if isinstance(start, AmendedAt):
        return StepBlend.shared_rounds(to.begins[start.number], width)
    return start // width


def _endless(parts: Sequence[IndexPart], router: Router, mixture: dict[str, Any]) -> IndexPart:
    """A mixture without an end, by arithmetic alone."""
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
    """Those whose positions are items."""
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
    """The datasets, and the number of each; 1 where there is none."""
    # Of ours nothing is a list of datasets: a loader, say, which has no end, is refused below.
    ours = type(entries[0]).__module__.startswith("energon_grain") if entries else True
    if len(entries) == 1 and isinstance(entries[0], Iterable) and not ours:
        inside: tuple[Any, ...] = tuple(entries[0])
        if all(isinstance(each, SavableDataset | tuple) for each in inside):
            entries = inside
    if not entries:
        raise ConfigError(
            f"{type(node).__name__}: there is nothing to combine; pass datasets, or (dataset, {second}) pairs"
        )
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
            f"BlendDataset: a schedule's segments begin at positions, but one of this begins at {start!r}: expected a "
            f"whole number, such as 1_000_000 for 1e6"
        ) from None


def _check_schedule(steps: Sequence[tuple[int, tuple[Weight, ...]]], children: int) -> None:
    starts = [start for start, _ in steps]
    if not starts or starts[0] != 0 or any(late <= early for early, late in pairwise(starts)):
        raise ConfigError(f"BlendDataset: a schedule begins at position 0 and ascends, but this one is from {starts}")
    for start, weights in steps:
        _check_weights(start, weights, children)
    for place, weights in enumerate(zip(*(weights for _, weights in steps), strict=True)):
        if not any(weights):
            raise ConfigError(
                f"BlendDataset: weight {place} is 0 in every segment: it would never be drawn; leave it out"
            )


def _check_weights(start: int, weights: tuple[Weight, ...], children: int) -> None:
    if len(weights) != children:
        raise ConfigError(f"BlendDataset: {children} datasets and {len(weights)} weights from {start} on")
    if not all(_is_number(weight) and weight >= 0 for weight in weights):
        raise ConfigError(f"BlendDataset: weights {list(weights)} from {start} on: expected 0 or more for each")
    if not any(weights):
        raise ConfigError(f"BlendDataset: all weights from {start} on are 0; give one dataset a weight above 0")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


@dataclass(frozen=True, slots=True, eq=False)
class _OfSeveral(LaneOperator):
    """What operators over several have in common. A reference is (number of the child, its reference)."""

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
class BlendLanes(_OfSeveral):
    """An endless blend of items: round r of a lane is for the child that the router names, whatever that drops.

    Each child's items are handed out in order; a child whose pass ends begins the next one.

    Attributes:
        router: A `Blend`, from positions `r * L + lane` to children.
        shares: Fraction of the items that each child gets, for reading ahead.
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
        """Rounds, and pass and state of each child."""
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
class ConcatLanes(_OfSeveral):
    """The children, finite ones, one after the other, in each lane by itself."""

    @property
    def finite(self) -> bool:
        return True

    def open(self, lane: Lane, state: State | None) -> Items:
        at, pass_number, below = (0, lane.pass_number, (None,) * len(self.parts)) if state is None else state
        children = [part.open(lane, child) for part, child in zip(self.parts, below, strict=True)]
        return _Concat(children, at, pass_number)

    @property
    def state_form(self) -> Form:
        """Number of the present child, pass, and the state of each child."""
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
    """How the numbers of `LoadedDataset`s are meant."""

    NONE = "none"
    """There are none: a single dataset."""
    DATASET_WEIGHT = "dataset_weight"
    """Weights of an endless blend."""
    SAMPLE_REPETITIONS = "sample_repetitions"
    """How often an epoch has each sample."""


class LoadedDataset(tuple[SavableDataset, Weight]):
    """A (dataset, number) pair, as `BlendDataset` and `BlendEpochizedDataset` take it, with what it comes from.

    Attributes:
        dataset: A leaf; or a mixture, where a metadataset nests other nodes than blends (`concat`).
        weight: Its weight in a blend as a float, as in Energon; the pair has it exactly. None in other modes.
        repetitions: Its repetitions in an epochized blend; None in other modes.
        subflavors: Tags of a leaf's samples, without those of its own `dataset.yaml`; empty for a mixture.
        path: Folder of a leaf; None for a mixture. So are:
        split_part: The part that is read.
        name: The leaf's identity in the random order, where the metadataset gives one.
        combined_at: Place of the blend in its file, for messages; empty where there is none.
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
        """Make a pair of the dataset and its weight, or its repetitions, or 1."""
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
        """The first of the pair."""
        return self[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedDatasets:
    """The datasets at the top of a metadataset.

    Attributes:
        datasets: At least one.
        blend_mode: How they are combined.
        schedule: (from_position, a weight for each dataset) of each segment, where weights change on the way.
    """

    datasets: list[LoadedDataset]
    blend_mode: DatasetBlendMode
    schedule: Schedule | None = None
