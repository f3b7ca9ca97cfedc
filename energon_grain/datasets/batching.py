# SPDX-License-Identifier: Apache-2.0
"""Batch nodes: batches of consecutive samples, and mixtures of batches."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Any

from energon_grain.datasets.dataset import OF_DATASET, SavableDataset, check_function, check_size, node, put, settle
from energon_grain.datasets.hooks import HookOwner, hook_spec, is_generator, with_own_name
from energon_grain.datasets.lowering import LanePart, Lowering, Part, Steps
from energon_grain.datasets.mapping import add_hook
from energon_grain.datasets.mixtures import BlendDataset, Weighted
from energon_grain.errors import ConfigError, public
from energon_grain.samplers.expression import Expression
from energon_grain.stream.extensions import EQUAL_WORK, extension
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.lanes import (
    CombiningLanes,
    HookRunner,
    Item,
    Items,
    ItemsOver,
    Lane,
    Reference,
    State,
)
from energon_grain.stream.passes import check_last_batch
from energon_grain.stream.spec import BatchSpec, LastBatch
from energon_grain.stream.state import Form
from energon_grain.stream.worker_config import WorkerConfig


def choose_last_batch(last_batch: LastBatch | None, drop_last: bool, hosts: int) -> LastBatch:
    """Choose the handling of an incomplete last batch. Default: "keep" on one host, "pad" on several.

    Raises:
        ConfigError: The value is unknown, is impossible on this number of hosts, or contradicts `drop_last`.
    """
    if last_batch is None:
        return "drop" if drop_last else "keep" if hosts == 1 else "pad"
    if last_batch not in ("keep", "drop", "pad"):
        raise ConfigError(f"last_batch={last_batch!r}: expected 'keep', 'drop' or 'pad'")
    if drop_last and last_batch != "drop":
        raise ConfigError(f"batch_drop_last=True and last_batch={last_batch!r} contradict each other: use only one")
    check_last_batch(last_batch, hosts)
    return last_batch


@public
@dataclass(frozen=True, slots=True)
class Balance:
    """Give every host equal work by assigning the items of each global batch to hosts by cost.

    The *set* of a global batch and the number of items per host do not change.

    Attributes:
        by: Cost of an item: a column name, or an expression of columns such as `tokens + 0.0001 * tokens**2`.
        micro_batches: Number of consecutive parts of a host's batch; its items are ordered so that parts cost the same.

    Raises:
        ConfigError: `by` is not an expression of columns, or `micro_batches` is not a positive number.
    """

    by: str
    micro_batches: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", Expression.parse(self.by, where="balance").text)
        parts = self.micro_batches
        if isinstance(parts, bool) or not hasattr(parts, "__index__") or parts < 1:
            raise ConfigError(f"Balance: micro_batches={parts!r}: expected a positive number of parts")
        object.__setattr__(self, "micro_batches", operator.index(parts))

    @property
    def costs(self) -> Expression:
        """`by`, parsed."""
        return Expression.parse(self.by, where="balance")


def choose_balance(balance: str | Balance | None, batch_size: Any) -> Balance | None:
    """Return the balance of a run; a cost expression is short for a `Balance`.

    Raises ConfigError if it is neither, or if the batch size does not allow it.
    """
    if balance is None:
        return None
    chosen: Any = Balance(balance) if isinstance(balance, str) else balance
    if not isinstance(chosen, Balance):
        raise ConfigError(
            f"balance={balance!r}: expected a column or an expression of columns, such as balance='tokens', or "
            f"Balance('tokens', micro_batches=4)"
        )
    if batch_size is None:
        raise ConfigError(
            f"balance={chosen.by!r} with batch_size=None: balancing exchanges items between hosts within a global "
            f"batch, so it needs batches. Set batch_size, or remove balance"
        )
    if not hasattr(batch_size, "__index__"):
        raise ConfigError(
            f"balance={chosen.by!r} with batch_size={batch_size!r}: batches by budget already have equal costs. Remove "
            f"balance, or use a number of samples"
        )
    if batch_size % chosen.micro_batches:
        raise ConfigError(
            f"micro_batches={chosen.micro_batches} does not divide batch_size={batch_size}: all parts have equal sizes"
        )
    return chosen


@node
class BatchDataset(SavableDataset):
    """Batches of consecutive samples.

    The outermost `BatchDataset` makes the batch of a step from samples of all lanes of a host. One below it makes
    batches inside each lane; the nodes above receive these batches as items.

    Args:
        dataset: Dataset to batch.
        batch_size: Samples per batch of one host.
        batcher: Makes a batch from a list of samples; as a generator function, any number of batches.
        drop_last: True has the effect of `last_batch="drop"`.
        last_batch: At the end of a finite pass: "drop" an incomplete global batch, "pad" it to its full size (with a
            validity mask in `__valid__`), or, on one host only, "keep" it short. Dropped samples shorten lanes; "pad"
            and "drop" then fill the gaps with samples from the beginning of the pass, which gives all hosts the same
            number of steps ("drop" sets no mask). Default: "keep" on one host, "pad" on several.
        balance: Cost of a sample, by its columns, or a `Balance`: assigns the samples of each global batch to hosts for
            equal work. Only for the outermost batch. None, the default, keeps the order of the stream.
        hook: See `MapDataset`, also for `task_encoder` and `failure_tolerance`.
        batcher_stateless: Accepted for compatibility, as is `batcher_config`.
        worker_config: Default: the configuration of the dataset.

    Raises:
        ConfigError: An argument is invalid, or two contradict each other.
    """

    dataset: SavableDataset
    batch_size: int
    batcher: Callable[[list[Any]], Any]
    _: KW_ONLY
    drop_last: InitVar[bool] = False
    last_batch: LastBatch | None = None
    balance: str | Balance | None = None
    hook: str = "batch"
    task_encoder: HookOwner | None = None
    failure_tolerance: int | None = None
    batcher_stateless: InitVar[bool] = False
    batcher_config: InitVar[Any] = None
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self, drop_last: bool, batcher_stateless: bool, batcher_config: Any) -> None:
        check_size(self, "batch_size", self.batch_size, "samples")
        check_function(self, "batcher", self.batcher)
        settle(self, self.dataset)
        last = choose_last_batch(self.last_batch, drop_last, self.worker_config.world_size)
        put(self, last_batch=last, balance=choose_balance(self.balance, self.batch_size))

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        if is_generator(self.batcher) or not steps.of_batches:
            return None
        named = [self._hook()]
        for hook in steps.hooks:
            named.append(with_own_name(hook, named))
        assert self.last_batch is not None
        placing = extension(EQUAL_WORK)(self.balance) if isinstance(self.balance, Balance) else None
        steps.batch = BatchSpec(
            size=self.batch_size, hook=named[0], last=self.last_batch, encode=tuple(named[1:]), placing=placing
        )
        return self.dataset

    def lower(self, to: Lowering) -> Part:
        if isinstance(self.balance, Balance):
            raise ConfigError(
                f"balance={self.balance.by!r} applies to the batches of steps: use it only on the outermost "
                f"BatchDataset, outside of mixtures, with a batcher that is not a generator"
            )
        hook = self._hook()
        several = is_generator(self.batcher)
        if self.batch_size == 1 and not several:
            one_by_one = replace(hook, function=OneByOne(self.batcher))
            part = add_hook(to.lower(self.dataset), one_by_one, to)
            part.batches = True
            return part
        stripe = self.batch_size * to.stripe  # batches of batches: all positions of a lane are consecutive
        below = to.below(self.dataset, forms=True, stripe=stripe)
        batch = BatchLanes(
            child=to.operator(below, stripe=stripe),
            hook=hook,
            generates=several,
            key=to.key(f"batch {hook.name}"),
            size=self.batch_size,
            drop_last=self.last_batch == "drop",
        )
        mixture = {"batch": self.batch_size, "drop_last": batch.drop_last, "generates": several, "of": below.mixture}
        return LanePart(batch, mixture, batches=True)

    def _hook(self) -> HookSpec:
        return hook_spec(self.hook, self.batcher, self.task_encoder, self.failure_tolerance)


def list_of_batches(batches: list[Any]) -> list[Any]:
    """Return the batches unchanged."""
    return batches


@dataclass(frozen=True, slots=True, init=False)
class MixBatchDataset(BatchDataset):
    """Batches mixed from the items of several datasets: a `BatchDataset` over a `BlendDataset`.

    Args:
        *dataset_weights: (dataset, weight) pairs, or one iterable of pairs; usually datasets of batches of one sample.
        batch_size: Items (batches of the datasets) that are mixed into one batch.
        batch_mix_fn: Makes one batch from a list of batches: `homogeneous_concat_mix`, `generic_concat`, or a custom
            function. Default: the list of batches.
        per_step: See `BlendDataset`.
        worker_config: Default: the configuration of the first dataset.

    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(
        self,
        *dataset_weights: Weighted | Iterable[Weighted],
        batch_size: int,
        batch_mix_fn: Callable[[list[Any]], Any] = list_of_batches,
        per_step: bool | int = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        blend = BlendDataset(*dataset_weights, per_step=per_step, worker_config=worker_config)
        BatchDataset.__init__(self, blend, batch_size, batch_mix_fn)


@dataclass(frozen=True, slots=True)
class OneByOne:
    """A batcher as a function of one sample: batches of size one."""

    batcher: Callable[[list[Any]], Any]

    def __call__(self, sample: Any) -> Any:
        return self.batcher([sample])


@dataclass(frozen=True, slots=True, eq=False)
class BatchLanes(CombiningLanes):
    """Groups each `size` consecutive items of a lane into one item.

    A hook that is a generator function makes several items from each group.

    Attributes:
        size: Items per batch.
        drop_last: Whether a short batch at the end of a lane's pass is dropped.
    """

    size: int
    drop_last: bool

    @property
    def inspects_items(self) -> bool:
        """Whether the number of batches depends on the hook."""
        return self.generates

    def items(self) -> int:
        count = self.child.items()
        return count // self.size if self.drop_last else -(-count // self.size)

    def open(self, lane: Lane, state: State | None) -> Items:
        below, runner = (None, None) if state is None else state
        return _Batch(self, lane, self.child.open(lane, below), HookRunner(self, lane, runner))

    @property
    def state_form(self) -> Form:
        """The states of the child and of the current call."""
        return self.child.state_form, self.runner_form


class _Batch(ItemsOver[BatchLanes]):
    __slots__ = ("_runner",)

    def __init__(self, node: BatchLanes, lane: Lane, child: Items, runner: HookRunner) -> None:
        super().__init__(node, lane, child)
        self._runner = runner

    def next(self) -> Item | None:
        while True:
            item = self._runner.next()
            if item is not None:
                return item
            references: list[Reference] = []
            values: list[Any] = []
            while len(values) < self._node.size:
                item = self._child.next()
                if item is None:
                    break
                references.append(item[0])
                values.append(item[1])
            if not values or (self._node.drop_last and len(values) < self._node.size):
                return None
            self._runner.start(tuple(references), values)

    def begin(self, pass_number: int) -> None:
        self._runner.stop()
        self._child.begin(pass_number)

    def state(self) -> State:
        return self._child.state(), self._runner.state()

    def expect(self, items: float) -> None:
        self._child.expect(items * self._node.size)
