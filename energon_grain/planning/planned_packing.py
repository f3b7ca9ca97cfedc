# SPDX-License-Identifier: Apache-2.0
"""Packs that are planned from columns, before samples are read and assigned to hosts.

`PackingDataset` selects from samples that a lane has read. This node selects by costs, which the index holds: every
host plans the same packs, pack q belongs to host q mod hosts, and any number of hosts works.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from energon_grain.datasets.dataset import OF_DATASET, SavableDataset, check_function, node, put, settle
from energon_grain.datasets.hooks import HookOwner, hook_spec, with_own_name
from energon_grain.datasets.lowering import IndexPart, LanePart, Lowering, Part
from energon_grain.errors import ConfigError, public
from energon_grain.planning.costs import PARTS_OF_ONE, Costs, CostsOfStream
from energon_grain.planning.pack_plan import PATIENCE, Oversize, OversizeSample, WindowPacks, plan_packs
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.fold import Carry, Fold, SavedCarries
from energon_grain.samplers.hashing import fold
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.index_map import PASS_BITS, Draws, IndexMap, Int64Array, Items
from energon_grain.stream.spec import ItemSpec, LastBatch
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.task_encoder import TaskEncoder, mapped, overridden_hook, owner_of_hook, owner_of_hooks

_logger = logging.getLogger("energon_grain")
_FOLDS_KEPT = 4
_DEFAULT_WINDOW = 16_384
_NO_POSITIONS = np.empty(0, np.int64)


@public
@dataclass(frozen=True, slots=True, init=False)
class PackingPlan:
    """The capacities and rules of packs that are planned from columns, before samples are read.

    Args:
        costs: The column that limits a pack, or an expression over columns (`"tokens + 2"`); or several, each with its
            capacity: `{"tokens": 4096, "images": 8}`.
        capacity: Capacity of a pack, for a single cost.
        window: Samples of the order that are planned together. A larger window fills packs better, up to a point. The
            first batch waits for the plan of one window, and a sample moves by up to `window` positions.
        oversize: Handling of a sample larger than a pack. "error", the default, ends the run. "split" puts parts of it,
            by the first cost, into neighbouring packs; the packing hook receives the ranges (`ranges`). "drop" leaves
            it out without reading it. "alone" gives it its own pack over the capacity.
        max_samples: Maximum number of samples in a pack.

    Raises:
        ConfigError: An argument is invalid.
    """

    capacities: tuple[tuple[str, int], ...]
    window: int
    oversize: Oversize
    max_samples: int | None

    def __init__(
        self,
        costs: str | Mapping[str, int],
        capacity: int | None = None,
        *,
        window: int = _DEFAULT_WINDOW,
        oversize: Oversize = "error",
        max_samples: int | None = None,
    ) -> None:
        name = type(self).__name__
        if isinstance(costs, Mapping) == (capacity is not None) or not costs:
            raise ConfigError(
                f'{name}: got {costs!r} and {capacity!r}: expected one cost and its capacity, such as {name}("tokens", '
                f'4096), or several with their capacities: {name}({{"tokens": 4096, "images": 8}})'
            )
        pairs = list(costs.items()) if isinstance(costs, Mapping) else [(costs, capacity)]
        texts = [Expression.parse(text, where=name).text for text, _ in pairs]
        numbers = [_positive(name, f"capacity of {text}", limit) for text, (_, limit) in zip(texts, pairs, strict=True)]
        if oversize not in ("error", "split", "drop", "alone"):
            raise ConfigError(f"{name}: oversize={oversize!r}: expected 'error', 'split', 'drop' or 'alone'")
        most = None if max_samples is None else _positive(name, "max_samples", max_samples)
        capacities = tuple(zip(texts, numbers, strict=True))
        put(self, capacities=capacities, window=_positive(name, "window", window), oversize=oversize, max_samples=most)

    def described(self) -> str:
        """Describe the capacities of a pack in one line."""
        return ", ".join(f"{text} up to {capacity:,}" for text, capacity in self.capacities)

    def packed(self, encoder: TaskEncoder, dataset: SavableDataset, worker_config: WorkerConfig) -> SavableDataset:
        """Return the dataset in packs, made by `pack_selected_samples`. Raises ConfigError if the encoder has none."""
        name, pack = type(encoder).__name__, overridden_hook(encoder, "pack_selected_samples")
        if pack is None:
            raise ConfigError(
                f"packing={self!r}, but {name} has no pack_selected_samples: implement it to make one sample from the "
                "samples of a pack"
            )
        if overridden_hook(encoder, "select_samples_to_pack") is not None:
            _logger.warning(
                "%s.select_samples_to_pack is not called: packing=… plans packs from columns before samples are read. "
                "Use "
                "packing_buffer_size=… to let the hook choose",
                name,
            )
        return PlannedPackingDataset(
            mapped(encoder, dataset, "postencode_sample", worker_config),
            self,
            pack,
            task_encoder=owner_of_hooks(encoder, "pack_selected_samples"),
            worker_config=worker_config,
        )


@public
class CostBudget(PackingPlan):
    """A batch size as a budget: `batch_size=CostBudget("tokens", 65536)` fills each batch up to that total cost.

    Each batch of a host costs at most `budget`, and nearly as much. Batches are planned from columns, like packs, and
    are never padded. Arguments are those of `PackingPlan`, except that samples cannot be split.
    """

    __slots__ = ()

    def __init__(
        self,
        costs: str | Mapping[str, int],
        budget: int | None = None,
        *,
        window: int = _DEFAULT_WINDOW,
        oversize: Oversize = "error",
        max_samples: int | None = None,
    ) -> None:
        if oversize == "split":
            raise ConfigError("CostBudget: samples of a batch cannot be split: use oversize='error', 'drop' or 'alone'")
        PackingPlan.__init__(self, costs, budget, window=window, oversize=oversize, max_samples=max_samples)

    def batched(
        self, encoder: TaskEncoder, dataset: SavableDataset, last_batch: LastBatch | None, worker_config: WorkerConfig
    ) -> SavableDataset:
        """Return the dataset in batches, made by the encoder's `batch`. Raises ConfigError if that is impossible."""
        if overridden_hook(encoder, "batch_group_criterion") is not None:
            raise ConfigError(
                f"batch_size=CostBudget(…) with {type(encoder).__name__}.batch_group_criterion: both define the "
                f"batches. Use a number as batch_size, or remove the hook"
            )
        if last_batch == "pad":
            raise ConfigError(
                "last_batch='pad' with batch_size=CostBudget(…): batches by cost are never padded; use 'drop'"
            )
        return PlannedPackingDataset(
            dataset,
            self,
            owner_of_hook(encoder, "batch").batch,
            hook="batch",
            task_encoder=owner_of_hooks(encoder, "batch"),
            batches=True,
            worker_config=worker_config,
        )


