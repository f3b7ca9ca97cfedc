# SPDX-License-Identifier: Apache-2.0
"""Lowering: from dataset nodes to what the engine runs.

Each node lowers itself, `node.lower(to)`: it asks `to` for what lies below it, and gives an `IndexPart` (its order is
arithmetic on positions, with pure hooks on samples) or a `LanePart` (operators that lanes run). The outermost nodes may
instead take part in what works on whole steps, `node.on_steps(steps)`. So a kind of node is one file: what the user
writes, how it lowers, and the operator that it lowers to. `compile_dataset` puts it all together.
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
"""Full buffers that a lane should have in a pass that packs or groups: one of them, the last, is not full."""
BLOCKS_IN_LANE = 16
"""Blocks that mix in a lane where batches or packs are formed in it: `parallel_shard_iters`."""
SAMPLES_IN_LANE = 1600
"""The same where the source says what a block is: as many samples as that would be of blocks of 100."""
_MOST_DROPPED = 1000


class Node(Protocol):
    """A dataset, as far as lowering knows one. See `SavableDataset`."""

    @property
    def worker_config(self) -> WorkerConfig: ...

    def lower(self, to: Lowering, /) -> Part: ...

    def on_steps(self, steps: Steps, /) -> Node | None:
        """Take part in what works on whole steps, and say what it stands on; None: it is lowered for lanes instead."""
        ...


class LeafNode(Node, Protocol):
    """A node with samples of its own."""

    @property
    def identity(self) -> tuple[str, ...]:
        """What distinguishes it from others in a configuration, before occurrences are counted."""
        ...

    @property
    def task_encoder(self) -> HookOwner:
        """Whose failure tolerance holds for decoding."""
        ...

    def resolve(self) -> Resolved:
        """Read its configuration and open its index."""
        ...

    def cook(self, leaf: Any, cache_pool: CachePool | None, /) -> HookSpec | None:
        """What turns its crude samples into samples."""
        ...


@dataclass(slots=True, eq=False)
class LeafPart:
    """One leaf of the graph.

    Attributes:
        key: Its identity in random keys, the occurrence among equal ones included.
        seed: 64-bit hash of the seed that holds where it stands.
        number: Among all leaves, in document order.
        in_lane: Whether batches, groups or packs are formed in a lane above it.
    """

    node: LeafNode
    resolved: Resolved
    key: tuple[str, ...]
    seed: int
    number: int
    in_lane: bool
    hooks: list[HookSpec] = field(default_factory=list[HookSpec])

    def add_hook(self, hook: HookSpec) -> None:
        """Apply a hook behind the others."""
        self.hooks.append(with_own_name(hook, self.hooks))

    def _window(self, block: int, lanes: int, usual: int) -> int:
        ordering = self.resolved.ordering
        at_least = (ordering.blocks_in_lane or usual) if self.in_lane else 1
        return window_blocks(block=block, lanes=lanes, shuffle_buffer_size=ordering.mixing, at_least=at_least)

    def order(self, lanes: int, runs: bool) -> LeafOrder:
        """The order of its samples; `runs`: whether lanes ask for contiguous runs of positions."""
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
            # With fewer blocks than lanes, lanes would share blocks, and hardly more than the order inside a lane's few
            # samples would be random. It is a small dataset, too.
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
        """Everything that the stream needs of it."""
        order, source = self.order(lanes, runs), self.resolved.source
        if order.shuffle and isinstance(source, ReadInBlocks):
            said = source.warn_of_order(None if order.block is None else order.window * lanes)
            if said is not None:
                _logger.warning(said)
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
    """A part whose items of several samples are planned."""

    def spec(self) -> ItemSpec: ...


@dataclass(slots=True)
class IndexPart:
    """A part of the graph that is an index map, with pure hooks on its samples.

    Attributes:
        leaves: From left to right.
        routes: None for a single leaf.
        passes: None where it is endless.
        drops: Whether it has a filter, so that positions are not items.
        same_pass: Every pass is the first again.
        batches: Whether its samples are batches.
        one_pass: Where it is endless: positions of one pass over what is repeated.
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
        """Positions of a pass; endless: of one pass over what is repeated."""
        return self.one_pass if self.passes is None else self.passes.length(0)

    def add_hook(self, hook: HookSpec) -> None:
        """Apply a hook to each item."""
        for leaf in self.leaves:
            leaf.add_hook(hook)

    def repeat_for_ever(self) -> None:
        self.one_pass, self.passes = self.items(), None

    def over(self, router: Router) -> RouteTree:
        """The routes with a router of one child on top."""
        return RouteTree(router, [self.routes])

    def runs(self) -> Sequence[bool]:
        """For each leaf, whether lanes ask it for contiguous runs of positions."""
        return self.routes.runs if self.routes is not None else (False,)

    def index_map(self, lanes: int) -> IndexMap:
        """The order of the part, whose leaves are counted from 0."""
        orders = [leaf.order(lanes, runs) for leaf, runs in zip(self.leaves, self.runs(), strict=True)]
        return IndexMap(
            routes=self.routes,
            table=LeafTable(orders, lanes),
            passes=self.passes,
            same_pass=self.same_pass,
            samples=self.items(),
        )

    def equal_length(self, where: str) -> int:
        """Length of a pass, where it is finite and all passes are equally long.

        Raises ConfigError if it is something else.
        """
        if self.passes is None:
            raise ConfigError(
                f"{where} takes finite datasets, but one of them is endless (a blend by weights, or repeated)"
            )
        if not isinstance(self.passes, EqualPasses):
            raise ConfigError(
                f"{where} cannot hold a blend by repetitions, whose epochs may differ by a sample; multiply its "
                f"repetitions into one flat `blend_epochized`"
            )
        return self.passes.samples


