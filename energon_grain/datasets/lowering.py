# SPDX-License-Identifier: Apache-2.0
"""Lowering: from dataset nodes to the engine.

Each node lowers itself with `node.lower(to)`. It lowers the nodes below through `to`, and returns an `IndexPart` (its
order is arithmetic on positions, with pure hooks on samples) or a `LanePart` (operators that run in lanes). The
outermost nodes may instead work on whole steps, `node.on_steps(steps)`. Each kind of node is therefore one file: the
description, its lowering, and the operator. `compile_dataset` combines the result.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.hooks import HookOwner, with_own_name
from energon_grain.errors import ConfigError
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.leaf_order import LeafOrder, LeafTable, window_blocks
from energon_grain.samplers.routing import Router, RouteTree
from energon_grain.samplers.window_shuffle import Passes
from energon_grain.sources.cache_pool import CachePool
from energon_grain.sources.remote_runs import ReadInBlocks
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.index_map import EqualPasses, IndexMap
from energon_grain.stream.lanes import Feed, LaneOperator
from energon_grain.stream.observer import Observer
from energon_grain.stream.spec import (
    BatchSpec,
    ItemSpec,
    LeafSpec,
    Program,
    Resolved,
    StreamSpec,
    wanted_block,
)
from energon_grain.stream.worker_config import WorkerConfig

_logger = logging.getLogger("energon_grain")
DEFAULT_LANES = 48
BUFFERS_IN_LANE = 20
"""Full buffers per lane in a pass that packs or groups. The last buffer of a lane is incomplete."""
BLOCKS_IN_LANE = 16
"""Default of `parallel_shard_iters`: blocks that mix in a lane that forms batches or packs."""
SAMPLES_IN_LANE = 1600
"""Samples that mix in a lane if the source sets the block size: the number in 16 blocks of 100."""
_MOST_DROPPED = 1000


class Node(Protocol):
    """The part of a dataset node that lowering uses. See `SavableDataset`."""

    @property
    def worker_config(self) -> WorkerConfig: ...

    def lower(self, to: Lowering, /) -> Part: ...

    def on_steps(self, steps: Steps, /) -> Node | None:
        """Take part in whole steps and return the dataset below; None: the node is lowered for lanes instead."""
        ...


class LeafNode(Node, Protocol):
    """A node with its own samples."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Identity of this node among the leaves of a configuration, before duplicates are counted."""
        ...

    @property
    def task_encoder(self) -> HookOwner:
        """Owner of the failure tolerance for decoding."""
        ...

    def resolve(self) -> Resolved:
        """Read its configuration and open its index."""
        ...

    def cook(self, leaf: Any, cache_pool: CachePool | None, /) -> HookSpec | None:
        """Return the hook that turns its crude samples into typed ones."""
        ...


