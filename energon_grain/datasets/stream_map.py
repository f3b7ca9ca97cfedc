# SPDX-License-Identifier: Apache-2.0
"""Functions of whole streams, and functions that make any number of items from one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any

from energon_grain.datasets.dataset import OF_DATASET, SavableDataset, check_function, check_size, node, settle
from energon_grain.datasets.hooks import HookOwner, hook_spec
from energon_grain.datasets.lowering import LanePart, Lowering, Part
from energon_grain.errors import StateError
from energon_grain.samplers.hashing import fold
from energon_grain.storage.cancellation import Cancelled
from energon_grain.stream.hooks import Batches, HookGenerator, HookSpec
from energon_grain.stream.lanes import Item, Items, ItemsOver, Lane, LaneOperator, NumberOf, Reference, State
from energon_grain.stream.state import Form, ListOf, Number, Same, WithExtra
from energon_grain.stream.worker_config import WorkerConfig


def same_length(length: int) -> int:
    """Return `length`: one output per input."""
    return length


@node
class IterMapDataset(SavableDataset):
    """Applies a function from stream to stream to each lane, in runs of `inputs_per_call` inputs.

    Each run is a new call of the function, which makes its state restorable. Nothing that the function holds back
    outlives a run: it must yield its remaining items when its input ends, or lose them.

    Args:
        dataset: Dataset of the inputs.
        iter_map_fn: Takes an iterator over a run of a lane's samples and yields any number of samples.
        inputs_per_call: Inputs of one run.
        len_map_fn: Maps a number of inputs to the (approximate) number of outputs.
        hook: See `MapDataset`, also for `task_encoder`.
        stateless_iter_fn: Accepted for compatibility, as is `iter_map_fn_config`.
        worker_config: Default: the configuration of the dataset.

    Raises:
        ConfigError: A function is not callable, or `inputs_per_call` is not a positive number.
    """

    dataset: SavableDataset
    iter_map_fn: Callable[[Iterator[Any]], Iterable[Any]]
    _: KW_ONLY
    inputs_per_call: int = 1000
    len_map_fn: Callable[[int], int] = same_length
    hook: str = "iter_map"
    task_encoder: HookOwner | None = None
    stateless_iter_fn: InitVar[bool] = False
    iter_map_fn_config: InitVar[Any] = None
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self, stateless_iter_fn: bool, iter_map_fn_config: Any) -> None:
        check_function(self, "iter_map_fn", self.iter_map_fn)
        check_function(self, "len_map_fn", self.len_map_fn)
        check_size(self, "inputs_per_call", self.inputs_per_call, "samples")
        settle(self, self.dataset)

    def lower(self, to: Lowering) -> Part:
        below = to.below(self.dataset, iterated=True)
        iterate = IterateLanes(
            child=to.operator(below),
            hook=hook_spec(self.hook, self.iter_map_fn, self.task_encoder),
            key=to.key(f"iterate {self.hook}"),
            inputs=self.inputs_per_call,
            length=self.len_map_fn,
        )
        return LanePart(iterate, {"iter_map": self.inputs_per_call, "of": below.mixture})


@dataclass(frozen=True, slots=True, eq=False)
class IterateLanes(LaneOperator):
    """Applies a function from an iterator over a lane's items to an iterator over others.

    Every `inputs` items are a new call, which makes resuming possible: the state is the position below at the start of
    the current call, and the number of its outputs so far. Resuming runs the call again up to that output.

    A reference is (outputs of the call before this one, number of the call, state below at its start).

    Attributes:
        inputs: Maximum inputs of a call.
        length: Maps a number of inputs to an estimated number of outputs.
    """

    child: LaneOperator
    hook: HookSpec
    key: int
    inputs: int
    length: Callable[[int], int]

    def items(self) -> int:
        return self.length(self.child.items())

    def open(self, lane: Lane, state: State | None) -> Items:
        began, call, made = (None, 0, 0) if state is None else state
        return _Iterate(self, lane, self.child.open(lane, began), call, made)

    @property
    def state_form(self) -> Form:
        """The state below at the start of the current call, its number, and its number of outputs."""
        return self.child.state_form, Number(), Number()

    @property
    def reference_form(self) -> Form:
        """Both numbers, and the state below. Only running the function reveals which samples it reads."""
        return Number(), Number(), Same(self.key, self.child.state_form)

    def number(self, reference: Reference) -> int:
        return fold(reference[1], reference[0])

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        made, call, began = reference
        running = lane.replays.get((self.key, call))
        if running is None or running[0] > made:
            again = lane.replay()
            child = again.reopen(self.child, began)
            running = lane.replays[self.key, call] = [0, _Iterate(self, again, child, call, 0)]
        # Buffered outputs of one call come from a single replay, in order.
        with lane.context.replay():
            value: Any = None
            while running[0] <= made:
                item = running[1].next()
                running[0] += 1
                if item is None or item[0][1] != call:
                    raise StateError("the inputs of an IterMapDataset have changed since the state was saved")
                value = item[1]
        return value


class _Inputs:
    """The inputs of a call: an item already read, and then items of the child up to a number."""

    __slots__ = ("_child", "_first", "failed", "left", "running")

    def __init__(self, first: Item, child: Items, left: int) -> None:
        self._first: Item | None = first
        self._child = child
        self.left = left
        self.running: HookGenerator | None = None
        self.failed: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.failed is not None:
            raise Cancelled  # a function that catches every exception would otherwise retry forever
        if not self.left:
            raise StopIteration
        item, self._first = self._first, None
        if item is None:
            assert self.running is not None
            try:
                # The child works on the next item, which includes hooks in worker threads that may need the same lock.
                with self.running.outside():
                    item = self._child.next()
            except BaseException as error:
                self.failed = error
                raise
        if item is None:
            self.left = 0
            raise StopIteration
        self.left -= 1
        return item[1]


class _Iterate(ItemsOver[IterateLanes]):
    __slots__ = ("_began", "_call", "_inputs", "_key", "_made", "_outputs")

    def __init__(self, node: IterateLanes, lane: Lane, child: Items, call: int, made: int) -> None:
        super().__init__(node, lane, child)
        self._call = call
        self._key = fold(node.key, lane.number, lane.pass_number)
        self._began = child.state()
        self._made = 0
        self._inputs: _Inputs | None = None
        self._outputs: HookGenerator | None = None
        if made:
            with lane.context.replay():
                self._start()
                if self._outputs is None:
                    raise StateError("the inputs of an IterMapDataset have changed since the state was saved")
                try:
                    self._outputs.skip(made)
                finally:
                    self._require_inputs()
            self._made = made

    def _start(self) -> None:
        """Start a call at the current position, if there is input."""
        self._began = self._child.state()
        self._made = 0
        first = self._child.next()
        if first is None:
            return
        self._inputs = _Inputs(first, self._child, self._node.inputs)
        self._outputs = self._lane.run(self._node.hook, self._key, [self._call], self._inputs)
        self._inputs.running = self._outputs

    def _require_inputs(self) -> None:
        """Raise the error of the inputs. It is not a failure of the function, even if the function handled it."""
        assert self._inputs is not None
        if self._inputs.failed is not None:
            raise self._inputs.failed

    def _end(self) -> None:
        """End the call."""
        if self._inputs is not None and self._inputs.left == self._node.inputs:
            self._lane.count_drop()  # the function did not read its first input
        self._outputs = self._inputs = None
        self._call += 1
        self._made = 0
        self._began = self._child.state()

    def next(self) -> Item | None:
        while True:
            if self._outputs is None:
                self._start()
                if self._outputs is None:
                    return None
            try:
                value = next(self._outputs)
            except StopIteration:
                self._require_inputs()
                if not self._made:
                    self._lane.count_drop()
                self._end()
                continue
            except Cancelled:
                self._require_inputs()
                raise
            except Exception as error:
                self._require_inputs()
                reference = (self._made, self._call, self._began)
                self._end()
                self._lane.drop(self._node, reference, self._node.hook, error, None)
                continue
            self._require_inputs()
            self._made += 1
            if self._lane.context.failing:
                self._lane.context.succeeded(self._node.hook.name)
            return (self._made - 1, self._call, self._began), value

    def begin(self, pass_number: int) -> None:
        self._child.begin(pass_number)
        self._end()

    def state(self) -> State:
        return self._began, self._call, self._made


@dataclass(frozen=True, slots=True, eq=False)
class GenerateLanes(LaneOperator):
    """Applies a generator hook: each item becomes any number of items.

    The state is the current item, the number of its outputs so far, and, if the hook requested them, the batch numbers
    that it received. Resuming runs the generator again and skips those outputs. A reference is (output number,
    reference of the item below, batches up to it).

    Attributes:
        knows_batches: Whether the hook receives the batch number of an item. Not below a function from stream to
            stream, which is replayed without that number.
    """

    child: LaneOperator
    hook: HookSpec
    key: int
    knows_batches: bool

    @property
    def order_version(self) -> int:
        return 2

    def open(self, lane: Lane, state: State | None) -> Items:
        if state is None:
            return _Generate(self, lane, self.child.open(lane, None))
        below, running = state
        operator = _Generate(self, lane, self.child.open(lane, below))
        for made, source, batches in running:
            operator.resume(source, self.child.rebuild(source, lane), made, batches)
        return operator

    @property
    def state_form(self) -> Form:
        """The state below, and the reference of the next output of a running generator."""
        return self.child.state_form, ListOf(self.reference_form)

    @property
    def reference_form(self) -> Form:
        """An output number, the reference of the item below, and, if the hook requested them, batch numbers."""
        return WithExtra(self.child.reference_form, ListOf((Number(), Number())))

    def number(self, reference: Reference) -> int:
        return fold(self.child.number(reference[1]), reference[0])

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        made, source, batches = reference
        generator = self.run(lane, self.lane_key(lane), source, self.child.rebuild(source, lane), batches)
        generator.skip(made)
        return generator.again(made)

    def lane_key(self, lane: Lane) -> int:
        """Return the key of the hook's random numbers in a lane."""
        return fold(self.key, lane.number, lane.pass_number)

    def run(self, lane: Lane, key: int, source: Reference, value: Any, batches: Batches = ()) -> HookGenerator:
        """Call the hook on an item from below; `batches`: batch numbers that it received before."""
        context = lane.context if self.knows_batches else None
        return lane.run(self.hook, key, NumberOf(self.child, source), value, context=context, batches=batches)


