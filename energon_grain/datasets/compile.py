"""From a graph of dataset nodes to a `StreamSpec`: leaf keys, seeds and lanes are resolved here, once."""

from __future__ import annotations

import math

from energon_grain.datasets.cache_pool import CachePool
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.lowering import IndexPart, LanePart, Lowering, Part, Steps
from energon_grain.datasets.passes import CutLanes, RepeatLanes, epoch_length
from energon_grain.datasets.run_settings import settings_of
from energon_grain.stream.index_map import EqualPasses
from energon_grain.stream.lanes import LaneOperator
from energon_grain.stream.spec import Program, StreamSpec

DEFAULT_LANES = 48
BUFFERS_IN_LANE = 20
"""Full buffers that a lane should have in a pass that packs or groups: one of them, the last, is not full."""


def compile_dataset(
    dataset: SavableDataset, *, hosts: int | None = None, cache_pool: CachePool | None = None
) -> StreamSpec:
    """Resolve a dataset into everything that decides what comes out of it.

    Args:
        dataset: Outermost node.
        hosts: Number of hosts, for the default of `lanes`; default: as the dataset's `worker_config` says.
        cache_pool: What hooks get as `cache`; None: what their task encoder says.

    Raises:
        ConfigError: The nodes do not fit together, or a leaf's configuration is wrong.
        EmptyDatasetError: A leaf is empty.
    """
    hosts = hosts or dataset.worker_config.world_size
    settings = settings_of(dataset)
    steps = Steps.over(dataset)
    seed = settings.key if steps.seed is None else steps.seed
    endless = steps.endless or bool(steps.epochs)
    lanes = settings.lanes or math.lcm(DEFAULT_LANES, hosts)
    to = Lowering.begin(seed=seed, endless=endless, lanes=lanes, hosts=hosts)
    part = steps.below.lower(to)
    if settings.lanes is None and isinstance(part, LanePart) and part.operator.finite:
        lanes = _lanes_for(part.operator, hosts)
        if lanes != to.lanes:
            resolved = [leaf.resolved for leaf in to.graph.leaves]
            to = Lowering.begin(seed=seed, endless=endless, lanes=lanes, hosts=hosts, resolved=resolved)
            part = steps.below.lower(to)
    same_pass = settings.same_pass or steps.same_pass or steps.resets
    if steps.resets:
        _repeat_for_limit(part, steps, hosts, lanes)
    if isinstance(part, IndexPart):
        part.same_pass = same_pass = part.same_pass or same_pass
    epoch = _epoch(part, steps, hosts)
    if isinstance(part, IndexPart):
        if endless:
            part.repeat_for_ever()
        index_map, program = part.index_map(lanes), None
        runs = {leaf.number: each for leaf, each in zip(part.leaves, part.runs(), strict=True)}
    else:
        root = RepeatLanes(part.operator, None) if endless and part.operator.finite else part.operator
        index_map, program, runs = None, Program(root=root, feeds=tuple(to.graph.feeds)), to.graph.runs
    return StreamSpec(
        seed=settings.key,
        written_seed=(settings.seed, settings.worker_config.seed_offset),
        lanes=lanes,
        leaves=tuple(leaf.spec(lanes, runs[leaf.number], cache_pool) for leaf in to.graph.leaves),
        index_map=index_map,
        program=program,
        mixture=part.mixture,
        batch=steps.batch,
        steps=epoch,
        limit=steps.limit,
        same_pass=same_pass,
        ragged=to.graph.ragged and steps.batch is None,
        cache_pool=cache_pool,
    )


def _repeat_for_limit(part: Part, steps: Steps, hosts: int, lanes: int) -> None:
    """Make passes of as many passes below as the limit takes; of twice that, as samples may be dropped."""
    assert steps.limit is not None
    items = 2 * steps.limit * hosts * (1 if steps.batch is None else steps.batch.size)
    if isinstance(part, IndexPart):
        part.repeat_for_ever()
        part.passes = EqualPasses(items)
    elif part.operator.finite:
        part.operator = CutLanes(RepeatLanes(part.operator, items), items, lanes, goes_on=False)


def _epoch(part: Part, steps: Steps, hosts: int) -> int | None:
    """Batches per host of a virtual epoch."""
    size = hosts * (1 if steps.batch is None else steps.batch.size)
    return min((epoch_length(epoch, part.items(), size) for epoch in steps.epochs), default=None)


def _lanes_for(root: LaneOperator, hosts: int) -> int:
    """The default number of lanes where passes end: what is left in them at the end should hardly matter.

    As many as leave each of them `BUFFERS_IN_LANE` buffers in a pass, of the divisors of lcm(48, hosts) that are
    multiples of the hosts; one a host at least. So it does not depend on the number of hosts as long as that divides
    what one host would take.
    """
    most = math.lcm(DEFAULT_LANES, hosts)
    enough = min((buffers // BUFFERS_IN_LANE for buffers in root.buffers()), default=most)
    return max(lanes for lanes in range(hosts, most + 1, hosts) if most % lanes == 0 and lanes <= max(enough, hosts))