@dataclass(slots=True, eq=False)
class LeafPart:
    """One leaf of the graph.

    Attributes:
        key: Its identity in random keys, including the occurrence number among duplicates.
        seed: 64-bit hash of the seed at its place in the graph.
        number: Its number among all leaves: in document order, or as `compile_dataset` was given it.
        in_lane: Whether a lane above it forms batches, groups or packs.
    """

    node: LeafNode
    resolved: Resolved
    key: tuple[str, ...]
    seed: int
    number: int
    in_lane: bool
    hooks: list[HookSpec] = field(default_factory=list[HookSpec])

    def add_hook(self, hook: HookSpec) -> None:
        """Append a hook."""
        self.hooks.append(with_own_name(hook, self.hooks))

    def _window(self, block: int, lanes: int, usual: int) -> int:
        ordering = self.resolved.ordering
        at_least = (ordering.blocks_in_lane or usual) if self.in_lane else 1
        return window_blocks(block=block, lanes=lanes, shuffle_buffer_size=ordering.mixing, at_least=at_least)

    def order(self, lanes: int, runs: bool) -> LeafOrder:
        """Return the order of its samples; `runs`: whether lanes read contiguous runs of positions."""
        ordering, samples = self.resolved.ordering, len(self.resolved.source)
        key = fold(self.seed, "leaf", *self.key)
        if not ordering.training or ordering.passes is None:
            return LeafOrder(n=samples, key=key, shuffle=False, runs=runs)
        passes = 1 if ordering.passes == -1 else ordering.passes
        block, starts, source = wanted_block(self.resolved), None, self.resolved.source
        if block is not None and isinstance(source, ReadInBlocks):
            starts = source.block_starts(ordering.block)
            block = -(-samples // (len(starts) - 1))
        if block is not None and samples * passes < block * lanes:
            # With fewer blocks than lanes, lanes would share blocks, and only the order of the few samples inside a
            # lane would be random. Such a dataset is small anyway.
            block = starts = None
        window = 1
        if block is not None:
            usual = BLOCKS_IN_LANE if starts is None else -(-SAMPLES_IN_LANE // block)
            window = self._window(block, lanes, usual)
        return LeafOrder(
            n=samples,
            key=key,
            block=block,
            window=window,
            passes=passes,
            replacement=ordering.passes == -1,
            runs=runs,
            starts=starts,
        )

    def spec(self, lanes: int, runs: bool, cache_pool: CachePool | None) -> LeafSpec:
        """Return the specification of the leaf for the stream."""
        order, source = self.order(lanes, runs), self.resolved.source
        if order.shuffle and isinstance(source, ReadInBlocks):
            warning = source.warn_of_order(None if order.block is None else order.window * lanes)
            if warning is not None:
                _logger.warning(warning)
        return LeafSpec(
            key=self.key,
            leaf=self.resolved,
            order=order,
            hook_key=fold(self.seed, "hooks", *self.key),
            cook=self.node.cook(self.resolved, cache_pool),
            hooks=tuple(self.hooks),
            failure_tolerance=self.node.task_encoder.__default_failure_tolerance__,
        )


class PlannedItems(Protocol):
    """A part with planned items of several samples."""

    def spec(self) -> ItemSpec: ...


@dataclass(slots=True)
class IndexPart:
    """A part of the graph that is an index map, with pure hooks on its samples.

    Attributes:
        leaves: From left to right.
        routes: None for a single leaf.
        passes: None if the part is endless.
        drops: Whether it has a filter, so that positions differ from items.
        same_pass: Whether every pass repeats the first.
        batches: Whether its samples are batches.
        one_pass: For an endless part: positions of one pass over the repeated data.
    """

    leaves: list[LeafPart]
    routes: RouteTree | None
    passes: Passes | None
    mixture: Any
    drops: bool = False
    same_pass: bool = False
    batches: bool = False
    one_pass: int = 0

    def items(self) -> int:
        """Positions of a pass; for an endless part, of one pass over the repeated data."""
        return self.one_pass if self.passes is None else self.passes.length(0)

    def add_hook(self, hook: HookSpec) -> None:
        """Apply a hook to each item."""
        for leaf in self.leaves:
            leaf.add_hook(hook)

    def repeat_forever(self) -> None:
        self.one_pass, self.passes = self.items(), None

    def over(self, router: Router) -> RouteTree:
        """Return the routes below a router with one child."""
        return RouteTree(router, [self.routes])

    def runs(self) -> Sequence[bool]:
        """Return, for each leaf, whether lanes read contiguous runs of its positions."""
        return self.routes.runs if self.routes is not None else (False,)

    def numbers(self) -> list[int]:
        """Return the numbers of its leaves, ascending."""
        return sorted({leaf.number for leaf in self.leaves})

    def index_map(self, lanes: int) -> IndexMap:
        """Return the order of the part, with its leaves numbered from 0."""
        own = {leaf.number: (leaf, runs) for leaf, runs in zip(self.leaves, self.runs(), strict=True)}
        numbers = self.numbers()
        places = np.searchsorted(numbers, [leaf.number for leaf in self.leaves])
        moved = self.routes is not None and bool((np.diff(places) != 1).any())
        return IndexMap(
            routes=self.routes.numbered(places) if moved and self.routes is not None else self.routes,
            table=LeafTable([leaf.order(lanes, runs) for leaf, runs in map(own.__getitem__, numbers)], lanes),
            passes=self.passes,
            same_pass=self.same_pass,
            samples=self.items(),
        )

    def equal_length(self, where: str) -> int:
        """Return the length of a pass, if the part is finite and all passes have the same length.

        Raises ConfigError otherwise.
        """
        if self.passes is None:
            raise ConfigError(
                f"{where} takes finite datasets, but one of them is endless (a blend by weights, or repeated)"
            )
        if not isinstance(self.passes, EqualPasses):
            raise ConfigError(
                f"{where} cannot contain a blend by repetitions, because its epochs may differ by a sample: multiply "
                f"its repetitions into one flat `blend_epochized`"
            )
        return self.passes.samples


@dataclass(slots=True)
class LanePart:
    """A part of the graph whose items depend on data."""

    operator: LaneOperator
    mixture: Any
    batches: bool = False

    def items(self) -> int:
        """Approximate items of a pass; for an endless part, of one pass over the repeated data."""
        return self.operator.items()


Part = IndexPart | LanePart


@dataclass(slots=True)
class Steps:
    """The nodes above the lanes' graph, which work on whole steps.

    Attributes:
        of_batches: Whether steps are batches; otherwise items are delivered one by one, and no hook works on steps.
        batch: Makes the batches of a step.
        epochs: Lengths of virtual epochs that divide the stream, outermost first: in batches, as functions of the items
            in a pass and of the items in a step of all hosts.
        limit: Batches per host after which a pass ends.
        repeat: Repeats the operators of the lanes forever; None: passes end.
        repeat_for_limit: Makes each pass equal to the first, and repeats the data below up to `limit`. Turns the
            operators of the lanes into passes of a given number of items, for a number of lanes.
        seed: 64-bit hash of the seed below, if it differs from the run's.
        watching: Nodes that return items unchanged, outermost first. They see the same items below cuts of the stream.
        observers: Factories of stream observers by node class; an inner one replaces an outer one.
    """

    below: Node
    of_batches: bool
    batch: BatchSpec | None = None
    hooks: list[HookSpec] = field(default_factory=list[HookSpec])
    epochs: list[Callable[[int, int], int]] = field(default_factory=list[Callable[[int, int], int]])
    limit: int | None = None
    repeat: Callable[[LaneOperator], LaneOperator] | None = None
    repeat_for_limit: Callable[[LaneOperator, int, int], LaneOperator] | None = None
    seed: int | None = None
    same_pass: bool = False
    watching: list[Node] = field(default_factory=list["Node"])
    observers: dict[type, Callable[[], Observer]] = field(default_factory=dict[type, "Callable[[], Observer]"])

    @classmethod
    def over(cls, dataset: Node) -> Steps:
        """Collect the nodes down to the outermost batch; without one, the nodes that cut or watch the stream."""
        for of_batches in (True, False):
            steps = cls(below=dataset, of_batches=of_batches)
            while (child := steps.below.on_steps(steps)) is not None:
                steps.below = child
                if steps.batch is not None:
                    return steps
        for node in reversed(steps.watching):
            below = copy.copy(node)
            object.__setattr__(below, "dataset", steps.below)
            steps.below = below
        return steps

    def cut(self) -> None:
        """Check that only one node cuts the stream. Raises ConfigError otherwise."""
        if len(self.epochs) + (self.limit is not None) > 1:
            raise ConfigError(
                "several of EpochizeDataset (or virtual_epoch_length) and LimitDataset (or limit=) cut one stream: "
                "keep only the one with the number of batches per iteration"
            )


@dataclass(slots=True)
class _Graph:
    """State shared by all places of a graph during lowering.

    Attributes:
        hosts: Number of hosts, for blends that choose once per step.
        resolved: The leaves by number, if already resolved.
        numbered: Number and occurrence number of each leaf, in document order, if it does not determine them.
        planned: Parts with planned items of several samples.
        runs: For each leaf by number, whether lanes read contiguous runs.
        ragged: Whether consecutive items may be batches of different datasets or groups, with different shapes.
    """

    lanes: int
    hosts: int
    resolved: Sequence[Resolved] | None = None
    numbered: Iterator[tuple[int, str]] | None = None
    leaves: list[LeafPart] = field(default_factory=list[LeafPart])
    feeds: list[Feed] = field(default_factory=list[Feed])
    parts_of: list[IndexPart] = field(default_factory=list["IndexPart"])
    planned: list[PlannedItems] = field(default_factory=list["PlannedItems"])
    runs: dict[int, bool] = field(default_factory=dict[int, bool])
    ragged: bool = False
    seen: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])
    keys: Counter[tuple[str, str, int]] = field(default_factory=Counter[tuple[str, str, int]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """A place in the graph during lowering: the settings there, and access to the rest of the graph.

    Attributes:
        place: Child numbers in mixtures on the path from the top.
        level: Number of stateful nodes on that path; keys a node's random choices, together with `place`.
        in_lane: Whether a lane above forms batches, groups or packs.
        stripe: Batch size of the batches formed directly above; otherwise 1.
        endless: Whether everything here is repeated forever. Passes then have no meaning, and batches, groups and packs
            cross their ends.
        iterated: Whether a function from stream to stream is above.
        outermost: Whether items made here are items of the lane, whose batch is known.
        begins: First round of each amendment of the run in each lane of this place, int64 (L,).
    """

    graph: _Graph
    seed: int
    place: str = ""
    level: int = 0
    in_lane: bool = False
    stripe: int = 1
    endless: bool = False
    iterated: bool = False
    outermost: bool = True
    begins: tuple[npt.NDArray[np.int64], ...] = ()

    @property
    def lanes(self) -> int:
        return self.graph.lanes

    @property
    def hosts(self) -> int:
        return self.graph.hosts

    def lower(self, dataset: Node, **changes: Any) -> Part:
        """Lower a node below one that returns its items; `changes`: settings that differ from this place.

        Raises ConfigError if the nodes do not fit together, or if the configuration of a leaf is invalid, and
        EmptyDatasetError if a leaf is empty.
        """
        return dataset.lower(replace(self, **changes) if changes else self)

    def below(self, dataset: Node, *, forms: bool = False, stripe: int = 1, iterated: bool = False) -> Part:
        """Lower a node below one with state; `forms`: whether that one batches, groups or packs. Raises as `lower`."""
        return self.lower(
            dataset,
            level=self.level + 1,
            in_lane=self.in_lane or forms,
            stripe=stripe,
            iterated=self.iterated or iterated,
            outermost=False,
        )

    def children(
        self,
        datasets: Sequence[Node],
        *,
        endless: bool = False,
        counts_at: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.uint64]] | None = None,
    ) -> list[Part]:
        """Lower the nodes below a mixture. Raises as `lower`.

        Args:
            datasets: The children.
            endless: Whether they are repeated forever.
            counts_at: Returns the rounds of each child, (children, L), before a round of each lane; None: the children
                cannot be amended.
        """
        begins = [] if counts_at is None else [counts_at(rounds).astype(np.int64) for rounds in self.begins]
        return [
            self.lower(
                dataset,
                place=f"{self.place}.{number}",
                endless=endless,
                outermost=False,
                begins=tuple(each[number] for each in begins),
            )
            for number, dataset in enumerate(datasets)
        ]

    def leaf(self, node: LeafNode) -> IndexPart:
        graph = self.graph
        if graph.numbered is None:
            number, occurrence = len(graph.leaves), str(graph.seen[node.identity])
        else:
            number, occurrence = next(graph.numbered)
        graph.seen[node.identity] += 1
        part = LeafPart(
            node=node,
            resolved=node.resolve() if graph.resolved is None else graph.resolved[number],
            key=(*node.identity, occurrence),
            seed=self.seed,
            number=number,
            in_lane=self.in_lane,
        )
        graph.leaves.append(part)
        return IndexPart([part], None, EqualPasses(len(part.resolved.source)), None)

    def key(self, purpose: str) -> int:
        """Return a 64-bit key for a node, unique for its purpose and place."""
        place = (purpose, self.place, self.level)
        self.graph.keys[place] += 1
        return fold(self.seed, *place, self.graph.keys[place])

    def operator(self, part: Part, *, stripe: int | None = None, endless: bool | None = None) -> LaneOperator:
        """Return the lane operator of a part; an index map becomes a feed.

        Args:
            part: The lowered node below.
            stripe: Batch size of batches that lanes form above a finite part. Default: the setting of this place.
            endless: Whether a node above repeats it forever. Default: the setting of this place.
        """
        if isinstance(part, LanePart):
            return part.operator
        if self.endless if endless is None else endless:
            part.repeat_forever()
        graph, numbers = self.graph, part.numbers()
        sizes = {leaf.number: len(leaf.resolved.source) for leaf in part.leaves}
        feed = Feed(
            index=len(graph.feeds),
            order=part.index_map(graph.lanes),
            leaves=tuple(numbers),
            leaf_sizes=tuple(sizes[number] for number in numbers),
            lanes=graph.lanes,
            stripe=1 if part.passes is None else self.stripe if stripe is None else stripe,
        )
        graph.feeds.append(feed)
        graph.parts_of.append(part)
        graph.runs.update((leaf.number, runs) for leaf, runs in zip(part.leaves, part.runs(), strict=True))
        return feed

    def push(self, part: Part, hook: HookSpec) -> bool:
        """Apply a hook to items where samples are read, if the result is the same. Returns whether it was applied."""
        parts = [part] if isinstance(part, IndexPart) else self._parts_below(part.operator)
        for each in parts or ():
            each.add_hook(hook)
        return parts is not None

    def _parts_below(self, operator: LaneOperator) -> list[IndexPart] | None:
        """Return the index maps whose items an operator returns, regardless of values; None: it makes other items."""
        if isinstance(operator, Feed):
            return [self.graph.parts_of[operator.index]]
        below = [self._parts_below(child) for child in operator.children] if operator.chooses else [None]
        return None if None in below else [part for parts in below for part in parts or ()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of one run.

    Attributes:
        seed: Seed of every random choice.
        seed_offset: Mixed into the seed.
        lanes: L; None: lcm(48, hosts), or fewer for finite passes that pack or group.
        same_pass: Whether every pass repeats the first.
    """

    seed: int = 0
    seed_offset: int
    lanes: int | None = None
    same_pass: bool = False

    @property
    def key(self) -> int:
        return fold(self.seed, self.seed_offset)


def compile_dataset(
    dataset: Node,
    *,
    hosts: int | None = None,
    cache_pool: CachePool | None = None,
    resolved: Sequence[Resolved] | None = None,
    begins: Sequence[npt.NDArray[np.int64]] = (),
    numbered: Sequence[tuple[int, str]] | None = None,
) -> StreamSpec:
    """Resolve a dataset into everything that determines its stream.

    Args:
        dataset: Outermost node.
        hosts: Number of hosts, for the default of `lanes`. Default: from the dataset's `worker_config`.
        cache_pool: The `cache` of hooks; None: that of their task encoder.
        resolved: The leaves by number, if they are already resolved.
        begins: See `Lowering.begins`.
        numbered: Number and occurrence number (the last part of its key) of each leaf, in document order. A leaf may be
            there several times. Default: both are counted.

    Raises:
        ConfigError: The nodes do not fit together, or the configuration of a leaf is invalid.
        EmptyDatasetError: A leaf is empty.
    """
    hosts = hosts or dataset.worker_config.world_size
    settings, steps = settings_of(dataset), Steps.over(dataset)
    to, part = _lowered(steps, settings, hosts, resolved, tuple(begins), numbered)
    lanes, step_items = to.lanes, hosts * (1 if steps.batch is None else steps.batch.size)
    _check_balance(steps, part)
    _repeat_for_limit(part, steps, step_items, lanes)
    same_pass = any((settings.same_pass, steps.same_pass, steps.repeat_for_limit is not None))
    if isinstance(part, IndexPart):
        part.same_pass = same_pass = part.same_pass or same_pass
    epoch = min((length(part.items(), step_items) for length in steps.epochs), default=None)
    index_map, program, runs = _order_of(part, to, steps)
    leaves = {leaf.number: leaf for leaf in reversed(to.graph.leaves)}
    return StreamSpec(
        seed=settings.key,
        written_seed=(settings.seed, settings.seed_offset),
        lanes=lanes,
        leaves=tuple(leaf.spec(lanes, runs[number], cache_pool) for number, leaf in sorted(leaves.items())),
        index_map=index_map,
        program=program,
        mixture=part.mixture,
        makers=tuple(part.spec() for part in to.graph.planned),
        batch=steps.batch,
        steps=epoch,
        limit=steps.limit,
        same_pass=same_pass,
        ragged=to.graph.ragged and steps.batch is None,
        cache_pool=cache_pool,
        observers=tuple(steps.observers.values()),
        document=None if numbered is None else tuple(leaf.number for leaf in to.graph.leaves),
    )


def _lowered(
    steps: Steps,
    settings: Settings,
    hosts: int,
    resolved: Sequence[Resolved] | None,
    begins: tuple[npt.NDArray[np.int64], ...],
    numbered: Sequence[tuple[int, str]] | None,
) -> tuple[Lowering, Part]:
    """Lower the nodes below the steps, with the lanes of the run."""
    seed = settings.key if steps.seed is None else steps.seed
    lanes = settings.lanes or math.lcm(DEFAULT_LANES, hosts)
    graph = _Graph(lanes, hosts, resolved, None if numbered is None else iter(numbered))
    to = Lowering(graph=graph, seed=seed, endless=steps.repeat is not None, begins=begins)
    part = steps.below.lower(to)
    if settings.lanes is None and isinstance(part, LanePart) and part.operator.finite:
        lanes = _lanes_for(part.operator, hosts)
        if lanes != to.lanes:
            resolved = [leaf.resolved for leaf in to.graph.leaves]
            to = Lowering(graph=_Graph(lanes, hosts, resolved), seed=seed, endless=to.endless)
            part = steps.below.lower(to)
    return to, part


def _check_balance(steps: Steps, part: Part) -> None:
    if steps.batch is not None and steps.batch.placing is not None and (isinstance(part, LanePart) or part.drops):
        raise ConfigError(
            f"{steps.batch.placing.requested_by}: this dataset filters, groups, packs or generates, so the samples of "
            f"a step depend on their content and hosts cannot know their costs in advance. Filter by columns (where=…) "
            f"and pack by a plan (packing=PackingPlan(…)), or remove balance"
        )


def _order_of(part: Part, to: Lowering, steps: Steps) -> tuple[IndexMap | None, Program | None, Mapping[int, bool]]:
    """Return the index map or program of a run, and whether lanes read contiguous runs of each leaf."""
    if isinstance(part, IndexPart):
        if to.endless:
            part.repeat_forever()
        runs = {leaf.number: each for leaf, each in zip(part.leaves, part.runs(), strict=True)}
        return part.index_map(to.lanes), None, runs
    root = part.operator
    if steps.repeat is not None and root.finite:
        root = steps.repeat(root)
    return None, Program(root=root, feeds=tuple(to.graph.feeds)), to.graph.runs


def _repeat_for_limit(part: Part, steps: Steps, step_items: int, lanes: int) -> None:
    """Let a part continue over its passes until the limit is reached, if the steps request it."""
    if steps.repeat_for_limit is None or steps.limit is None:
        return
    items = steps.limit * step_items
    if isinstance(part, IndexPart):
        # Sufficient in every lane even if hooks drop all but one sample of each pass, or of each `_MOST_DROPPED`.
        enough = -(-items // lanes) * lanes * min(part.items(), _MOST_DROPPED)
        part.repeat_forever()
        part.passes = EqualPasses(enough)
    elif part.operator.finite:
        part.operator = steps.repeat_for_limit(part.operator, items, lanes)


def _lanes_for(root: LaneOperator, hosts: int) -> int:
    """Return the default number of lanes for finite passes, which keeps the remainder at the end of lanes small.

    The result is the largest divisor of lcm(48, hosts) that is a multiple of the hosts and leaves each lane
    `BUFFERS_IN_LANE` buffers per pass, and at least one lane per host. It does not depend on the number of hosts as
    long as that divides the result for one host.
    """
    most = math.lcm(DEFAULT_LANES, hosts)
    enough = min((buffers // BUFFERS_IN_LANE for buffers in root.buffers()), default=most)
    return max(lanes for lanes in range(hosts, most + 1, hosts) if most % lanes == 0 and lanes <= max(enough, hosts))


def _outermost_settings(dataset: Node) -> Any:
    node: Any = dataset
    while node is not None and _settings(node) is None:
        node = getattr(node, "dataset", None)
    return _settings(node)


def settings_of(dataset: Node) -> Settings:
    """Return the seed and lanes of a run: of the outermost settings, or of the combined parts.

    Raises ConfigError if the parts contradict each other.
    """
    own = list(_all_settings(dataset))
    offset = dataset.worker_config.seed_offset
    if not own:
        return Settings(seed_offset=offset)
    outermost = _outermost_settings(dataset)
    numbers = {each.lanes for each in own} - {None}
    if outermost is not None and outermost.lanes is not None:
        numbers = {outermost.lanes}
    if len(numbers) > 1:
        raise ConfigError(
            f"datasets with lanes={sorted(lanes for lanes in numbers if lanes)} in one stream: use one number for all"
        )
    return Settings(
        seed=own[0].seed,
        seed_offset=offset if outermost is None else outermost.seed_offset,
        lanes=next(iter(numbers), None),
        same_pass=all(each.same_pass for each in own),
    )


def _all_settings(node: Node) -> Iterator[Settings]:
    """Yield all settings in a graph, outermost first, from left to right."""
    if (own := _settings(node)) is not None:
        yield own
    for below in nodes_below(node):
        yield from _all_settings(below)


def _settings(node: Any) -> Settings | None:
    found = getattr(node, "settings", None)
    return found if isinstance(found, Settings) else None


def nodes_below(node: Any) -> Iterator[Any]:
    """Yield the datasets directly below a node, from left to right."""
    for each in dataclasses.fields(node):
        value = getattr(node, each.name)
        for below in value if isinstance(value, tuple) else (value,):
            if hasattr(type(below), "on_steps"):
                yield below