@node
class PlannedPackingDataset(SavableDataset):
    """Packs that are planned from columns, one window of the order at a time, without reading data.

    Packs are delivered in a random order, and a sample moves by at most a few windows. The packs are the same on any
    number of hosts. A sample that a hook drops leaves a gap in its pack; a pack without samples is dropped.

    Args:
        dataset: Dataset to pack; its order must be known in advance (leaves, mixtures, maps and filters of single
            samples).
        plan: Capacities and rules of the packs.
        packer: Makes one sample from the samples of a pack, in order. If it has a parameter `ranges`, it receives
            (start, stop) for each sample: the units of its first cost that belong to this pack.
        hook: See `MapDataset`, also for `task_encoder` and `failure_tolerance`.
        batches: Whether the packs are batches of one host each.
        worker_config: Default: the configuration of the dataset.

    Raises:
        ConfigError: An argument is invalid.
    """

    dataset: SavableDataset
    plan: PackingPlan
    packer: Callable[..., Any]
    _: KW_ONLY
    hook: str = "pack_selected_samples"
    task_encoder: HookOwner | None = None
    failure_tolerance: int | None = None
    batches: bool = False
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self) -> None:
        plan: Any = self.plan
        if not isinstance(plan, PackingPlan):
            raise ConfigError(
                f"PlannedPackingDataset: plan={plan!r}: expected a plan, such as PackingPlan('tokens', capacity=4096)"
            )
        check_function(self, "packer", self.packer, generator=False)
        if plan.oversize == "split" and not _takes_ranges(self.packer):
            name = getattr(self.packer, "__qualname__", self.packer)
            raise ConfigError(
                f"{self.hook} ({name}) has no parameter `ranges`. With oversize='split' it receives ranges=[(start, "
                f"stop), …], one per sample: add the parameter and cut samples to their ranges"
            )
        settle(self, self.dataset)

    def lower(self, to: Lowering) -> Part:
        """See `SavableDataset.lower`. Returns an index map of packs; a feed of lanes below nodes that cut or mix it."""
        below = to.below(self.dataset)
        if not isinstance(below, IndexPart) or isinstance(below, PackedPart):
            raise ConfigError(
                "PlannedPackingDataset: the samples at a position must be known before they are read, but the dataset "
                "generates, groups, batches or packs. Plan packs of single samples, or use a PackingDataset "
                "(packing_buffer_size=…), which selects from samples that were read"
            )
        if to.endless:
            below.repeat_forever()
        if self.batches:
            to.graph.ragged = True
        hook = hook_spec(self.hook, self.packer, self.task_encoder, self.failure_tolerance)
        part = PackedPart(
            leaves=below.leaves,
            routes=None,
            passes=None,
            mixture=None,
            batches=self.batches,
            same_pass=below.same_pass,
            below=below,
            plan=self.plan,
            hooks=[hook],
            takes_ranges=_takes_ranges(self.packer),
            key=to.key("planned packs"),
            lanes=to.lanes,
            number=len(to.graph.planned),
        )
        part.plan_again()
        part.mixture = part.described()
        to.graph.planned.append(part)
        if to.outermost:
            return part
        return LanePart(to.operator(part, stripe=1), part.mixture, part.batches)


