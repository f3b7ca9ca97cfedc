"""From a graph of dataset nodes to a `StreamSpec`: leaf keys, seeds and lanes are resolved here, once."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from energon_grain.datasets.batching import BatchDataset
from energon_grain.datasets.cache_pool import CachePool
from energon_grain.datasets.collect_garbage import GcDataset
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.hooks import is_generator
from energon_grain.datasets.log_samples import LogSampleDataset
from energon_grain.datasets.mapping import FilterDataset, MapDataset
from energon_grain.datasets.nodes import EpochizeDataset, LimitDataset, RepeatDataset
from energon_grain.datasets.run_settings import RunSettings
from energon_grain.errors import ConfigError
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.weights import exact
from energon_grain.stream.branches import Branch, IndexBranch, LaneBranch
from energon_grain.stream.graph import Context, GraphCompiler
from energon_grain.stream.hook_specs import hook_spec, with_own_name
from energon_grain.stream.operators.batching import GroupNode
from energon_grain.stream.operators.mapping import Keep, MapNode
from energon_grain.stream.operators.operator import Node
from energon_grain.stream.operators.packing import PackNode
from energon_grain.stream.operators.passes import RepeatNode
from energon_grain.stream.spec import BatchSpec, HookSpec, Program, StreamSpec

DEFAULT_LANES = 48
BUFFERS_IN_LANE = 20
"""Full buffers that a lane should have in a pass that packs or groups: one of them, the last, is not full."""
_BUCKETS = 8
"""Criteria that groups are assumed to have, and items of a group whose size the criterion says."""


@dataclass(slots=True)
class _Top:
    """What stands above the graph that lanes run: it works on whole steps.

    Attributes:
        below: The rest.
        batch: Makes the batches of a step; None: items are delivered one by one.
        batch_hooks: On batches, in order.
        epochs: Cut the stream into virtual epochs, the innermost first.
        limit: Batches per host after which a pass ends.
        endless: Whether the rest is repeated for ever.
        seed: 64-bit hash of the seed that holds below, where it differs from the run's.
    """

    below: SavableDataset
    batch: BatchDataset | None = None
    batch_hooks: list[HookSpec] = field(default_factory=list[HookSpec])
    epochs: list[EpochizeDataset] = field(default_factory=list[EpochizeDataset])
    limit: int | None = None
    endless: bool = False
    seed: int | None = None
    same_pass: bool = False


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
    settings = _settings(dataset)
    offset = settings.worker_config.seed_offset
    seed = fold(settings.seed, offset)
    top = _top(dataset)
    compiler = GraphCompiler(lanes=settings.lanes or math.lcm(DEFAULT_LANES, hosts), hosts=hosts)
    endless = top.endless or bool(top.epochs)
    at = Context(seed=seed if top.seed is None else top.seed, endless=endless)
    branch = compiler.compile(top.below, at)
    if settings.lanes is None and isinstance(branch, LaneBranch) and branch.node.finite:
        lanes = _lanes_for(branch.node, hosts)
        if lanes != compiler.lanes:
            compiler = GraphCompiler(lanes=lanes, hosts=hosts, resolved=[leaf.resolved for leaf in compiler.leaves])
            branch = compiler.compile(top.below, at)
    lanes = compiler.lanes
    same_pass = settings.same_pass or top.same_pass
    if isinstance(branch, IndexBranch):
        branch.same_pass = same_pass = branch.same_pass or same_pass
    steps = _steps(branch, top, hosts)
    _repeat(branch, top)
    program = None
    if not isinstance(branch, IndexBranch):
        program = Program(root=_outermost(branch.node), feeds=tuple(compiler.feeds.nodes))
        runs = compiler.feeds.runs
    else:
        runs = {leaf.number: each for leaf, each in zip(branch.leaves, branch.runs(), strict=True)}
    return StreamSpec(
        seed=seed,
        written_seed=(settings.seed, offset),
        lanes=lanes,
        leaves=tuple(leaf.spec(lanes, runs[leaf.number], cache_pool) for leaf in compiler.leaves),
        index_map=branch.index_map(lanes) if isinstance(branch, IndexBranch) else None,
        program=program,
        mixture=branch.told,
        batch=_batch(top),
        steps=steps,
        limit=top.limit,
        same_pass=same_pass,
        ragged=compiler.ragged and top.batch is None,
        cache_pool=cache_pool,
    )


def _outermost(node: Node) -> Node:
    """The root of lanes, where hooks that nothing but the batch of a step stands above know that."""
    return replace(node, child=_outermost(node.child), outermost=True) if isinstance(node, MapNode) else node


def _settings(dataset: SavableDataset) -> RunSettings:
    """Seed and lanes of the run: of the outermost settings, or of those of the parts that it is put together from."""
    outermost = next(_all_settings(dataset), None)
    if outermost is None:
        return RunSettings(worker_config=dataset.worker_config, dataset=dataset)
    said = {each.lanes for each in _all_settings(dataset)} - {None}
    node: SavableDataset | None = dataset
    while node is not None and not isinstance(node, RunSettings):
        node = getattr(node, "dataset", None)
    if isinstance(node, RunSettings) and node.lanes is not None:
        said = {node.lanes}
    if len(said) > 1:
        raise ConfigError(
            f"datasets with lanes={sorted(lanes for lanes in said if lanes)} in one stream: lanes are a constant of "
            f"the run; give all parts the same number"
        )
    whole = isinstance(node, RunSettings)
    return RunSettings(
        worker_config=outermost.worker_config if whole else dataset.worker_config,
        dataset=dataset,
        seed=outermost.seed,
        lanes=next(iter(said), None),
        same_pass=all(each.same_pass for each in _all_settings(dataset)),
    )


def _lanes_for(root: Node, hosts: int) -> int:
    """The default number of lanes where passes end: what is left in them at the end should hardly matter.

    As many as leave each of them `BUFFERS_IN_LANE` buffers in a pass, of the divisors of lcm(48, hosts) that are
    multiples of the hosts; one a host at least. So it does not depend on the number of hosts as long as that divides
    what one host would take.
    """
    most = math.lcm(DEFAULT_LANES, hosts)
    enough = min((buffers // BUFFERS_IN_LANE for buffers in _full_buffers(root)), default=most)
    return max(lanes for lanes in range(hosts, most + 1, hosts) if most % lanes == 0 and lanes <= max(enough, hosts))


def _full_buffers(node: Node) -> Iterator[int]:
    """For each pack and group, how often a pass fills a buffer."""
    if isinstance(node, PackNode) and node.finite:
        yield node.child.items() // node.size
    elif isinstance(node, GroupNode) and node.finite:
        yield node.child.items() // ((node.size or _BUCKETS) * _BUCKETS)
    for child in node.children():
        yield from _full_buffers(child)


def _all_settings(node: SavableDataset) -> Iterator[RunSettings]:
    """All settings in a graph, the outermost first, from left to right."""
    if isinstance(node, RunSettings):
        yield node
    below = getattr(node, "datasets", None) or (getattr(node, "dataset", None),)
    for child in below:
        if child is not None:
            yield from _all_settings(child)


def _top(dataset: SavableDataset) -> _Top:
    """What works on whole steps: everything down to the outermost batch, or what only cuts the stream."""
    top = _Top(below=dataset)
    node = dataset
    while not isinstance(node, BatchDataset):
        if not _is_above_batches(node):
            return _cuts(dataset)
        _note(node, top)
        if isinstance(node, MapDataset):
            hook = hook_spec(node.hook, node.map_fn, node.task_encoder, node.failure_tolerance)
            top.batch_hooks.insert(0, hook)
        elif isinstance(node, FilterDataset):
            hook = hook_spec(node.hook, Keep(node.filter_fn), node.task_encoder, node.failure_tolerance)
            top.batch_hooks.insert(0, hook)
        elif isinstance(node, RepeatDataset):
            top.endless = True
        node = node.dataset  # type: ignore[attr-defined]
    if is_generator(node.batcher):
        return _cuts(dataset)
    top.batch, top.below = node, node.dataset
    named = [_batch_hook(node)]
    for hook in top.batch_hooks:
        named.append(with_own_name(hook, named))
    top.batch_hooks = named[1:]
    return top


def _is_above_batches(node: SavableDataset) -> bool:
    match node:
        case RunSettings() | EpochizeDataset() | LimitDataset() | FilterDataset():
            return True
        case MapDataset():
            return not is_generator(node.map_fn)
        case RepeatDataset():
            return node.repeats is None
        case _:
            return False


def _cuts(dataset: SavableDataset) -> _Top:
    """The same where items are delivered one by one: nothing but what cuts the stream, and who watches it."""
    top = _Top(below=dataset)
    watching: list[LogSampleDataset | GcDataset] = []
    while isinstance(top.below, RunSettings | EpochizeDataset | LimitDataset | LogSampleDataset | GcDataset):
        if isinstance(top.below, LogSampleDataset | GcDataset):
            watching.append(top.below)
        else:
            _note(top.below, top)
        top.below = top.below.dataset
    for node in reversed(watching):  # below the cuts they see the same items
        below = copy.copy(node)
        object.__setattr__(below, "dataset", top.below)
        top.below = below
    return top


def _note(node: SavableDataset, top: _Top) -> None:
    match node:
        case RunSettings():
            top.seed = fold(node.seed, node.worker_config.seed_offset)
            top.same_pass = node.same_pass
        case EpochizeDataset():
            top.epochs.append(node)
        case LimitDataset():
            top.limit = node.length if top.limit is None else min(top.limit, node.length)
        case _:
            pass
    if len(top.epochs) + (top.limit is not None) > 1:
        raise ConfigError(
            "several of EpochizeDataset (or virtual_epoch_length) and LimitDataset (or limit=) cut one stream: keep "
            "the one that says how many batches an iteration shall have"
        )


def _repeat(branch: Branch, top: _Top) -> None:
    """Make endless what is repeated, or cut into epochs that do not fall together with passes."""
    if not (top.endless or top.epochs):
        return
    if isinstance(branch, IndexBranch):
        branch.repeat_for_ever()
    elif branch.node.finite:
        branch.node = RepeatNode(branch.node, None)


def _steps(branch: Branch, top: _Top, hosts: int) -> int | None:
    """Batches per host of a virtual epoch."""
    steps: list[int] = []
    for epoch in top.epochs:
        if epoch.length is not None:
            steps.append(epoch.length)
            continue
        assert epoch.num_epochs is not None
        items = branch.samples() if isinstance(branch, IndexBranch) else branch.node.items()
        size = hosts * (1 if top.batch is None else top.batch.batch_size)
        steps.append(max(1, math.floor(exact(epoch.num_epochs) * items / size)))
    return min(steps) if steps else None


def _batch_hook(node: BatchDataset) -> HookSpec:
    return hook_spec(node.hook, node.batcher, node.task_encoder, node.failure_tolerance)


def _batch(top: _Top) -> BatchSpec | None:
    if top.batch is None:
        return None
    node = top.batch
    return BatchSpec(
        size=node.batch_size,
        hook=_batch_hook(node),
        last=node.last_batch,
        encode=tuple(top.batch_hooks),
    )
