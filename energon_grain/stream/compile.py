"""From a graph of dataset nodes to a `StreamSpec`: leaf keys, seeds and lanes are resolved here, once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from energon_grain.datasets.cooker import Cooker
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.leaf import LeafDataset, Ordering, ResolvedLeaf
from energon_grain.datasets.nodes import BatchDataset, EpochizeDataset, LimitDataset, MapDataset, RepeatDataset
from energon_grain.datasets.run_settings import RunSettings
from energon_grain.datasets.stateless import failure_tolerance_of, restores_seeds
from energon_grain.datasets.task_encoder import TaskEncoder
from energon_grain.errors import ConfigError
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.leaf_order import LeafOrder, window_blocks
from energon_grain.stream.mixture import compile_mixture, mixture_leaves
from energon_grain.stream.spec import BatchSpec, HookSpec, LeafSpec, StreamSpec

DEFAULT_LANES = 48


@dataclass(slots=True)
class _Found:
    """What a walk down the graph has met until it came to leaves, or mixtures of leaves."""

    mixture: SavableDataset
    steps: int | None = None
    limit: int | None = None
    batch: BatchDataset | None = None
    batch_hooks: list[HookSpec] = field(default_factory=list[HookSpec])
    sample_hooks: list[HookSpec] = field(default_factory=list[HookSpec])
    endless: bool = False


def compile_dataset(dataset: SavableDataset, *, hosts: int | None = None) -> StreamSpec:
    """Resolve a dataset into everything that decides what comes out of it.

    Args:
        dataset: Outermost node.
        hosts: Number of hosts, for the default of `lanes`; default: as the dataset's `worker_config` says.

    Raises:
        ConfigError: The nodes do not fit together, or a leaf's configuration is wrong.
        EmptyDatasetError: A leaf is empty.
    """
    config = dataset.worker_config
    settings = dataset if isinstance(dataset, RunSettings) else RunSettings(worker_config=config, dataset=dataset)
    lanes = settings.lanes or math.lcm(DEFAULT_LANES, hosts or config.world_size)
    seed = fold(settings.seed, config.seed_offset)
    found = _walk(settings.dataset)

    def compile_leaf(node: LeafDataset, number: int, occurrence: int, runs: bool) -> LeafSpec:
        return _leaf(node, seed, lanes, occurrence, runs)

    order, leaves, mixture = compile_mixture(
        found.mixture, compile_leaf, lanes=lanes, seed=seed, same_pass=settings.same_pass, endless=found.endless
    )
    if found.steps is not None and order.passes is not None:
        raise ConfigError("virtual epochs cut an endless stream, and this one has passes: repeat it, or limit it")
    return StreamSpec(
        seed=seed,
        written_seed=(settings.seed, config.seed_offset),
        lanes=lanes,
        leaves=leaves,
        order=order,
        mixture=mixture,
        sample_hooks=tuple(reversed(found.sample_hooks)),
        batch=_batch(found),
        steps=found.steps,
        limit=found.limit,
        owner=mixture_leaves(found.mixture)[0].task_encoder,
    )


def _walk(node: SavableDataset) -> _Found:
    found = _Found(mixture=node)
    while True:
        match node:
            case EpochizeDataset():
                found.steps = node.length
            case LimitDataset():
                found.limit = node.length if found.limit is None else min(found.limit, node.length)
            case BatchDataset():
                found.batch = node
                # What was met so far works on batches.
                found.batch_hooks, found.sample_hooks = found.sample_hooks, []
            case MapDataset():
                found.sample_hooks.append(_hook(node.hook, node.map_fn, node.task_encoder))
            case RepeatDataset():
                found.endless = True
            case _:
                found.mixture = node
                return found
        node = node.dataset


def _batch(found: _Found) -> BatchSpec | None:
    if found.batch is None:
        return None
    node = found.batch
    return BatchSpec(
        size=node.batch_size,
        hook=_hook("batch", node.batcher, node.task_encoder),
        last=node.last_batch,
        encode=tuple(reversed(found.batch_hooks)),
    )


def _hook(name: str, function: Callable[..., Any], owner: TaskEncoder | None) -> HookSpec:
    if inspect.isgeneratorfunction(function):
        raise ConfigError(
            f"{getattr(function, '__qualname__', name)} is a generator; a hook must return one value for each call"
        )
    default = TaskEncoder.__default_failure_tolerance__ if owner is None else owner.__default_failure_tolerance__
    restore_seeds = restores_seeds(function)
    return HookSpec(
        name=name,
        function=function,
        failure_tolerance=failure_tolerance_of(function, default),
        restore_seeds=restore_seeds,
        concurrent=bool(owner is not None and owner.thread_safe) and not restore_seeds,
    )


def _leaf(node: LeafDataset, seed: int, lanes: int, occurrence: int, runs: bool) -> LeafSpec:
    resolved = node.resolve()
    key = (*node.identity, str(occurrence))
    cook = None if resolved.sample_type is not None else _cook(node, resolved)
    return LeafSpec(
        key=key,
        leaf=resolved,
        order=_order(resolved.ordering, len(resolved.source), fold(seed, "leaf", *key), lanes, runs),
        cook=cook,
    )


def _order(ordering: Ordering, samples: int, key: int, lanes: int, runs: bool) -> LeafOrder:
    if not ordering.training or ordering.passes is None:
        return LeafOrder(n=samples, key=key, shuffle=False, runs=runs)
    window = 1
    if ordering.block is not None:
        window = window_blocks(block=ordering.block, lanes=lanes, shuffle_buffer_size=ordering.mixing)
    return LeafOrder(
        n=samples,
        key=key,
        block=ordering.block,
        window=window,
        passes=1 if ordering.passes == -1 else ordering.passes,
        replacement=ordering.passes == -1,
        runs=runs,
    )


def _cook(node: LeafDataset, leaf: ResolvedLeaf) -> HookSpec | None:
    """The task encoder's first cooker that fits the leaf. Without any cooker, crude samples pass as they are."""
    encoder = node.task_encoder
    if not encoder.cookers:
        return None
    for cooker in encoder.cookers:
        if cooker.is_match(leaf.subflavors):
            break
    else:
        raise ConfigError(
            f"{node.path}: no cooker fits its subflavors {dict(leaf.subflavors or {})}; the task encoder's cookers are "
            f"for {[cooker.has_subflavors for cooker in encoder.cookers]}"
        )
    hook = _hook("cook_crude_sample", cooker.cook, encoder)
    if type(encoder).cook_crude_sample is not TaskEncoder.cook_crude_sample:
        hook = _hook("cook_crude_sample", _CookWith(encoder, cooker), encoder)
    return hook


@dataclass(frozen=True, slots=True)
class _CookWith:
    """A task encoder's own `cook_crude_sample`, bound to a cooker."""

    encoder: TaskEncoder
    cooker: Cooker

    def __call__(self, sample: Any) -> Any:
        return self.encoder.cook_crude_sample(sample, self.cooker, {})
