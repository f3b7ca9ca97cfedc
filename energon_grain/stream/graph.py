"""The walk down a graph of dataset nodes."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from energon_grain.datasets.batching import BatchDataset, GroupBatchDataset
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.hooks import is_generator
from energon_grain.datasets.joined_leaf import JoinedLeafDataset, ResolvedJoin
from energon_grain.datasets.leaf import LeafDataset, ResolvedLeaf
from energon_grain.datasets.mapping import FilterDataset, IterMapDataset, MapDataset
from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset, ConcatDataset
from energon_grain.datasets.nodes import EpochizeDataset, LimitDataset, RepeatDataset, ShuffleBufferDataset
from energon_grain.datasets.packing import PackingDataset
from energon_grain.datasets.run_settings import RunSettings
from energon_grain.errors import ConfigError
from energon_grain.samplers.blend import Blend
from energon_grain.samplers.epochized_blend import EpochizedBlend
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.passes import Concat
from energon_grain.samplers.permutation import permute
from energon_grain.samplers.routing import RouteTree
from energon_grain.samplers.step_blend import StepBlend
from energon_grain.samplers.weights import exact
from energon_grain.samplers.window_shuffle import WindowShuffle
from energon_grain.stream.branches import Branch, Feeds, IndexBranch, LaneBranch, equal_length
from energon_grain.stream.hook_specs import OneByOne, hook_spec, require_one_value
from energon_grain.stream.index_map import EqualPasses, FractionalPasses
from energon_grain.stream.leaf_parts import LeafPart
from energon_grain.stream.operators.batching import BatchNode, GroupNode
from energon_grain.stream.operators.feed import FeedNode
from energon_grain.stream.operators.iterating import IterateNode
from energon_grain.stream.operators.mapping import GenerateNode, Keep, MapNode
from energon_grain.stream.operators.mixing import BlendNode, ConcatNode
from energon_grain.stream.operators.operator import Node
from energon_grain.stream.operators.packing import PackNode
from energon_grain.stream.operators.passes import CutNode, RepeatNode
from energon_grain.stream.operators.shuffling import ShuffleNode
from energon_grain.stream.spec import HookSpec


class Mixtures:
    """Compiles mixtures: as index maps where their children are, else as operators of lanes.

    Args:
        compiler: For the children.
        hosts: Number of hosts, for blends that choose once a step.
    """

    def __init__(self, compiler: GraphCompiler, hosts: int) -> None:
        self._compiler = compiler
        self._hosts = hosts

    def _children(self, datasets: tuple[SavableDataset, ...], at: Context, *, endless: bool = False) -> list[Branch]:
        compile_node = self._compiler.compile
        return [compile_node(dataset, at.child(number, endless=endless)) for number, dataset in enumerate(datasets)]

    def blend(self, node: BlendDataset, at: Context) -> Branch:
        """A blend by weights. Above filters it counts items, so that shares are exact in what is left."""
        children = self._children(node.datasets, at, endless=True)
        router, width = self._router(node, at)
        told: dict[str, Any] = {
            "blend": [list(map(list, router.weights)), list(router.starts)],
            "of": [child.told for child in children],
        }
        if width:
            told["per_step"] = width
        batches = any(child.batches for child in children)
        if batches and not width:
            self._compiler.ragged = True
        if all(isinstance(child, IndexBranch) and not child.drops for child in children):
            branches = [child for child in children if isinstance(child, IndexBranch)]
            return IndexBranch(
                leaves=[leaf for branch in branches for leaf in branch.leaves],
                routes=RouteTree(router, [branch.routes for branch in branches]),
                passes=None,
                told=told,
                batches=batches,
                one_pass=sum(branch.samples() for branch in branches),
            )
        weights = router.weights[0]
        blend = BlendNode(
            nodes=tuple(self._compiler.feeds.node_of(child, stripe=1, endless=True) for child in children),
            router=router,
            lanes=self._compiler.lanes,
            shares=tuple(weight / sum(weights) for weight in weights),
        )
        return LaneBranch(blend, told, batches)

    def _router(self, node: BlendDataset, at: Context) -> tuple[Blend | StepBlend, int]:
        """The arithmetic of a blend, and how many items share a choice (0: each has its own)."""
        lanes = self._compiler.lanes
        width = self._hosts if node.per_step is True else int(node.per_step)
        if width and (lanes % width or width % self._hosts):
            raise ConfigError(
                f"BlendDataset: per_step={node.per_step!r} is {width} items a choice, with {self._hosts} hosts and "
                f"{lanes} lanes: it must be a multiple of the number of hosts and divide the lanes. Give "
                f"per_step=<the largest number of hosts that the run shall continue on> and a multiple of it as lanes="
            )
        width = width if width > 1 else 0
        schedule = [(start, list(weights)) for start, weights in node.schedule]
        key = fold(at.seed, "blend", at.place)
        if width:
            uneven = [start for start, _ in schedule if start % width]
            if uneven:
                raise ConfigError(
                    f"BlendDataset: the schedule changes at {uneven}, inside a step of {width} items: begin segments "
                    f"at multiples of it"
                )
            schedule = [(start // width, weights) for start, weights in schedule]
        inner = lanes // max(1, width)
        blend = (
            Blend(schedule[0][1], lanes=inner, key=key)
            if len(schedule) == 1
            else Blend(schedule=schedule, lanes=inner, key=key)
        )
        return (StepBlend(blend, width=width) if width else blend), width

    def blend_epochized(self, node: BlendEpochizedDataset, at: Context) -> Branch:
        """A blend by repetitions."""
        branches: list[IndexBranch] = []
        for child in self._children(node.datasets, at):
            if not isinstance(child, IndexBranch):
                raise ConfigError(
                    "BlendEpochizedDataset: one of the datasets generates, groups, batches or packs, so its length is "
                    "not known beforehand: blend by repetitions first, and pack (or batch) the blend; or use a "
                    "BlendDataset by weights"
                )
            branches.append(child)
        lengths = [equal_length(branch, "a blend by repetitions") for branch in branches]
        key = fold(at.seed, "blend_epochized", at.place)
        router = EpochizedBlend(lengths, node.repetitions, lanes=self._compiler.lanes, key=key)
        told = {"blend_epochized": [str(number) for number in node.repetitions], "of": [b.told for b in branches]}
        return IndexBranch(
            leaves=[leaf for branch in branches for leaf in branch.leaves],
            routes=RouteTree(router, [branch.routes for branch in branches]),
            passes=router,
            told=told,
            drops=any(branch.drops for branch in branches),
            batches=any(branch.batches for branch in branches),
        )

    def concat(self, node: ConcatDataset, at: Context) -> Branch:
        """One after the other."""
        children = self._children(node.datasets, at)
        told = {"concat": len(children), "of": [child.told for child in children]}
        batches = any(child.batches for child in children)
        if len(children) > 1 and batches:
            self._compiler.ragged = True
        branches = [child for child in children if isinstance(child, IndexBranch)]
        if len(branches) == len(children) and all(isinstance(b.passes, EqualPasses | None) for b in branches):
            lengths = [equal_length(branch, "a concatenation") for branch in branches]
            return IndexBranch(
                leaves=[leaf for branch in branches for leaf in branch.leaves],
                routes=RouteTree(Concat(lengths), [branch.routes for branch in branches]),
                passes=EqualPasses(sum(lengths)),
                told=told,
                drops=any(branch.drops for branch in branches),
                same_pass=all(branch.same_pass for branch in branches),
                batches=batches,
            )
        nodes = tuple(self._compiler.feeds.node_of(child, stripe=at.stripe, endless=False) for child in children)
        if not all(each.finite for each in nodes):
            raise ConfigError(
                "a concatenation takes finite datasets, but one of them is endless (a blend by weights, or repeated)"
            )
        return LaneBranch(ConcatNode(nodes), told, batches)


@dataclass(frozen=True, slots=True)
class Context:
    """What holds at a place of the graph.

    Attributes:
        seed: 64-bit hash of the seed.
        place: Numbers of the children of mixtures on the way down.
        level: Stateful nodes on the way down; with `place` it keys a node's random choices.
        in_lane: Whether batches, groups or packs are formed in a lane above.
        stripe: Batch size of the batches that are formed right above; else 1.
        endless: Whether all that is here is repeated for ever: then passes have no meaning, and batches, groups and
            packs go over the ends of them.
        iterated: Whether a function from stream to stream stands above.
    """

    seed: int
    place: str = ""
    level: int = 0
    in_lane: bool = False
    stripe: int = 1
    endless: bool = False
    iterated: bool = False

    def below(self, *, forms: bool = False, stripe: int = 1) -> Context:
        """Below a stateful node; `forms`: one that batches, groups or packs."""
        return dataclasses.replace(self, level=self.level + 1, in_lane=self.in_lane or forms, stripe=stripe)

    def child(self, number: int, *, endless: bool = False) -> Context:
        """Below a mixture."""
        return dataclasses.replace(self, place=f"{self.place}.{number}", endless=endless)

    def repeated(self, endless: bool) -> Context:
        """Below a node that repeats its child for ever, or that needs the ends of its passes."""
        return dataclasses.replace(self, endless=endless)


class GraphCompiler:
    """Compiles nodes, and knows the leaves that it met.

    Args:
        lanes: L.
        hosts: Number of hosts, for blends that choose once a step.
        resolved: The leaves in document order, where they were resolved before.
    """

    def __init__(
        self, *, lanes: int, hosts: int, resolved: Sequence[ResolvedLeaf | ResolvedJoin] | None = None
    ) -> None:
        self.lanes = lanes
        self.leaves: list[LeafPart] = []
        self.feeds = Feeds(lanes)
        self.ragged = False
        self._resolved = resolved
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._keys: Counter[tuple[str, str, int]] = Counter()
        self._mixtures = Mixtures(self, hosts)

    def compile(self, node: SavableDataset, at: Context) -> Branch:
        """One node with all below it.

        Raises:
            ConfigError: The nodes do not fit together, or a leaf's configuration is wrong.
            EmptyDatasetError: A leaf is empty.
        """
        match node:
            case LeafDataset() | JoinedLeafDataset():
                return self._leaf(node, at)
            case RunSettings():
                seed = fold(node.seed, node.worker_config.seed_offset)
                branch = self.compile(node.dataset, dataclasses.replace(at, seed=seed))
                if isinstance(branch, IndexBranch):
                    branch.same_pass = branch.same_pass or node.same_pass
                return branch
            case BlendDataset():
                return self._mixtures.blend(node, at)
            case BlendEpochizedDataset():
                return self._mixtures.blend_epochized(node, at)
            case ConcatDataset():
                return self._mixtures.concat(node, at)
            case MapDataset():
                return self._map(node, at)
            case FilterDataset():
                hook = hook_spec(node.hook, node.filter_fn, node.task_encoder, node.failure_tolerance)
                require_one_value(node.hook, node.filter_fn)
                return self._filter(self.compile(node.dataset, at), with_function(hook, Keep(node.filter_fn)), at)
            case IterMapDataset():
                return self._iterate(node, at)
            case BatchDataset():
                return self._batch(node, at)
            case GroupBatchDataset():
                return self._group(node, at)
            case PackingDataset():
                return self._pack(node, at)
            case RepeatDataset():
                return self._repeat(self.compile(node.dataset, at.repeated(node.repeats is None)), node.repeats)
            case LimitDataset():
                return self._limit(self.compile(node.dataset, at.repeated(False)), node.length, at)
            case EpochizeDataset():
                return self._epochize(self.compile(node.dataset, at.repeated(True)), node, at)
            case ShuffleBufferDataset():
                return self._shuffle(self.compile(node.dataset, at), node.size, at)
            case _:
                raise ConfigError(f"a {type(node).__name__} is not a dataset that can be run")

    def _key(self, at: Context, purpose: str) -> int:
        """64-bit key of a node: no two of one purpose at one place share it."""
        place = (purpose, at.place, at.level)
        self._keys[place] += 1
        return fold(at.seed, *place, self._keys[place])

    def _node(self, branch: Branch, at: Context, *, stripe: int | None = None) -> Node:
        """The operators of a branch below a node at this place."""
        return self.feeds.node_of(branch, stripe=at.stripe if stripe is None else stripe, endless=at.endless)

    def _leaf(self, node: LeafDataset | JoinedLeafDataset, at: Context) -> IndexBranch:
        occurrence = self._seen[node.identity]
        self._seen[node.identity] += 1
        part = LeafPart(
            node=node,
            resolved=node.resolve() if self._resolved is None else self._resolved[len(self.leaves)],
            key=(*node.identity, str(occurrence)),
            seed=at.seed,
            number=len(self.leaves),
            in_lane=at.in_lane,
        )
        self.leaves.append(part)
        return IndexBranch([part], None, EqualPasses(len(part.resolved.source)), None)

    def _map(self, node: MapDataset, at: Context) -> Branch:
        hook = hook_spec(node.hook, node.map_fn, node.task_encoder, node.failure_tolerance)
        if not is_generator(node.map_fn):
            return self.add_hook(self.compile(node.dataset, at), hook, at)
        child = self.compile(node.dataset, at.below())
        key = self._key(at, f"generate {hook.name}")
        generate = GenerateNode(self._node(child, at), hook, key, knows_batches=not at.iterated)
        return LaneBranch(generate, {"generate": child.told})

    def add_hook(self, branch: Branch, hook: HookSpec, at: Context) -> Branch:
        """A hook on each item: in the pure stage wherever that gives the same."""
        if isinstance(branch, IndexBranch):
            for leaf in branch.leaves:
                leaf.add_hook(hook)
            return branch
        if not self._push(branch.node, hook):
            branch.node = MapNode(branch.node, hook, self._key(at, f"map {hook.name}"))
        return branch

    def _push(self, node: Node, hook: HookSpec) -> bool:
        """Apply a hook to all feeds below nodes that only choose among items; False where there are others."""
        feeds = _feeds_below(node)
        if feeds is None:
            return False
        for feed in feeds:
            for leaf in self.feeds.leaves[feed.index]:
                leaf.add_hook(hook)
        return True

    def _filter(self, branch: Branch, hook: HookSpec, at: Context) -> Branch:
        if isinstance(branch, IndexBranch):
            for leaf in branch.leaves:
                leaf.add_hook(hook)
            branch.drops = True
            branch.told = {"filter": hook.name, "of": branch.told}
            return branch
        return LaneBranch(
            MapNode(branch.node, hook, self._key(at, f"filter {hook.name}")),
            {"filter": hook.name, "of": branch.told},
            branch.batches,
        )

    def _iterate(self, node: IterMapDataset, at: Context) -> Branch:
        child = self.compile(node.dataset, dataclasses.replace(at.below(), iterated=True))
        told = {"iter_map": node.inputs_per_call, "of": child.told}
        iterate = IterateNode(
            child=self._node(child, at),
            hook=hook_spec(node.hook, node.iter_map_fn, node.task_encoder),
            key=self._key(at, f"iterate {node.hook}"),
            inputs=node.inputs_per_call,
            length=node.len_map_fn,
        )
        return LaneBranch(iterate, told)

    def _batch(self, node: BatchDataset, at: Context) -> Branch:
        hook = hook_spec(node.hook, node.batcher, node.task_encoder, node.failure_tolerance)
        several = is_generator(node.batcher)
        if node.batch_size == 1 and not several:
            branch = self.add_hook(self.compile(node.dataset, at), with_function(hook, OneByOne(node.batcher)), at)
            branch.batches = True
            return branch
        stripe = node.batch_size * at.stripe  # batches of batches: all of one lane's positions follow each other
        child = self.compile(node.dataset, at.below(forms=True, stripe=stripe))
        batch = BatchNode(
            child=self._node(child, at, stripe=stripe),
            hook=hook,
            generates=several,
            key=self._key(at, f"batch {hook.name}"),
            size=node.batch_size,
            drop_last=node.last_batch == "drop",
        )
        told = {"batch": node.batch_size, "drop_last": batch.drop_last, "generates": several, "of": child.told}
        return LaneBranch(batch, told, batches=True)

    def _group(self, node: GroupBatchDataset, at: Context) -> Branch:
        require_one_value(node.hook, node.batcher)
        require_one_value(node.group_hook, node.sample_group_key)
        self.ragged = True
        child = self.compile(node.dataset, at.below(forms=True))
        group = GroupNode(
            child=self._node(child, at, stripe=1),
            hook=hook_spec(node.hook, node.batcher, node.task_encoder, node.failure_tolerance),
            generates=False,
            key=self._key(at, f"group {node.hook}"),
            criterion=hook_spec(node.group_hook, node.sample_group_key, node.task_encoder),
            size=node.fixed_batch_size,
            drop_last=node.drop_last,
        )
        told = {"group": node.fixed_batch_size, "drop_last": node.drop_last, "of": child.told}
        return LaneBranch(group, told, batches=True)

    def _pack(self, node: PackingDataset, at: Context) -> Branch:
        require_one_value("select_samples_to_pack", node.pre_packer)
        if node.sample_encoder is not None:
            require_one_value("postencode_sample", node.sample_encoder)
        owner = node.task_encoder
        child = self.compile(node.dataset, at.below(forms=True))
        key = self._key(at, "pack")
        pack = PackNode(
            child=self._node(child, at, stripe=1),
            hook=hook_spec("pack_selected_samples", node.final_packer, owner, node.final_packer_failure_tolerance),
            generates=is_generator(node.final_packer),
            key=key,
            size=node.buffer_size,
            selector=hook_spec("select_samples_to_pack", node.pre_packer, owner, node.pre_packer_failure_tolerance),
            encoder=None
            if node.sample_encoder is None
            else hook_spec("postencode_sample", node.sample_encoder, owner, node.sample_encoder_failure_tolerance),
            phases=tuple(permute(np.arange(self.lanes), self.lanes, fold(key, "phases")).tolist()),
        )
        return LaneBranch(pack, {"pack": node.buffer_size, "generates": pack.generates, "of": child.told})

    def _repeat(self, branch: Branch, repeats: int | float | Fraction | None) -> Branch:
        if isinstance(branch, LaneBranch):
            times = None if repeats is None else exact(repeats)
            if not branch.node.finite:
                if times is None:
                    return branch
                raise ConfigError("RepeatDataset: what is endless cannot be repeated a number of times; cut it first")
            if times is not None and times.denominator != 1:
                raise ConfigError(
                    f"RepeatDataset: repeats={repeats} of a dataset that filters, groups or packs, whose length is not "
                    f"known: give a whole number, or repeat what lies below it"
                )
            number = None if times is None else int(times)
            return LaneBranch(RepeatNode(branch.node, number), {"repeat": number, "of": branch.told}, branch.batches)
        if repeats is None:
            branch.repeat_for_ever()
            return branch
        if not isinstance(branch.passes, EqualPasses):
            raise ConfigError(
                f"RepeatDataset: repeats={repeats} of an endless dataset, or of one whose passes differ in length; "
                f"repeat what lies below it, or multiply the repetitions"
            )
        samples = branch.passes.samples * exact(repeats)
        branch.passes = EqualPasses(int(samples)) if samples.denominator == 1 else FractionalPasses(samples)
        branch.told = {"repeat": str(exact(repeats)), "of": branch.told}
        return branch

    def _limit(self, branch: Branch, length: int, at: Context) -> Branch:
        told = {"limit": length, "of": branch.told}
        if isinstance(branch, IndexBranch) and not branch.drops:
            if branch.passes is None:
                branch.passes = EqualPasses(length)
            else:
                from energon_grain.samplers.passes import Limit
                from energon_grain.stream.branches import equal_length

                limit = Limit(length, equal_length(branch, "a limit"))
                branch.routes, branch.passes = branch.over(limit), EqualPasses(limit.limit)
            branch.told = told
            return branch
        node = self._node(branch, at.repeated(False))
        return LaneBranch(CutNode(node, length, self.lanes, goes_on=not node.finite), told, branch.batches)

    def _epochize(self, branch: Branch, node: EpochizeDataset, at: Context) -> Branch:
        length = node.length
        if length is None:
            assert node.num_epochs is not None
            one = branch.samples() if isinstance(branch, IndexBranch) else branch.node.items()
            length = max(1, math.floor(exact(node.num_epochs) * one))
        told = {"epochs": length, "of": branch.told}
        if isinstance(branch, IndexBranch) and not branch.drops:
            branch.passes, branch.told, branch.same_pass = EqualPasses(length), told, False
            return branch
        below = self._node(branch, at.repeated(True))
        return LaneBranch(CutNode(below, length, self.lanes, goes_on=True), told, branch.batches)

    def _shuffle(self, branch: Branch, size: int, at: Context) -> Branch:
        if size == 1:
            return branch
        told = {"shuffle": size, "of": branch.told}
        key = self._key(at, "shuffle")
        if isinstance(branch, IndexBranch):
            branch.routes = branch.over(WindowShuffle(size, key=key, passes=branch.passes))
            branch.told = told
            return branch
        window = -(-size // self.lanes)
        return LaneBranch(ShuffleNode(branch.node, window, key), told, branch.batches)


def with_function(hook: HookSpec, function: Callable[[Any], Any]) -> HookSpec:
    """The hook with another function in place of its own."""
    return dataclasses.replace(hook, function=function)


def _feeds_below(node: Node) -> list[FeedNode] | None:
    """Feeds of a node whose items are those of feeds, whatever their values; None for any other."""
    if isinstance(node, FeedNode):
        return [node]
    if not isinstance(node, BlendNode | ConcatNode | RepeatNode | ShuffleNode):
        return None
    feeds: list[FeedNode] = []
    for child in node.children():
        below = _feeds_below(child)
        if below is None:
            return None
        feeds += below
    return feeds
