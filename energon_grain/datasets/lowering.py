"""Lowering: from dataset nodes to what the engine runs.

Each node lowers itself, `node.lower(to)`: it asks `to` for what lies below it, and gives an `IndexPart` (its order is
arithmetic on positions, with pure hooks on samples) or a `LanePart` (operators that lanes run). The outermost nodes may
instead take part in what works on whole steps, `node.on_steps(steps)`. So a kind of node is one file: what the user
writes, how it lowers, and the operator that it lowers to. `datasets.compile` goes on from here.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from energon_grain.datasets.leaf_parts import LeafPart
from energon_grain.errors import ConfigError
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.leaf_order import LeafTable
from energon_grain.samplers.routing import Router, RouteTree
from energon_grain.samplers.window_shuffle import Passes
from energon_grain.stream.feed import Feed
from energon_grain.stream.index_map import EqualPasses, IndexMap
from energon_grain.stream.lanes import LaneOperator
from energon_grain.stream.spec import BatchSpec, HookSpec

if TYPE_CHECKING:
    from energon_grain.datasets.dataset import SavableDataset
    from energon_grain.datasets.joined_leaf import JoinedLeafDataset, ResolvedJoin
    from energon_grain.datasets.leaf import LeafDataset, ResolvedLeaf
    from energon_grain.datasets.passes import EpochizeDataset


@dataclass(slots=True)
class IndexPart:
    """A part of the graph that is an index map, with pure hooks on its samples.

    Attributes:
        leaves: From left to right.
        routes: None for a single leaf.
        passes: None where it is endless.
        mixture: For the manifest.
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

    def repeat_for_ever(self) -> None:
        """Make it endless."""
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

        Raises:
            ConfigError: It is something else.
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
    """A part of the graph whose items depend on data.

    Attributes:
        operator: Makes them.
        mixture: For the manifest.
        batches: Whether its items are batches.
    """

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
        below: The rest.
        of_batches: Whether steps are batches; else items are delivered one by one, and no hook works on steps.
        batch: Makes the batches of a step.
        hooks: On batches, in order.
        epochs: Cut the stream into virtual epochs, the innermost first.
        limit: Batches per host after which a pass ends.
        endless: Whether the rest is repeated for ever.
        resets: Whether it is repeated as often as `limit` takes, and each pass is the first again.
        seed: 64-bit hash of the seed that holds below, where it differs from the run's.
        same_pass: Every pass is the first again.
        watching: Nodes that hand items on as they are, the outermost first: they see the same below what cuts.
    """

    below: SavableDataset
    of_batches: bool
    batch: BatchSpec | None = None
    hooks: list[HookSpec] = field(default_factory=list[HookSpec])
    epochs: list[EpochizeDataset] = field(default_factory=list["EpochizeDataset"])
    limit: int | None = None
    endless: bool = False
    resets: bool = False
    seed: int | None = None
    same_pass: bool = False
    watching: list[SavableDataset] = field(default_factory=list["SavableDataset"])

    @classmethod
    def over(cls, dataset: SavableDataset) -> Steps:
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
        """Check that the stream is cut in one way only.

        Raises:
            ConfigError: It is not.
        """
        if len(self.epochs) + (self.limit is not None) > 1:
            raise ConfigError(
                "several of EpochizeDataset (or virtual_epoch_length) and LimitDataset (or limit=) cut one stream: "
                "keep the one that says how many batches an iteration shall have"
            )


@dataclass(slots=True)
class _Graph:
    """What all places of a graph share while it is lowered.

    Attributes:
        lanes: L.
        hosts: Number of hosts, for blends that choose once a step.
        resolved: The leaves in document order, where they were resolved before.
        leaves: Those met so far.
        feeds: Likewise.
        leaves_of: Leaves of each feed.
        runs: For each leaf by its number, whether lanes ask for contiguous runs.
        ragged: Whether consecutive items may be batches of different datasets or groups, whose shapes differ.
    """

    lanes: int
    hosts: int
    resolved: Sequence[ResolvedLeaf | ResolvedJoin] | None = None
    leaves: list[LeafPart] = field(default_factory=list[LeafPart])
    feeds: list[Feed] = field(default_factory=list[Feed])
    leaves_of: list[list[LeafPart]] = field(default_factory=list[list[LeafPart]])
    runs: dict[int, bool] = field(default_factory=dict[int, bool])
    ragged: bool = False
    seen: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])
    keys: Counter[tuple[str, str, int]] = field(default_factory=Counter[tuple[str, str, int]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """A place in the graph that is lowered: what holds there, and what a node needs of its surroundings.

    Attributes:
        graph: What all places share.
        seed: 64-bit hash of the seed.
        place: Numbers of the children of mixtures on the way down.
        level: Stateful nodes on the way down; with `place` it keys a node's random choices.
        in_lane: Whether batches, groups or packs are formed in a lane above.
        stripe: Batch size of the batches that are formed right above; else 1.
        endless: Whether all that is here is repeated for ever: then passes have no meaning, and batches, groups and
            packs go over the ends of them.
        iterated: Whether a function from stream to stream stands above.
        outermost: Whether what is made here is an item of the lane, so that the batch is known.
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

    @classmethod
    def begin(
        cls,
        *,
        seed: int,
        endless: bool,
        lanes: int,
        hosts: int,
        resolved: Sequence[ResolvedLeaf | ResolvedJoin] | None = None,
    ) -> Lowering:
        """The outermost place of a graph."""
        return cls(graph=_Graph(lanes=lanes, hosts=hosts, resolved=resolved), seed=seed, endless=endless)

    @property
    def lanes(self) -> int:
        """L."""
        return self.graph.lanes

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.graph.hosts

    def lower(self, dataset: SavableDataset, **changes: Any) -> Part:
        """A node below one that hands on its items; `changes`: what holds there, and is otherwise as here.

        Raises:
            ConfigError: The nodes do not fit together, or a leaf's configuration is wrong.
            EmptyDatasetError: A leaf is empty.
        """
        return dataset.lower(replace(self, **changes) if changes else self)

    def below(self, dataset: SavableDataset, *, forms: bool = False, stripe: int = 1, iterated: bool = False) -> Part:
        """A node below one that has a state; `forms`: one that batches, groups or packs. Raises as `lower`."""
        return self.lower(
            dataset,
            level=self.level + 1,
            in_lane=self.in_lane or forms,
            stripe=stripe,
            iterated=self.iterated or iterated,
            outermost=False,
        )

    def children(self, datasets: Sequence[SavableDataset], *, endless: bool = False) -> list[Part]:
        """The nodes below a mixture. Raises as `lower`."""
        return [
            self.lower(dataset, place=f"{self.place}.{number}", endless=endless, outermost=False)
            for number, dataset in enumerate(datasets)
        ]

    def leaf(self, node: LeafDataset | JoinedLeafDataset) -> IndexPart:
        """A leaf."""
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
        graph.leaves_of.append(part.leaves)
        graph.runs.update((leaf.number, runs) for leaf, runs in zip(part.leaves, part.runs(), strict=True))
        return feed

    def push(self, part: Part, hook: HookSpec) -> bool:
        """Apply a hook to each item where samples are read, if that gives the same; whether it does."""
        leaves = part.leaves if isinstance(part, IndexPart) else self._leaves_below(part.operator)
        for leaf in leaves or ():
            leaf.add_hook(hook)
        return leaves is not None

    def _leaves_below(self, operator: LaneOperator) -> list[LeafPart] | None:
        """Leaves of an operator whose items are their samples, whatever their values; None: it has others."""
        if isinstance(operator, Feed):
            return self.graph.leaves_of[operator.index]
        below = [self._leaves_below(child) for child in operator.children] if operator.chooses else [None]
        return None if None in below else [leaf for leaves in below for leaf in leaves or ()]