class _Generate(ItemsOver[GenerateLanes]):
    __slots__ = ("_generator", "_key", "_made", "_source", "_value")

    def __init__(self, node: GenerateLanes, lane: Lane, child: Items) -> None:
        super().__init__(node, lane, child)
        self._key = node.lane_key(lane)
        self._generator: HookGenerator | None = None
        self._source: Reference = None
        self._value: Any = None
        self._made = 0

    def resume(self, source: Reference, value: Any, made: int, batches: Batches) -> None:
        """Continue an item whose first outputs were made before."""
        self._start(source, value, batches)
        assert self._generator is not None
        self._generator.skip(made)
        self._made = made

    def _start(self, source: Reference, value: Any, batches: Batches = ()) -> None:
        self._source, self._value, self._made = source, value, 0
        self._generator = self._node.run(self._lane, self._key, source, value, batches)

    def next(self) -> Item | None:
        while True:
            if self._generator is None:
                item = self._child.next()
                if item is None:
                    return None
                self._start(*item)
                assert self._generator is not None
            try:
                value = next(self._generator)
            except StopIteration:
                if not self._made:
                    self._lane.count_drop()
                self._finish()
                continue
            except Exception as error:
                source, value = self._source, self._value
                self._finish()
                self._lane.drop(self._node.child, source, self._node.hook, error, value)
                continue
            self._made += 1
            if self._lane.context.failing:
                self._lane.context.succeeded(self._node.hook.name)
            return (self._made - 1, self._source, self._generator.draw.batches), value

    def _finish(self) -> None:
        self._generator = self._source = self._value = None
        self._made = 0

    def begin(self, pass_number: int) -> None:
        self._finish()
        self._child.begin(pass_number)

    def state(self) -> State:
        if self._generator is None:
            return self._child.state(), ()
        return self._child.state(), ((self._made, self._source, self._generator.draw.batches),)
