# SPDX-License-Identifier: Apache-2.0
"""Map and filter nodes: functions of samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Any, ClassVar

from energon_grain.datasets.dataset import OF_DATASET, SavableDataset, check_function, node, settle
from energon_grain.datasets.hooks import HookOwner, hook_spec, is_generator, restores_seeds
from energon_grain.datasets.lowering import IndexPart, LanePart, Lowering, Part, Steps
from energon_grain.datasets.stream_map import GenerateLanes
from energon_grain.errors import ConfigError, SkipSample
from energon_grain.samplers.hashing import fold
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.lanes import Item, Items, ItemsOver, Lane, LaneOperator, NumberOf, Reference, State
from energon_grain.stream.worker_config import WorkerConfig


@node
class MapDataset(SavableDataset):
    """Applies a function to each sample (below a `BatchDataset`) or to each batch (above one).

    Args:
        dataset: Input of the function.
        map_fn: Takes a sample or batch and returns one; a generator function yields any number.
        hook: Name of the function in random keys, failure budgets and statistics.
        task_encoder: Owner of the function, with its `thread_safe` and failure tolerance.
        failure_tolerance: Failures in a row that end iteration; 0: never. Default: set by `@stateless` or the owner.
        lists: Whether the function takes a list of samples and returns a list with one entry per sample, as
            `TaskEncoder.encode_samples` does. A list holds samples that are read together; above nodes that pack,
            group, generate or batch, it holds one.
        stateless_map_fn: Accepted for compatibility: all functions are expected to be pure.
        map_fn_config: Accepted for compatibility.
        worker_config: Default: the configuration of the dataset.

    Raises:
        ConfigError: `map_fn` is not callable, or takes lists and is a generator or requests seeded globals.
    """

    _watches: ClassVar[bool] = False
    """Whether items are returned unchanged, so the node may be moved below nodes that cut the stream."""
    dataset: SavableDataset
    map_fn: Callable[[Any], Any]
    _: KW_ONLY
    hook: str = "map"
    task_encoder: HookOwner | None = None
    failure_tolerance: int | None = None
    lists: bool = False
    stateless_map_fn: InitVar[bool] = False
    map_fn_config: InitVar[Any] = None
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self, stateless_map_fn: bool, map_fn_config: Any) -> None:
        check_function(self, "map_fn", self.map_fn, generator=not self.lists)
        if self.lists and restores_seeds(self.map_fn):
            raise ConfigError(
                f"{self.hook}: restore_seeds=True seeds the generators of the process from one sample, but this hook "
                f"takes many at once: use each sample's random numbers in `self.rngs` (or `current_draws()`)"
            )
        settle(self, self.dataset)

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        if is_generator(self.map_fn) or not (steps.of_batches or self._watches):
            return None
        if steps.of_batches:
            steps.hooks.insert(0, self._hook())
        else:
            steps.watching.append(self)
        return self.dataset

    def lower(self, to: Lowering) -> Part:
        hook = self._hook()
        if not is_generator(self.map_fn):
            return add_hook(to.lower(self.dataset), hook, to)
        below = to.below(self.dataset)
        key = to.key(f"generate {hook.name}")
        generate = GenerateLanes(to.operator(below), hook, key, knows_batches=not to.iterated)
        return LanePart(generate, {"generate": below.mixture})

    def _hook(self) -> HookSpec:
        hook = hook_spec(self.hook, self.map_fn, self.task_encoder, self.failure_tolerance)
        return replace(hook, lists=self.lists)


@node
class FilterDataset(SavableDataset):
    """Keeps the samples that a function accepts.

    Rejected samples count as dropped. A blend above gives a filtered dataset its share of the remaining samples;
    lengths count samples before the filter.

    Args:
        dataset: Dataset to filter.
        filter_fn: Takes a sample; True keeps it.
        hook: See `MapDataset`, also for `task_encoder` and `failure_tolerance`.
        filter_fn_config: Accepted for compatibility.
        worker_config: Default: the configuration of the dataset.

    Raises:
        ConfigError: `filter_fn` is not callable, or is a generator.
    """

    dataset: SavableDataset
    filter_fn: Callable[[Any], bool]
    _: KW_ONLY
    hook: str = "filter"
    task_encoder: HookOwner | None = None
    failure_tolerance: int | None = None
    filter_fn_config: InitVar[Any] = None
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self, filter_fn_config: Any) -> None:
        check_function(self, "filter_fn", self.filter_fn, generator=False)
        settle(self, self.dataset)

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        if not steps.of_batches:
            return None
        steps.hooks.insert(0, self._hook())
        return self.dataset

    def lower(self, to: Lowering) -> Part:
        hook = self._hook()
        part = to.lower(self.dataset)
        mixture = {"filter": hook.name, "of": part.mixture}
        if isinstance(part, IndexPart):
            to.push(part, hook)
            part.drops, part.mixture = True, mixture
            return part
        key = to.key(f"filter {hook.name}")
        return LanePart(MapLanes(part.operator, hook, key, to.outermost), mixture, part.batches)

    def _hook(self) -> HookSpec:
        hook = hook_spec(self.hook, Keep(self.filter_fn), self.task_encoder, self.failure_tolerance)
        return replace(hook, filters=True)


def add_hook(part: Part, hook: HookSpec, to: Lowering) -> Part:
    """Apply a hook to each item of a part; where samples are read, if the result is the same."""
    if isinstance(part, LanePart) and not to.push(part, hook):
        part.operator = MapLanes(part.operator, hook, to.key(f"map {hook.name}"), to.outermost)
    elif isinstance(part, IndexPart):
        to.push(part, hook)
    return part


@dataclass(frozen=True, slots=True)
class Keep:
    """A filter as a hook: returns its argument, or drops it."""

    accepts: Any

    def __call__(self, value: Any) -> Any:
        if not self.accepts(value):
            raise SkipSample("the filter did not accept it")
        return value


@dataclass(frozen=True, slots=True, eq=False)
class MapLanes(LaneOperator):
    """Applies a hook to each item. Items keep their references.

    Attributes:
        outermost: Whether its results are items of the lane, whose batch is known.
    """

    child: LaneOperator
    hook: HookSpec
    key: int
    outermost: bool = False

    @property
    def inspects_items(self) -> bool:
        """Whether the hook is a filter. Drops of other hooks do not affect the order."""
        return self.hook.filters

    def open(self, lane: Lane, state: State | None) -> Items:
        return _Map(self, lane, self.child.open(lane, state))

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        value = self.child.rebuild(reference, lane)
        key = fold(self.key, lane.number, lane.pass_number)
        batch = lane.context.batch if self.outermost else None
        return lane.call(self.hook, key, NumberOf(self.child, reference), value, batch=batch)


class _Map(ItemsOver[MapLanes]):
    __slots__ = ("_key",)

    def __init__(self, node: MapLanes, lane: Lane, child: Items) -> None:
        super().__init__(node, lane, child)
        self._key = fold(node.key, lane.number, lane.pass_number)

    def next(self) -> Item | None:
        node, lane = self._node, self._lane
        while True:
            item = self._child.next()
            if item is None:
                return None
            reference, value = item
            batch = lane.context.batch if node.outermost else None
            try:
                return reference, lane.call(node.hook, self._key, NumberOf(node.child, reference), value, batch=batch)
            except Exception as error:
                lane.drop(node.child, reference, node.hook, error, value)
