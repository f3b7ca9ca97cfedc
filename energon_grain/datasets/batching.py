# SPDX-License-Identifier: Apache-2.0
"""From samples to batches: consecutive ones, and mixtures of batches."""

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
    """What becomes of an incomplete last batch: as asked, else "keep" on one host and "pad" on several.

    Raises:
        ConfigError: There is no such way, or not on this number of hosts, or the two arguments contradict each other.
    """
    if last_batch is None:
        return "drop" if drop_last else "keep" if hosts == 1 else "pad"
    if last_batch not in ("keep", "drop", "pad"):
        raise ConfigError(f"last_batch={last_batch!r}: expected 'keep', 'drop' or 'pad'")
    if drop_last and last_batch != "drop":
        raise ConfigError(f"batch_drop_last=True and last_batch={last_batch!r} contradict each other; give one")
    check_last_batch(last_batch, hosts)
    return last_batch


@public
@dataclass(frozen=True, slots=True)
class Balance:
    """Give every host equal work: of the items of each global batch, which host gets which follows their costs.

    The *set* of a global batch is as without it, and so is the number of items of each host.

    Attributes:
        by: What an item costs: the name of a column, or an expression of columns such as `tokens + 0.0001 * tokens**2`.
        micro_batches: Order the items of a host so that each of so many consecutive parts of its batch costs alike.

    Raises:
        ConfigError: `by` is no expression of columns, or `micro_batches` no positive number.
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
        """`by`, read."""
        return Expression.parse(self.by, where="balance")


def choose_balance(balance: str | Balance | None, batch_size: Any) -> Balance | None:
    """By what hosts get equal work; the cost of a sample is short for all of it.

    Raises ConfigError if it is neither, or there are no batches of so many parts.
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
            f"balance={chosen.by!r} with batch_size=None: hosts get equal work in each step by getting other items of "
            f"its global batch, and single samples make none; give a batch_size, or leave balance out"
        )
    if not hasattr(batch_size, "__index__"):
        raise ConfigError(
            f"balance={chosen.by!r} with batch_size={batch_size!r}: batches by budget cost alike by themselves; leave "
            f"balance out, or give a number of samples"
        )
    if batch_size % chosen.micro_batches:
        raise ConfigError(
            f"micro_batches={chosen.micro_batches} do not divide batch_size={batch_size}: each gets as many samples"
        )
    return chosen


@node
class BatchDataset(SavableDataset):
    """Consecutive samples, batch by batch.

    The outermost one makes the batches of a step, of samples from all lanes of a host. One below it makes batches
    inside each lane, which are the items of what lies above.

    Args:
        dataset: Whose samples are batched.
        batch_size: Samples of one host's batch.
        batcher: Makes the batch of a list of samples; as a generator function, any number of batches.
        drop_last: As `last_batch="drop"`.
        last_batch: At the end of a finite pass: "drop" an incomplete global batch, "pad" it to its full size (with a
            validity mask in `__valid__`), or, on one host only, "keep" it short. Where samples were dropped, lanes end
            early; "pad" and "drop" fill their places with samples from the beginning of the pass, so that hosts have
            equal numbers of steps ("drop" without a mask). Default: "keep" on one host, "pad" on several.
        balance: What a sample costs, by its columns, or a `Balance`: which host gets which samples of a global batch
            follows that, so that each has equal work; for the outermost batch. None, the default: as they come.
        hook: As in `MapDataset`, and so are `task_encoder` and `failure_tolerance`.
        batcher_stateless: Accepted for compatibility, and so is `batcher_config`.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: An argument is not one that fits here, or two contradict each other.
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
                f"balance={self.balance.by!r} is for the batches of steps, one of each host: for the outermost "
                f"BatchDataset, which is not below others or in a mixture, and whose batcher is no generator"
            )
        hook = self._hook()
        several = is_generator(self.batcher)
        if self.batch_size == 1 and not several:
            one_by_one = replace(hook, function=OneByOne(self.batcher))
            part = add_hook(to.lower(self.dataset), one_by_one, to)
            part.batches = True
            return part
        stripe = self.batch_size * to.stripe  # batches of batches: all of one lane's positions follow each other
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
    """The batches as they are."""
    return batches


@dataclass(frozen=True, slots=True, init=False)
class MixBatchDataset(BatchDataset):
    """Batches mixed of the items of several datasets: a `BatchDataset` over a `BlendDataset`.

    Args:
        *dataset_weights: (dataset, weight) for each, or one iterable of them; usually datasets that batch by
            themselves, with batches of one.
        batch_size: Items (batches of the datasets) that are mixed into one batch.
        batch_mix_fn: Makes one batch of a list of batches: `homogeneous_concat_mix`, `generic_concat`, one of yours.
            Default: the list of batches.
        per_step: As in `BlendDataset`.
        worker_config: Default: that of the first dataset.

    Raises:
        ConfigError: An argument is not one that fits here.
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
    """A batcher as a function of one sample: batches of one."""

    batcher: Callable[[list[Any]], Any]

    def __call__(self, sample: Any) -> Any:
        return self.batcher([sample])


@dataclass(frozen=True, slots=True, eq=False)
class BatchLanes(CombiningLanes):
    """Each `size` consecutive items of a lane, as one item.

    A hook that is a generator function makes several of each.

    Attributes:
        size: Items of a batch.
        drop_last: Whether a short batch at the end of a lane's pass is left out.
    """

    size: int
    drop_last: bool

    @property
    def inspects_items(self) -> bool:
        """If the hook says how many batches there are."""
        return self.generates

    def items(self) -> int:
        count = self.child.items()
        return count // self.size if self.drop_last else -(-count // self.size)

    def open(self, lane: Lane, state: State | None) -> Items:
        below, runner = (None, None) if state is None else state
        return _Batch(self, lane, self.child.open(lane, below), HookRunner(self, lane, runner))

    @property
    def state_form(self) -> Form:
        """The state below, and that of the making."""
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
