"""Compiled parts of a graph: arithmetic on positions as far as it goes, operators of lanes above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from energon_grain.errors import ConfigError
from energon_grain.samplers.leaf_order import LeafTable
from energon_grain.samplers.routing import Router, RouteTree
from energon_grain.samplers.window_shuffle import Passes
from energon_grain.stream.index_map import EqualPasses, IndexMap
from energon_grain.stream.leaf_parts import LeafPart
from energon_grain.stream.operators.feed import FeedNode
from energon_grain.stream.operators.operator import Node


@dataclass(slots=True)
class IndexBranch:
    """A part that is an index map, with pure hooks on its samples.

    Attributes:
        leaves: From left to right.
        routes: None for a single leaf.
        passes: None where it is endless.
        told: For the manifest.
        drops: Whether it has a filter, so that positions are not items.
        same_pass: Every pass is the first again.
        batches: Whether its samples are batches.
        one_pass: Where it is endless: positions of one pass over what is repeated.
    """

    leaves: list[LeafPart]
    routes: RouteTree | None
    passes: Passes | None
    told: Any
    drops: bool = False
    same_pass: bool = False
    batches: bool = False
    one_pass: int = 0

    def samples(self) -> int:
        """Positions of a pass; endless: of one pass over what is repeated."""
        return self.one_pass if self.passes is None else self.passes.length(0)

    def repeat_for_ever(self) -> None:
        """Make it endless."""
        self.one_pass, self.passes = self.samples(), None

    def over(self, router: Router) -> RouteTree:
        """The routes with a router of one child on top."""
        return RouteTree(router, [self.routes])

    def runs(self) -> Sequence[bool]:
        """For each leaf, whether lanes ask it for contiguous runs of positions."""
        return self.routes.runs if self.routes is not None else (False,)

    def index_map(self, lanes: int) -> IndexMap:
        """The order of the branch, whose leaves are counted from 0."""
        orders = [leaf.order(lanes, runs) for leaf, runs in zip(self.leaves, self.runs(), strict=True)]
        return IndexMap(
            routes=self.routes,
            table=LeafTable(orders, lanes),
            passes=self.passes,
            same_pass=self.same_pass,
            samples=self.samples(),
        )


@dataclass(slots=True)
class LaneBranch:
    """A part whose items depend on data.

    Attributes:
        node: Its operators.
        told: For the manifest.
        batches: Whether its items are batches.
    """

    node: Node
    told: Any
    batches: bool = False


Branch = IndexBranch | LaneBranch


@dataclass(slots=True)
class Feeds:
    """The feeds of a program in the making.

    Attributes:
        lanes: L.
        nodes: By number.
        leaves: Of each feed.
        runs: For each leaf by its number, whether lanes ask for contiguous runs.
    """

    lanes: int
    nodes: list[FeedNode] = field(default_factory=list[FeedNode])
    leaves: list[list[LeafPart]] = field(default_factory=list[list[LeafPart]])
    runs: dict[int, bool] = field(default_factory=dict[int, bool])

    def node_of(self, branch: Branch, *, stripe: int, endless: bool) -> Node:
        """The operators of a branch; an index map becomes a feed.

        Args:
            branch: Compiled part.
            stripe: Batch size of batches that lanes form above a finite one.
            endless: Whether what stands above repeats it for ever.
        """
        if isinstance(branch, LaneBranch):
            return branch.node
        if endless:
            branch.repeat_for_ever()
        node = FeedNode(
            index=len(self.nodes),
            order=branch.index_map(self.lanes),
            first_leaf=branch.leaves[0].number,
            leaf_sizes=tuple(len(leaf.resolved.source) for leaf in branch.leaves),
            lanes=self.lanes,
            stripe=stripe if branch.passes is not None else 1,
        )
        self.nodes.append(node)
        self.leaves.append(branch.leaves)
        self.runs.update((leaf.number, runs) for leaf, runs in zip(branch.leaves, branch.runs(), strict=True))
        return node


def equal_length(branch: IndexBranch, where: str) -> int:
    """Length of a finite branch whose passes are all equally long.

    Raises:
        ConfigError: It is something else.
    """
    if branch.passes is None:
        raise ConfigError(
            f"{where} takes finite datasets, but one of them is endless (a blend by weights, or repeated)"
        )
    if not isinstance(branch.passes, EqualPasses):
        raise ConfigError(
            f"{where} cannot hold a blend by repetitions, whose epochs may differ by a sample; multiply its "
            f"repetitions into one flat `blend_epochized`"
        )
    return branch.passes.samples