def _takes_ranges(packer: Callable[..., Any]) -> bool:
    try:
        return "ranges" in inspect.signature(packer).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


@dataclass(slots=True, kw_only=True)
class PackedPart(IndexPart):
    """Planned packs as a part of the graph: an index map over positions of packs.

    Attributes:
        below: Part whose samples are packed.
        plan: Capacities and rules of the packs.
        hooks: On a pack's samples, and then on packs.
        takes_ranges: Whether the first hook receives ranges.
        key: 64-bit key of the node.
        lanes: L.
        number: Number among all such parts.
        packs: The planned packs.
    """

    below: IndexPart
    plan: PackingPlan
    hooks: list[HookSpec]
    takes_ranges: bool
    key: int
    lanes: int
    number: int
    packs: PlannedPacks = field(init=False)

    def plan_again(self) -> None:
        """Plan packs of the current part below."""
        child = self.below.index_map(self.lanes)
        costs = [[Costs(leaf.resolved.source, cost, "packing") for leaf in self.leaves] for cost in self._expressions()]
        streams = tuple(CostsOfStream(child, own) for own in costs)
        self.packs = PlannedPacks(child, streams, self.plan, self.key, self.number)
        self.passes = None if self.below.passes is None else PlannedPasses(self.packs)

    def described(self) -> dict[str, Any]:
        """Return the plan and the identifiers of its columns, for the manifest."""
        return {
            "planned_packs": [list(pair) for pair in self.plan.capacities],
            "window": self.plan.window,
            "oversize": self.plan.oversize,
            "max_samples": self.plan.max_samples,
            "batches": self.batches,
            "columns": [each.ids for cost in self.packs.costs for each in cost.leaves],
            "of": self.below.mixture,
        }

    def _expressions(self) -> list[Expression]:
        return [Expression.parse(text, where="packing") for text, _ in self.plan.capacities]

    def items(self) -> int:
        """Packs of the first pass; for an endless part, about those of one pass over the repeated data."""
        return self.packs.typical() if self.passes is None else self.passes.length(0)

    def repeat_forever(self) -> None:
        """Make the part endless: packs cross the ends of passes."""
        if self.below.passes is not None:
            self.below.repeat_forever()
            self.plan_again()
        self.passes = None

    def runs(self) -> Sequence[bool]:
        """Return the runs of the part below."""
        return self.below.runs()

    def add_hook(self, hook: HookSpec) -> None:
        """Apply a hook to packs."""
        self.hooks.append(with_own_name(hook, self.hooks))

    def index_map(self, lanes: int) -> IndexMap:
        """Return the order of packs."""
        assert lanes == self.lanes
        return IndexMap(
            routes=None,
            table=self.packs.child.table,
            passes=self.passes,
            same_pass=self.same_pass,
            samples=self.packs.typical(),
            planned=self.packs,
        )

    def spec(self) -> ItemSpec:
        """Return how packs are made."""
        hooks = tuple((hook, fold(self.key, "hooks", hook.name)) for hook in self.hooks)
        return ItemSpec(hooks=hooks, takes_ranges=self.takes_ranges)


