# SPDX-License-Identifier: Apache-2.0
"""Functions of samples: map and filter."""

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
    """A function of each sample (below a `BatchDataset`) or of each batch (above one).

    Args:
        dataset: What the function is applied to.
        map_fn: Called with the sample or batch; gives one in return, or, as a generator function, any number.
        hook: Name of the function in random keys, failure budgets and statistics.
        task_encoder: Owner of the function, whose `thread_safe` and failure tolerance count.
        failure_tolerance: Failures in a row after which the iteration ends; 0: never. Default: as `@stateless` or the
            owner says.
        lists: Whether the function takes a list of samples and returns one with an entry for each of them, as
            `TaskEncoder.encode_samples` does. Lists are of what is read together; above what packs, groups, generates
            or batches, they hold one.
        stateless_map_fn: Accepted for compatibility: every function is expected to be pure.
        map_fn_config: Accepted for compatibility.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: `map_fn` cannot be called; or it takes lists and is a generator, or asks for seeded globals.
    """

    _watches: ClassVar[bool] = False
    """Whether items are handed on as they are, so that it may stand below what cuts the stream in place of above."""
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
                f"{self.hook}: restore_seeds=True seeds the generators of the process from one sample, and this hook "
                f"is given many at once; take each sample's random numbers from `self.rngs` (or `current_draws()`)"
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
    """The samples that a function accepts.

    The others count as dropped: blends above give a filtered dataset its share of what is left, lengths count samples
    before the filter.

    Args:
        dataset: What is filtered.
        filter_fn: Called with the sample; True keeps it.
        hook: As in `MapDataset`, and so are `task_encoder` and `failure_tolerance`.
        filter_fn_config: Accepted for compatibility.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: `filter_fn` cannot be called, or is a generator.
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
    """A hook on each item of a part: where samples are read, wherever that gives the same."""
    if isinstance(part, LanePart) and not to.push(part, hook):
        part.operator = MapLanes(part.operator, hook, to.key(f"map {hook.name}"), to.outermost)
    elif isinstance(part, IndexPart):
        to.push(part, hook)
    return part


@dataclass(frozen=True, slots=True)
class Keep:
    """A filter as a hook: it returns what it is given, or drops it."""

    accepts: Any

    def __call__(self, value: Any) -> Any:
        if not self.accepts(value):
            raise SkipSample("the filter did not accept it")
        return value


@dataclass(frozen=True, slots=True, eq=False)
class MapLanes(LaneOperator):
    """A hook on each item. Items keep their references.

    Attributes:
        outermost: Whether what it returns is an item of the lane, so that the batch is known.
    """

    child: LaneOperator
    hook: HookSpec
    key: int
    outermost: bool = False

    @property
    def inspects_items(self) -> bool:
        """If it is a filter; what other hooks drop is no part of the order."""
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