@dataclass(slots=True)
class LanePart:
    """A part of the graph whose items depend on data."""

    operator: LaneOperator
    mixture: Any
    batches: bool = False

    def items(self) -> int:
        """Items of a pass, about; endless: of one pass over what is repeated."""
        return self.operator.items()


Part = IndexPart | LanePart


@dataclass(slots=True)
class Steps:
    """What stands above the graph that lanes run: it works on whole steps.

    Attributes:
        of_batches: Whether steps are batches; else items are delivered one by one, and no hook works on steps.
        batch: Makes the batches of a step.
        epochs: Lengths of virtual epochs that cut the stream, the outermost first: in batches, of how many items a pass
            has and how many a step of all hosts takes.
        limit: Batches per host after which a pass ends.
        repeat: Repeats for ever what lanes run; None: passes end.
        repeat_for_limit: Each pass is the first again, and repeats what is below as often as `limit` takes; makes of
            what lanes run passes of so many items, given their number of lanes.
        seed: 64-bit hash of the seed that holds below, where it differs from the run's.
        watching: Nodes that hand items on as they are, the outermost first: they see the same below what cuts.
        observers: Make observers of the stream, by the class of the node: an inner one takes the place of an outer one.
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
        """Everything down to the outermost batch; where there is none, what only cuts the stream, or watches it."""
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
        """Check that the stream is cut in one way only. Raises ConfigError if it is not."""
        if len(self.epochs) + (self.limit is not None) > 1:
            raise ConfigError(
                "several of EpochizeDataset (or virtual_epoch_length) and LimitDataset (or limit=) cut one stream: "
                "keep the one that says how many batches an iteration shall have"
            )


@dataclass(slots=True)
class _Graph:
    """What all places of a graph share while it is lowered.

    Attributes:
        hosts: Number of hosts, for blends that choose once a step.
        resolved: The leaves in document order, where they were resolved before.
        planned: Parts whose items of several samples are planned.
        runs: For each leaf by its number, whether lanes ask for contiguous runs.
        ragged: Whether consecutive items may be batches of different datasets or groups, whose shapes differ.
    """

    lanes: int
    hosts: int
    resolved: Sequence[Resolved] | None = None
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
    """A place in the graph that is lowered: what holds there, and what a node needs of its surroundings.

    Attributes:
        place: Numbers of the children of mixtures on the way down.
        level: Stateful nodes on the way down; with `place` it keys a node's random choices.
        in_lane: Whether batches, groups or packs are formed in a lane above.
        stripe: Batch size of the batches that are formed right above; else 1.
        endless: Whether all that is here is repeated for ever: then passes have no meaning, and batches, groups and
            packs go over the ends of them.
        iterated: Whether a function from stream to stream stands above.
        outermost: Whether what is made here is an item of the lane, so that the batch is known.
        begins: The round of each lane of this place, int64 (L,), at which each amendment of the run begins.
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
        """A node below one that hands on its items; `changes`: what holds there, and is otherwise as here.

        Raises ConfigError if the nodes do not fit together, or a leaf's configuration is wrong, and EmptyDatasetError
        if a leaf is empty.
        """
        return dataset.lower(replace(self, **changes) if changes else self)

    def below(self, dataset: Node, *, forms: bool = False, stripe: int = 1, iterated: bool = False) -> Part:
        """A node below one that has a state; `forms`: one that batches, groups or packs. Raises as `lower`."""
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
        """The nodes below a mixture. Raises as `lower`.

        Args:
            datasets: The children.
            endless: Whether they are repeated for ever.
            counts_at: Rounds of each child, (children, L), before a round of each lane; None: of no mixture that can be
                amended.
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
        occurrence = graph.seen[node.identity]
        graph.seen[node.identity] += 1
        part = LeafPart(
            node=node,
            resolved=node.resolve() if graph.resolved is None else graph.resolved[len(graph.leaves)],
            key=(*node.identity, str(occurrence)),
            seed=self.seed,
            number=len(graph.leaves),
            in_lane=self.in_lane,
        )
        graph.leaves.append(part)
        return IndexPart([part], None, EqualPasses(len(part.resolved.source)), None)

    def key(self, purpose: str) -> int:
        """64-bit key of a node: no two of one purpose at one place share it."""
        place = (purpose, self.place, self.level)
        self.graph.keys[place] += 1
        return fold(self.seed, *place, self.graph.keys[place])

    def operator(self, part: Part, *, stripe: int | None = None, endless: bool | None = None) -> LaneOperator:
        """What lanes run for a part; an index map becomes a feed.

        Args:
            part: Of what lies below.
            stripe: Batch size of batches that lanes form above a finite one; default: as holds here.
            endless: Whether what stands above repeats it for ever; likewise.
        """
        if isinstance(part, LanePart):
            return part.operator
        if self.endless if endless is None else endless:
            part.repeat_for_ever()
        graph = self.graph
        feed = Feed(
            index=len(graph.feeds),
            order=part.index_map(graph.lanes),
            first_leaf=part.leaves[0].number,
            leaf_sizes=tuple(len(leaf.resolved.source) for leaf in part.leaves),
            lanes=graph.lanes,
            stripe=1 if part.passes is None else self.stripe if stripe is None else stripe,
        )
        graph.feeds.append(feed)
        graph.parts_of.append(part)
        graph.runs.update((leaf.number, runs) for leaf, runs in zip(part.leaves, part.runs(), strict=True))
        return feed

    def push(self, part: Part, hook: HookSpec) -> bool:
        """Apply a hook to each item where samples are read, if that gives the same; whether it does."""
        parts = [part] if isinstance(part, IndexPart) else self._parts_below(part.operator)
        for each in parts or ():
            each.add_hook(hook)
        return parts is not None

    def _parts_below(self, operator: LaneOperator) -> list[IndexPart] | None:
        """Index maps of an operator whose items are theirs, whatever their values; None: it has others."""
        if isinstance(operator, Feed):
            return [self.graph.parts_of[operator.index]]
        below = [self._parts_below(child) for child in operator.children] if operator.chooses else [None]
        return None if None in below else [part for parts in below for part in parts or ()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What makes a description one particular run.

    Attributes:
        seed: Of every random choice.
        seed_offset: Mixed into it.
        lanes: L; None: lcm(48, hosts), or fewer for finite passes that pack or group.
        same_pass: Every pass is the first one again.
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
) -> StreamSpec:
    """Resolve a dataset into everything that decides what comes out of it.

    Args:
        dataset: Outermost node.
        hosts: Number of hosts, for the default of `lanes`; default: as the dataset's `worker_config` says.
        cache_pool: What hooks get as `cache`; None: what their task encoder says.
        resolved: The leaves in document order, where they were resolved before.
        begins: The round of each lane at which each amendment of the run begins; see `Lowering.begins`.

    Raises:
        ConfigError: The nodes do not fit together, or a leaf's configuration is wrong.
        EmptyDatasetError: A leaf is empty.
    """
    hosts = hosts or dataset.worker_config.world_size
    settings, steps = settings_of(dataset), Steps.over(dataset)
    to, part = _lowered(steps, settings, hosts, resolved, tuple(begins))
    lanes, at_once = to.lanes, hosts * (1 if steps.batch is None else steps.batch.size)
    _check_balance(steps, part)
    _repeat_for_limit(part, steps, at_once, lanes)
    same_pass = any((settings.same_pass, steps.same_pass, steps.repeat_for_limit is not None))
    if isinstance(part, IndexPart):
        part.same_pass = same_pass = part.same_pass or same_pass
    epoch = min((length(part.items(), at_once) for length in steps.epochs), default=None)
    index_map, program, runs = _order_of(part, to, steps)
    return StreamSpec(
        seed=settings.key,
        written_seed=(settings.seed, settings.seed_offset),
        lanes=lanes,
        leaves=tuple(leaf.spec(lanes, runs[leaf.number], cache_pool) for leaf in to.graph.leaves),
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
    )


def _lowered(
    steps: Steps,
    settings: Settings,
    hosts: int,
    resolved: Sequence[Resolved] | None,
    begins: tuple[npt.NDArray[np.int64], ...],
) -> tuple[Lowering, Part]:
    """Lower what is below the steps, with the lanes of the run."""
    seed = settings.key if steps.seed is None else steps.seed
    lanes = settings.lanes or math.lcm(DEFAULT_LANES, hosts)
    graph = _Graph(lanes, hosts, resolved)
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
            f"{steps.batch.placing.asked}: which samples make a step of this dataset depends on what is in them "
            f"(it filters, groups, packs or generates), so hosts cannot know beforehand what each costs: filter by "
            f"columns (where=…) and pack by a plan (packing=PackingPlan(…)), or leave balance out"
        )


def _order_of(part: Part, to: Lowering, steps: Steps) -> tuple[IndexMap | None, Program | None, Mapping[int, bool]]:
    """The arithmetic or the program of a run, and for each leaf whether lanes ask it for runs of positions."""
    if isinstance(part, IndexPart):
        if to.endless:
            part.repeat_for_ever()
        runs = {leaf.number: each for leaf, each in zip(part.leaves, part.runs(), strict=True)}
        return part.index_map(to.lanes), None, runs
    root = part.operator
    if steps.repeat is not None and root.finite:
        root = steps.repeat(root)
    return None, Program(root=root, feeds=tuple(to.graph.feeds)), to.graph.runs


def _repeat_for_limit(part: Part, steps: Steps, at_once: int, lanes: int) -> None:
    """Let a part go on over its passes until the limit is reached, where the steps say so."""
    if steps.repeat_for_limit is None or steps.limit is None:
        return
    items = steps.limit * at_once
    if isinstance(part, IndexPart):
        # Enough in every lane where hooks drop all but one sample of each pass, or of each `_MOST_DROPPED`.
        enough = -(-items // lanes) * lanes * min(part.items(), _MOST_DROPPED)
        part.repeat_for_ever()
        part.passes = EqualPasses(enough)
    elif part.operator.finite:
        part.operator = steps.repeat_for_limit(part.operator, items, lanes)


def _lanes_for(root: LaneOperator, hosts: int) -> int:
    """The default number of lanes where passes end: what is left in them at the end should hardly matter.

    As many as leave each of them `BUFFERS_IN_LANE` buffers in a pass, of the divisors of lcm(48, hosts) that are
    multiples of the hosts; one a host at least. So it does not depend on the number of hosts as long as that divides
    what one host would take.
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
    """Seed and lanes of a run: of the outermost settings, or of those of the parts that it is put together from.

    Raises ConfigError if the parts contradict each other.
    """
    own = list(_all_settings(dataset))
    offset = dataset.worker_config.seed_offset
    if not own:
        return Settings(seed_offset=offset)
    outermost = _outermost_settings(dataset)
    said = {each.lanes for each in own} - {None}
    if outermost is not None and outermost.lanes is not None:
        said = {outermost.lanes}
    if len(said) > 1:
        raise ConfigError(
            f"datasets with lanes={sorted(lanes for lanes in said if lanes)} in one stream: lanes are a constant of "
            f"the run; give all parts the same number"
        )
    return Settings(
        seed=own[0].seed,
        seed_offset=offset if outermost is None else outermost.seed_offset,
        lanes=next(iter(said), None),
        same_pass=all(each.same_pass for each in own),
    )


def _all_settings(node: Node) -> Iterator[Settings]:
    """All settings in a graph, the outermost first, from left to right."""
    if (own := _settings(node)) is not None:
        yield own
    for below in nodes_below(node):
        yield from _all_settings(below)


def _settings(node: Any) -> Settings | None:
    found = getattr(node, "settings", None)
    return found if isinstance(found, Settings) else None


def nodes_below(node: Any) -> Iterator[Any]:
    """The datasets that a node stands on, from left to right."""
    for each in dataclasses.fields(node):
        value = getattr(node, each.name)
        for below in value if isinstance(value, tuple) else (value,):
            if hasattr(type(below), "on_steps"):
                yield below
