"""Leaves in the making: what lowering a graph learns of each before its spec can be made."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from energon_grain.datasets.aux_cooking import bind_cooker
from energon_grain.datasets.aux_stores import open_aux, open_primary
from energon_grain.datasets.hooks import hook_spec, overridden_hook, require_one_value, with_own_name
from energon_grain.errors import ConfigError
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.leaf_order import LeafOrder, window_blocks
from energon_grain.sources.cache_pool import CachePool
from energon_grain.sources.remote_runs import ReadInRuns
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.leaves import LeafSpec

if TYPE_CHECKING:
    from energon_grain.datasets.joined_leaf import JoinedLeafDataset
    from energon_grain.datasets.leaf import LeafDataset
    from energon_grain.stream.leaves import ResolvedJoin, ResolvedLeaf

BLOCKS_IN_LANE = 16
"""Blocks that mix in a lane where batches or packs are formed in it: `parallel_shard_iters`."""


@dataclass(slots=True, eq=False)
class LeafPart:
    """One leaf of the graph.

    Attributes:
        node: The description.
        resolved: Its configuration and open index.
        key: Its identity in random keys, the occurrence among equal ones included.
        seed: 64-bit hash of the seed that holds where it stands.
        number: Among all leaves, in document order.
        in_lane: Whether batches, groups or packs are formed in a lane above it.
        hooks: On its samples, in order.
    """

    node: LeafDataset | JoinedLeafDataset
    resolved: ResolvedLeaf | ResolvedJoin
    key: tuple[str, ...]
    seed: int
    number: int
    in_lane: bool
    hooks: list[HookSpec] = field(default_factory=list[HookSpec])

    def add_hook(self, hook: HookSpec) -> None:
        """Apply a hook behind the others."""
        self.hooks.append(with_own_name(hook, self.hooks))

    def order(self, lanes: int, runs: bool) -> LeafOrder:
        """The order of its samples; `runs`: whether lanes ask for contiguous runs of positions."""
        ordering, samples = self.resolved.ordering, len(self.resolved.source)
        key = fold(self.seed, "leaf", *self.key)
        if not ordering.training or ordering.passes is None:
            return LeafOrder(n=samples, key=key, shuffle=False, runs=runs)
        passes = 1 if ordering.passes == -1 else ordering.passes
        block = wanted_block(self.resolved)
        if block is not None and samples * passes < block * lanes:
            # With fewer blocks than lanes, lanes would share blocks, and hardly more than the order inside a lane's few
            # samples would be random. It is a small dataset, too.
            block = None
        window = 1
        if block is not None:
            at_least = (ordering.blocks_in_lane or BLOCKS_IN_LANE) if self.in_lane else 1
            window = window_blocks(block=block, lanes=lanes, shuffle_buffer_size=ordering.mixing, at_least=at_least)
        return LeafOrder(
            n=samples,
            key=key,
            block=block,
            window=window,
            passes=passes,
            replacement=ordering.passes == -1,
            runs=runs,
        )

    def spec(self, lanes: int, runs: bool, cache_pool: CachePool | None) -> LeafSpec:
        """Everything that the stream needs of it."""
        return LeafSpec(
            key=self.key,
            leaf=self.resolved,
            order=self.order(lanes, runs),
            hook_key=fold(self.seed, "hooks", *self.key),
            cook=None if self.resolved.sample_type is not None else _cook(self.node, self.resolved, cache_pool),
            hooks=tuple(self.hooks),
            failure_tolerance=self.node.task_encoder.__default_failure_tolerance__,
        )


def wanted_block(leaf: ResolvedLeaf | ResolvedJoin) -> int | None:
    """Consecutive samples to read together where there are enough of them; None: each by itself."""
    if leaf.ordering.block is None and isinstance(leaf.source, ReadInRuns):
        return leaf.source.run_samples
    return leaf.ordering.block


def _cook(
    node: LeafDataset | JoinedLeafDataset, leaf: ResolvedLeaf | ResolvedJoin, cache_pool: CachePool | None
) -> HookSpec | None:
    """The task encoder's first cooker that fits the leaf. Without any cooker, crude samples pass as they are."""
    encoder = node.task_encoder
    if not encoder.cookers:
        return None
    for cooker in encoder.cookers:
        if cooker.is_match(leaf.subflavors):
            break
    else:
        raise ConfigError(
            f"{node.path}: no cooker fits its subflavors {leaf.subflavors}; the task encoder's cookers are "
            f"for {[cooker.has_subflavors for cooker in encoder.cookers]}"
        )
    function = bind_cooker(
        cooker,
        open_aux(node.aux, encoder.decoder),
        open_primary(leaf.path, leaf.decoder) if cooker.need_primary else None,
        encoder.cache if cache_pool is None else cache_pool,
        through=overridden_hook(encoder, "cook_crude_sample"),
        where=node.path,
    )
    require_one_value("cook_crude_sample", cooker.cook)
    # What `@stateless` says is said of the user's function; the bound one has no marks.
    return dataclasses.replace(hook_spec("cook_crude_sample", cooker.cook, encoder), function=function)
