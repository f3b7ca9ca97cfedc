# SPDX-License-Identifier: Apache-2.0
"""Packs that are planned before anything is read: by columns, and so before the samples are dealt to hosts.

`PackingDataset` chooses from samples that a lane has read. Here the choice looks at costs alone, which the index knows:
every host plans the same packs, item q of them is host q mod hosts', and any number of hosts works.
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


@public
@dataclass(frozen=True, slots=True, init=False)
class PackingPlan:
    """What goes into packs that are planned from columns, before anything is read.

    Args:
        costs: The column that a pack is bounded by, or an expression over columns (`"tokens + 2"`); or several, each
            with its capacity: `{"tokens": 4096, "images": 8}`.
        capacity: Of a pack, where there is one cost.
        window: Samples of the order that are planned together. A larger one fills packs better, up to a point; the
            first batch waits for the plan of one, and samples move by up to as many places.
        oversize: What becomes of a sample that is larger than a pack. "error", the default: it ends the run. "split":
            parts of it, by the first cost, go to neighbouring packs, and the packing hook is told which (`ranges`).
            "drop": it is left out, and nothing of it is read. "alone": it has a pack for itself, over the capacity.
        max_samples: Samples of a pack at most.

    Raises:
        ConfigError: An argument is not one that fits here.
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
                f'{name}: give one cost and its capacity, such as {name}("tokens", 4096), or several with theirs: '
                f'{name}({{"tokens": 4096, "images": 8}}); these are {costs!r} and {capacity!r}'
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
        """In one line: what a pack holds."""
        return ", ".join(f"{text} up to {capacity:,}" for text, capacity in self.capacities)

    def packed(self, encoder: TaskEncoder, dataset: SavableDataset, worker_config: WorkerConfig) -> SavableDataset:
        """The packs of a dataset, each by the encoder's `pack_selected_samples`. Raises ConfigError: it has none."""
        name, pack = type(encoder).__name__, overridden_hook(encoder, "pack_selected_samples")
        if pack is None:
            raise ConfigError(
                f"packing={self!r}, but {name} has no pack_selected_samples, which makes one sample of the samples of "
                "a pack"
            )
        if overridden_hook(encoder, "select_samples_to_pack") is not None:
            _logger.warning(
                "%s.select_samples_to_pack is not called: packing=… plans packs from columns before samples are read; "
                "packing_buffer_size=… lets the hook choose",
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
    """A batch size as a budget: `batch_size=CostBudget("tokens", 65536)` makes batches of as many samples as fit.

    Each batch of a host costs `budget` at most, and nearly as much; batches are planned as packs are, from columns,
    and never padded. Arguments are those of `PackingPlan`, but samples cannot be split.
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
            raise ConfigError("CostBudget: a sample of a batch cannot be split: give 'error', 'drop' or 'alone'")
        PackingPlan.__init__(self, costs, budget, window=window, oversize=oversize, max_samples=max_samples)

    def batched(
        self, encoder: TaskEncoder, dataset: SavableDataset, last_batch: LastBatch | None, worker_config: WorkerConfig
    ) -> SavableDataset:
        """The batches of a dataset, each made by the encoder's `batch`. Raises ConfigError where that does not fit."""
        if overridden_hook(encoder, "batch_group_criterion") is not None:
            raise ConfigError(
                f"batch_size=CostBudget(…) with {type(encoder).__name__}.batch_group_criterion: batches are made by "
                "one of the two; give a number, or leave the hook out"
            )
        if last_batch == "pad":
            raise ConfigError(
                "last_batch='pad' with batch_size=CostBudget(…): such batches are never padded; use 'drop'"
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
    """Packs that are planned from columns, a window of the order at a time; which they are needs no data.

    Packs come in a random order, and a sample is at most a few windows from its place. They are the same on any number
    of hosts. A sample that a hook drops leaves its place in the pack empty; a pack of which nothing is left is dropped.

    Args:
        dataset: Whose samples are packed: any whose order is known beforehand (leaves, mixtures, maps and filters of
            single samples).
        plan: What a pack is bounded by.
        packer: From the samples of a pack, in their order, to one sample. One that has a parameter `ranges` is given
            (start, stop) of each by it: which units of its first cost belong to this pack.
        hook: As in `MapDataset`, and so are `task_encoder` and `failure_tolerance`.
        batches: Whether the packs are batches, of one host each.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: An argument is not one that fits here.
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
                f"{self.hook} ({name}) does not say which part of a sample to take: with "
                f"oversize='split' it is called with ranges=[(start, stop), …], one of each sample; declare `ranges` "
                f"there and cut samples to theirs"
            )
        settle(self, self.dataset)

    def lower(self, to: Lowering) -> Part:
        """See `SavableDataset.lower`: an index map of packs; below what cuts or mixes it, a feed of lanes."""
        below = to.below(self.dataset)
        if not isinstance(below, IndexPart) or isinstance(below, PackedPart):
            raise ConfigError(
                "PlannedPackingDataset: which samples stand at a position must be known before they are read, and what "
                "lies below generates, groups, batches or packs: plan packs of single samples, or use a PackingDataset "
                "(packing_buffer_size=…), which looks at samples once they are read"
            )
        if to.endless:
            below.repeat_for_ever()
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
    except (TypeError, ValueError):  # of some built-in functions nobody can tell
        return False


@dataclass(slots=True, kw_only=True)
class PackedPart(IndexPart):
    """Planned packs as a part of the graph: an index map whose positions are those of packs.

    Attributes:
        below: Whose samples are packed.
        plan: What a pack is bounded by.
        hooks: On a pack's samples, and then on packs.
        takes_ranges: Whether the first one is told ranges.
        key: 64-bit key of the node.
        lanes: L.
        number: Among all such parts.
        packs: As they are planned.
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
        """Plan packs of what is below, as it is now."""
        child = self.below.index_map(self.lanes)
        costs = [[Costs(leaf.resolved.source, cost, "packing") for leaf in self.leaves] for cost in self._expressions()]
        streams = tuple(CostsOfStream(child, own) for own in costs)
        self.packs = PlannedPacks(child, streams, self.plan, self.key, self.number)
        self.passes = None if self.below.passes is None else PlannedPasses(self.packs)

    def described(self) -> dict[str, Any]:
        """For the manifest: the plan, and what the columns hold."""
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
        """Packs of the first pass; endless: of one pass over what is repeated, about."""
        return self.packs.typical() if self.passes is None else self.passes.length(0)

    def repeat_for_ever(self) -> None:
        """Make it endless: packs go over the ends of passes."""
        if self.below.passes is not None:
            self.below.repeat_for_ever()
            self.plan_again()
        self.passes = None

    def runs(self) -> Sequence[bool]:
        """Those of what is below."""
        return self.below.runs()

    def add_hook(self, hook: HookSpec) -> None:
        """Apply a hook to packs."""
        self.hooks.append(with_own_name(hook, self.hooks))

    def index_map(self, lanes: int) -> IndexMap:
        """The order of packs."""
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
        """How packs are made."""
        hooks = tuple((hook, fold(self.key, "hooks", hook.name)) for hook in self.hooks)
        return ItemSpec(hooks=hooks, takes_ranges=self.takes_ranges)


@dataclass(slots=True, eq=False)
class PlannedPacks:
    """Packs of the samples of an index map: a function of its order, of columns and of a key, the same everywhere.

    Attributes:
        child: Whose samples are packed; packs of an endless one go over the ends of passes.
        costs: Of positions of the child among those of all passes, one for each capacity.
        plan: What a pack is bounded by.
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
    _told: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return PlannedPacks, (self.child, self.costs, self.plan, self.key, self.maker, {}, dict(self._lengths))

    def draw(self, positions: Int64Array) -> Draws:
        """Draws of packs by their positions among those of all passes."""
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

    def _drawn(self, window: _Window, packs: Int64Array, numbers: Int64Array) -> Draws:
        """Some packs of a window."""
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
        """The windows of a pass."""
        found = self._folds.get(pass_number)
        if found is None:
            while len(self._folds) >= _FOLDS_KEPT:
                self._folds.pop(list(self._folds)[0], None)  # noqa: RUF015 (another thread may do the same)
            found = self._folds.setdefault(pass_number, Fold((0, 0), partial(self._advance, pass_number)))
        return found

    def carries(self, position: int) -> list[Carry]:
        """See `IndexMap.carries`. The first numbers are the pack's position among those of all passes."""
        pass_number, item = divmod(position, 1 << PASS_BITS)
        first, *rest = self._fold(pass_number).anchor(item)
        return [((pass_number << PASS_BITS) + first, *rest), *self.child.carries(self._below(pass_number, rest))]

    def _below(self, pass_number: int, rest: Sequence[int]) -> int:
        """The first position of the child that windows from a carry on need, of its numbers behind the pack's."""
        at, *carried = rest
        return self.child.start(pass_number) + min(carried, default=at)

    def remember(self, saved: SavedCarries, position: int) -> None:
        pass_number, item = divmod(position, 1 << PASS_BITS)
        first, *rest = saved.next(2)
        if first >> PASS_BITS != pass_number or max(rest[1:], default=-1) >= rest[0]:
            raise ValueError("a plan is of another pass, or carries over what it has not reached")
        self.child.remember(saved, self._below(pass_number, rest))
        saved.restore(self._fold(pass_number), (first - (pass_number << PASS_BITS), *rest), item)

    def length(self, pass_number: int) -> int:
        """Packs of a finite pass: it is planned once, all of it."""
        known = self._lengths.get(pass_number)
        if known is None:
            windows, known, last = self._fold(pass_number), 0, False
            while not last:
                _, known, window = windows.plan_at(known)
                last = window.last
            self._lengths[pass_number] = known
        return known

    def typical(self) -> int:
        """Packs of a pass over the data, about: for each sample as many as in the first window."""
        _, packs, window = self._fold(0).plan_at(0)
        return packs if window.last else max(1, self.child.samples * packs // max(1, window.samples))

    def _advance(self, pass_number: int, carry: Carry) -> tuple[_Window, Carry]:
        """The plan of a window, from (first pack, next position, positions carried over), and that of the next one."""
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
            if len(packs.dropped) and not self._told:
                self._told = True
                _logger.warning(
                    "%d of %d samples are larger than a pack (%s), and left out, as oversize='drop' says; "
                    "this is said once",
                    *(len(packs.dropped), len(positions), self.plan.described()),
                )
            carried = positions[packs.rest].tolist()
            if len(packs) or last:
                window = _Window(packs, first + positions[packs.members], stop - began, last)
                return window, (item + len(packs), stop, *carried)
            at = stop
            if at - began > self.child.samples + plan.window:
                raise ConfigError(
                    f"packing: every sample is larger than a pack ({self.plan.described()}) and left out, as "
                    f"oversize='drop' says; give a larger capacity"
                )

    def _too_large(self, error: OversizeSample, positions: Int64Array, costs: Int64Array) -> ConfigError:
        cost, (text, capacity) = self.costs[error.cost], self.plan.capacities[error.cost]
        draws = cost.order.draw_in_stream(positions[error.sample : error.sample + 1])
        source = cost.leaves[int(draws.leaf[0])].source
        what, parts = "a pack", "'split' (by the first cost alone; parts go to neighbouring packs), "
        if isinstance(self.plan, CostBudget):
            what, parts = "a batch", ""
        return ConfigError(
            f"{source.path}: {source.place_of(int(draws.index[0]))}: {text} is "
            f"{costs[error.cost, error.sample] / PARTS_OF_ONE:,g}, and {what} holds {capacity:,}: give a larger "
            f"capacity, or say what becomes of such samples: oversize={parts}'drop' (they are left out) or 'alone' "
            f"(in {what} over the capacity)"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """A window, planned.

    Attributes:
        packs: Of its samples.
        positions: (m,) of each member, in the child's stream.
        samples: How many it takes from there.
        last: Whether it is the last one of its pass.
    """

    packs: WindowPacks
    positions: Int64Array
    samples: int
    last: bool


@dataclass(frozen=True, slots=True)
class PlannedPasses:
    """Passes of as many packs as their samples make.

    Attributes:
        packs: The packs.
    """

    packs: PlannedPacks

    def start(self, epoch: int) -> int:
        """First position of a pass."""
        return epoch << PASS_BITS

    def length(self, epoch: int) -> int:
        """Packs of a pass."""
        return self.packs.length(epoch)

    def epoch_at(self, position: int) -> int:
        """Pass of a position."""
        return position >> PASS_BITS

    @property
    def period(self) -> int:
        """Each pass has an order of its own, so nobody knows when their lengths come again."""
        return 1 << PASS_BITS

    def lengths(self, first: int, count: int) -> Int64Array:
        """Packs of each of `count` passes from `first` on."""
        return np.array([self.length(epoch) for epoch in range(first, first + count)], np.int64)


def _positive(where: str, what: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 1 <= value < 1 << 53:
        raise ConfigError(f"{where}: {what} is {value!r}: expected a positive whole number")
    return int(value)