@dataclass(slots=True, eq=False)
class PlannedPacks:
    """Packs of the samples of an index map: a function of its order, of columns and of a key, the same on every host.

    Attributes:
        child: Index map whose samples are packed; packs of an endless one cross the ends of passes.
        costs: Costs of positions of the child over all passes, one function per capacity.
        plan: Capacities and rules of the packs.
        key: 64-bit key of the order of packs.
        maker: Number of the stream's `ItemSpec` that makes them.
    """

    child: IndexMap
    costs: tuple[CostsOfStream, ...]
    plan: PackingPlan
    key: int
    maker: int
    _folds: dict[int, Fold[_Window]] = field(default_factory=dict[int, "Fold[_Window]"])
    _lengths: dict[int, int] = field(default_factory=dict[int, int])
    _warned: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return PlannedPacks, (self.child, self.costs, self.plan, self.key, self.maker, {}, dict(self._lengths))

    def draw(self, positions: Int64Array) -> Draws:
        """Return the draws of packs by their positions over all passes."""
        order = np.argsort(positions, kind="stable")
        ordered = positions[order]
        parts: list[Draws] = []
        at = 0
        while at < len(ordered):
            pass_number, item = divmod(int(ordered[at]), 1 << PASS_BITS)
            first, end, window = self._fold(pass_number).plan_at(item)
            assert item < end
            begin = pass_number << PASS_BITS
            stop = int(np.searchsorted(ordered, begin + end))
            parts.append(self._drawn(window, ordered[at:stop] - (begin + first), ordered[at:stop]))
            at = stop
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return Draws.joined(parts)[back]

    def find(self, position: int) -> list[tuple[int, int]]:
        """Return the packs with a sample, by its position in the child's stream: (position of the pack, place in it).

        Several if the sample is split, none if it is larger than a pack and dropped. Plans all windows between the
        nearest known carry and the sample.
        """
        pass_number = 0 if self.child.passes is None else self.child.passes.epoch_at(position)
        at = position - self.child.start(pass_number)
        found = self._fold(pass_number).first_past(lambda carry: carry[1] > at and at not in carry[2:], 1 << PASS_BITS)
        if found is None:
            return []
        first, window = found
        members = np.flatnonzero(window.positions == position)
        packs = np.searchsorted(window.packs.cuts, members, side="right") - 1
        places = members - window.packs.cuts[packs]
        begin = (pass_number << PASS_BITS) + first
        return [(begin + pack, place) for pack, place in zip(packs.tolist(), places.tolist(), strict=True)]

    def taken(self, position: int) -> tuple[int, Int64Array, Int64Array]:
        """Return the child's positions of the current pass that the packs before a position contain.

        Returns:
            A position below which all are in them, except those returned second; and those from it on. Samples that
            are larger than a pack and dropped count as contained.
        """
        pass_number, item = divmod(position, 1 << PASS_BITS)
        if not item:
            return self.child.start(pass_number), _NO_POSITIONS, _NO_POSITIONS
        carry = self._fold(pass_number).anchor(item)
        start, (first, at, *carried) = self.child.start(pass_number), carry
        packs = (pass_number << PASS_BITS) + np.arange(first, item)
        members = np.unique(self._positions(packs))
        held = np.setdiff1d(start + np.array(carried, np.int64), members)
        return start + at, held, members[members >= start + at]

    def _positions(self, packs: Int64Array) -> Int64Array:
        """Return the child's positions of all members of packs in one pass."""
        found: list[Int64Array] = [_NO_POSITIONS]
        done = 0
        while done < len(packs):
            pass_number, item = divmod(int(packs[done]), 1 << PASS_BITS)
            first, end, window = self._fold(pass_number).plan_at(item)
            until = min(len(packs), done + end - item)
            cuts = window.packs.cuts[[item - first, item - first + until - done]]
            found.append(window.positions[cuts[0] : cuts[1]])
            done = until
        return np.concatenate(found)

    def _drawn(self, window: _Window, packs: Int64Array, numbers: Int64Array) -> Draws:
        """Return the draws of some packs of a window."""
        cuts = window.packs.cuts
        sizes = np.diff(cuts)[packs]
        own = np.append(0, np.cumsum(sizes))
        members = np.repeat(cuts[packs] - own[:-1], sizes) + np.arange(own[-1])
        ranges = [-(-units[members] // PARTS_OF_ONE) for units in (window.packs.starts, window.packs.stops)]
        return replace(
            self.child.draw_in_stream(window.positions[members]),
            items=Items(
                cuts=own,
                number=numbers,
                maker=np.full(len(packs), self.maker, np.int32),
                starts=ranges[0],
                stops=ranges[1],
            ),
        )

    def _fold(self, pass_number: int) -> Fold[_Window]:
        """Return the windows of a pass."""
        found = self._folds.get(pass_number)
        if found is None:
            while len(self._folds) >= _FOLDS_KEPT:
                self._folds.pop(list(self._folds)[0], None)  # noqa: RUF015 (another thread may do the same)
            found = self._folds.setdefault(pass_number, Fold((0, 0), partial(self._advance, pass_number)))
        return found

    def carries(self, position: int) -> list[Carry]:
        """See `IndexMap.carries`. The first number of a carry is the pack's position over all passes."""
        pass_number, item = divmod(position, 1 << PASS_BITS)
        first, *rest = self._fold(pass_number).anchor(item)
        return [((pass_number << PASS_BITS) + first, *rest), *self.child.carries(self._below(pass_number, rest))]

    def _below(self, pass_number: int, rest: Sequence[int]) -> int:
        """Return the first child position that windows need from a carry on, given its numbers after the first."""
        at, *carried = rest
        return self.child.start(pass_number) + min(carried, default=at)

    def remember(self, saved: SavedCarries, position: int) -> None:
        pass_number, item = divmod(position, 1 << PASS_BITS)
        first, *rest = saved.next(2)
        if first >> PASS_BITS != pass_number or max(rest[1:], default=-1) >= rest[0]:
            raise ValueError("a plan belongs to another pass, or carries over samples that it has not reached")
        self.child.remember(saved, self._below(pass_number, rest))
        saved.restore(self._fold(pass_number), (first - (pass_number << PASS_BITS), *rest), item)

    def length(self, pass_number: int) -> int:
        """Return the packs of a finite pass, which is planned once as a whole."""
        known = self._lengths.get(pass_number)
        if known is None:
            windows, known, last = self._fold(pass_number), 0, False
            while not last:
                _, known, window = windows.plan_at(known)
                last = window.last
            self._lengths[pass_number] = known
        return known

    def typical(self) -> int:
        """Return the approximate packs of a pass over the data, extrapolated from the first window."""
        _, packs, window = self._fold(0).plan_at(0)
        return packs if window.last else max(1, self.child.samples * packs // max(1, window.samples))

    def _advance(self, pass_number: int, carry: Carry) -> tuple[_Window, Carry]:
        """Plan a window from (first pack, next position, positions carried over). Returns it with the next carry."""
        item, at, *carried = carry
        plan, began = self.plan, at
        first, end = self.child.start(pass_number), self.child.length(pass_number)
        capacities = tuple(capacity * PARTS_OF_ONE for _, capacity in plan.capacities)
        if plan.max_samples is not None:
            capacities = (*capacities, plan.max_samples)
        while True:
            stop = at + plan.window - len(carried)
            stop = stop if end is None else min(stop, end)
            last = stop == end
            positions = np.concatenate([np.array(carried, np.int64), np.arange(at, stop)])
            costs = np.stack([own(first + positions) for own in self.costs])
            if plan.max_samples is not None:
                costs = np.concatenate([costs, np.ones((1, len(positions)), np.int64)])
            try:
                packs = plan_packs(
                    costs,
                    capacities,
                    key=fold(self.key, pass_number, at),
                    oversize=plan.oversize,
                    patient=int(np.searchsorted(positions, stop - PATIENCE * plan.window)),
                    last=last,
                )
            except OversizeSample as error:
                raise self._too_large(error, first + positions, costs) from None
            if len(packs.dropped) and not self._warned:
                self._warned = True
                _logger.warning(
                    "%d of %d samples are larger than a pack (%s) and are dropped, because of oversize='drop'; "
                    "this warning appears once",
                    *(len(packs.dropped), len(positions), self.plan.described()),
                )
            carried = positions[packs.rest].tolist()
            if len(packs) or last:
                window = _Window(packs, first + positions[packs.members], stop - began, last)
                return window, (item + len(packs), stop, *carried)
            at = stop
            if at - began > self.child.samples + plan.window:
                raise ConfigError(
                    f"packing: every sample is larger than a pack ({self.plan.described()}) and is dropped, because of "
                    f"oversize='drop': use a larger capacity"
                )

    def _too_large(self, error: OversizeSample, positions: Int64Array, costs: Int64Array) -> ConfigError:
        cost, (text, capacity) = self.costs[error.cost], self.plan.capacities[error.cost]
        draws = cost.order.draw_in_stream(positions[error.sample : error.sample + 1])
        source = cost.leaves[int(draws.leaf[0])].source
        what, parts = "a pack", "'split' (by the first cost only; parts go to neighbouring packs), "
        if isinstance(self.plan, CostBudget):
            what, parts = "a batch", ""
        return ConfigError(
            f"{source.path}: {source.place_of(int(draws.index[0]))}: {text} is "
            f"{costs[error.cost, error.sample] / PARTS_OF_ONE:,g}, but {what} holds {capacity:,}: use a larger "
            f"capacity, or choose how to handle such samples: oversize={parts}'drop' (leaves them out) or 'alone' "
            f"(in {what} over the capacity)"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """A planned window.

    Attributes:
        packs: Packs of its samples.
        positions: (m,) position of each member in the child's stream.
        samples: Number of samples taken from there.
        last: Whether it is the last window of its pass.
    """

    packs: WindowPacks
    positions: Int64Array
    samples: int
    last: bool


@dataclass(frozen=True, slots=True)
class PlannedPasses:
    """Passes that contain the packs of their samples.

    Attributes:
        packs: The packs.
    """

    packs: PlannedPacks

    def start(self, epoch: int) -> int:
        """Return the first position of a pass."""
        return epoch << PASS_BITS

    def length(self, epoch: int) -> int:
        """Return the packs of a pass."""
        return self.packs.length(epoch)

    def epoch_at(self, position: int) -> int:
        """Return the pass of a position."""
        return position >> PASS_BITS

    @property
    def period(self) -> int:
        """Each pass has its own order, so there is no known period of the lengths."""
        return 1 << PASS_BITS

    def lengths(self, first: int, count: int) -> Int64Array:
        """Return the packs of each of `count` passes from `first` on."""
        return np.array([self.length(epoch) for epoch in range(first, first + count)], np.int64)


def _positive(where: str, what: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 1 <= value < 1 << 53:
        raise ConfigError(f"{where}: {what}={value!r}: expected a positive whole number")
    return int(value)
