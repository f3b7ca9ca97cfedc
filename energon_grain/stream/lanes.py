# SPDX-License-Identifier: Apache-2.0
"""Lanes run operators, which turn the samples of a lane into its items.

Below the lowest node whose items depend on data, a graph is an index map. From there upwards, every lane runs the same
tree of operators on its own samples. A `LaneOperator` describes an operator, once for all lanes; `LaneOperator.open`
makes the `Items` of one lane.

Items are values, each with a *reference* from which the value can be made again. References and states are nested
tuples of integers. The operator declares their form (`stream.state`), so the contents of a lane take only a few bytes
in a saved state. Only the operator that made them knows their meaning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from energon_grain.errors import FatalSampleError, ReadError, SkipSample, StateError, WorkerError
from energon_grain.samplers.hashing import fold
from energon_grain.stream.clock import Clock
from energon_grain.stream.drops import Dropped, raise_if_fatal
from energon_grain.stream.hooks import BatchContext, Batches, HookGenerator, HookSpec, Positions, call_hook
from energon_grain.stream.index_map import Draws, IndexMap
from energon_grain.stream.state import Form, ListOf, Number, Place, Position, Rounds, positions
from energon_grain.stream.worker_config import ErrorHandler

Reference = Any
State = Any
"""Nested tuples of integers and references: immutable, and cheap to take after every item."""
Item = tuple[Reference, Any]
Samples = dict[Position, list[Any]]
"""Encoded samples by position, one for each use."""
_EMPTY_PASSES = 1000
_ENDLESS = 1 << 62


class Items(Protocol):
    """A running operator in one lane."""

    def next(self) -> Item | None:
        """The lane's next item; None at the end of the pass, until `begin` is called."""
        ...

    def begin(self, pass_number: int) -> None:
        """Go to the beginning of a pass. Endless operators below continue where they are."""

    def state(self) -> State:
        """The state after the last item."""
        ...

    def expect(self, items: float) -> None:
        """Set how many items will probably be requested soon, so that as many are read ahead."""


class LaneOperator:
    """Base of operators: immutable, and independent of single lanes.

    Methods that are not overridden delegate to `child`, which suits operators that pass on the items of their child.

    Attributes:
        child: The operator below. An operator over several overrides `children` instead.
        chooses: Whether it only drops or reorders the items below, independent of their values. A hook on its items may
            then run where samples are read.
    """

    __slots__ = ()

    chooses: ClassVar[bool] = False
    child: LaneOperator

    @property
    def children(self) -> tuple[LaneOperator, ...]:
        """The operators below."""
        return (self.child,)

    @property
    def inspects_items(self) -> bool:
        """Whether its items depend on the contents of the items below, not only on positions."""
        return not self.chooses

    @property
    def order_version(self) -> int:
        """The first order version (`stream.cursor.ORDER_VERSION`) that its own items and states are compatible with."""
        return 1

    @property
    def finite(self) -> bool:
        """Whether its passes end."""
        return self.child.finite

    def items(self) -> int:
        """Estimated items of a pass over all lanes, if nothing is dropped. Endless: of one pass over the data."""
        return self.child.items()

    def buffers(self) -> Iterator[int]:
        """For each buffer here and below that is emptied when full: how often a pass fills it."""
        for child in self.children:
            yield from child.buffers()

    @property
    def spans_passes(self) -> bool:
        """Whether a pass continues where the last one ended, so that states outlive passes."""
        return any(child.spans_passes for child in self.children)

    @property
    def state_form(self) -> Form:
        """The form of the states of its `Items`."""
        return self.child.state_form

    @property
    def reference_form(self) -> Form:
        """The form of the references of its items."""
        return self.child.reference_form

    def open(self, lane: Lane, state: State | None) -> Items:
        """The items of a lane, continued from a state; None: from the beginning of `lane.pass_number`.

        `lane.samples` contains the samples of the state.
        """
        raise NotImplementedError

    def number(self, reference: Reference) -> int:
        """64-bit number of an item in its lane, which keys the random numbers of hooks on it."""
        return self.child.number(reference)

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """Make the value of an item again. `lane.samples` contains the samples of its reference."""
        return self.child.rebuild(reference, lane)


Node = TypeVar("Node", bound=LaneOperator)


class ItemsOver(Generic[Node]):
    """Base of the `Items` of an operator over one other. Methods that are not overridden delegate to the child."""

    __slots__ = ("_child", "_lane", "_node")

    def __init__(self, node: Node, lane: Lane, child: Items) -> None:
        self._node = node
        self._lane = lane
        self._child = child

    def begin(self, pass_number: int) -> None:
        self._child.begin(pass_number)

    def state(self) -> State:
        return self._child.state()

    def expect(self, items: float) -> None:
        self._child.expect(items)


@dataclass(frozen=True, slots=True, eq=False)
class Feed(LaneOperator):
    """An index map at the bottom of the operators.

    Round j of lane l is position `((j div S) * L + l) * S + j mod S` of the pass, with stripes of S positions. S is 1,
    or the batch size of finite batches formed in lanes, so that all batches of a pass except the last are full.

    Attributes:
        order: Maps positions to draws of this feed's leaves, counted from 0.
        leaves: Number of each of its leaves among all leaves, ascending.
        stripe: S.
    """

    index: int
    order: IndexMap
    leaves: tuple[int, ...]
    leaf_sizes: tuple[int, ...]
    lanes: int
    stripe: int

    @property
    def inspects_items(self) -> bool:
        return False

    @property
    def finite(self) -> bool:
        return self.order.passes is not None

    def items(self) -> int:
        """Samples of a pass; endless: of one pass over the repeated data."""
        return self.order.samples

    def rounds(self, lane: int, pass_number: int) -> int:
        """Rounds of a lane in a pass."""
        length = self.order.length(pass_number)
        if length is None:
            return _ENDLESS
        whole, rest = divmod(length, self.lanes * self.stripe)
        return whole * self.stripe + min(max(rest - lane * self.stripe, 0), self.stripe)

    def in_stream(self, lane: int, pass_number: int, rounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """(n,) positions, in the sequence of all passes, of rounds of a lane."""
        stripe, place = np.divmod(rounds, self.stripe)
        return (stripe * self.lanes + lane) * self.stripe + place + self.order.start(pass_number)

    def draw(self, positions: npt.NDArray[np.int64]) -> Draws:
        """Draws of positions in the sequence of all passes. Leaves are numbered over all leaves of the stream."""
        draws = self.order.draw_in_stream(positions)
        first = self.leaves[0]
        if self.leaves[-1] - first + 1 == len(self.leaves):
            return replace(draws, leaf=draws.leaf + np.int32(first))
        return replace(draws, leaf=np.array(self.leaves, np.int32)[draws.leaf])

    def open(self, lane: Lane, state: State | None) -> Items:
        return lane.reader.open(self, lane, state)

    @property
    def state_form(self) -> Form:
        """Pass and rounds; samples that were read ahead are read again."""
        return Number(), Rounds(feed=self.index)

    @property
    def reference_form(self) -> Form:
        """The position."""
        return Place(self.index)

    def number(self, reference: int) -> int:
        return reference

    def rebuild(self, reference: int, lane: Lane) -> Any:
        return lane.sample((self.index, reference))

    @property
    def children(self) -> tuple[()]:
        return ()


class NumberOf:
    """The number of an item, computed only when a hook uses random numbers."""

    __slots__ = ("_operator", "_reference")

    def __init__(self, operator: LaneOperator, reference: Reference) -> None:
        self._operator = operator
        self._reference = reference

    def __getitem__(self, place: int, /) -> int:
        return self._operator.number(self._reference)


class FeedReader(Protocol):
    """Provides the samples of lanes."""

    def open(self, feed: Feed, lane: Lane, state: State | None) -> Items: ...


@dataclass(slots=True, eq=False)
class LaneContext:
    """The context shared by the lanes of one host.

    Attributes:
        on_drop: Called for each dropped sample or item.
        read: Reads encoded samples of positions, one for each time that a position is listed. Dropped ones are
            `Dropped`.
        leaf_of: Number of the leaf of a position.
        patience: Samples in a row that may be dropped on the way to one item.
        on_success: Called after a failure, with the name of a lane's hook that works again, or "" for a sample that
            passed all hooks of the pure stage.
        on_restore_error: `WorkerConfig.restore_error_handler`.
        in_a_row: Drops since the last item of any lane.
        passes_in_a_row: Passes of a repeated dataset that ended since the last item.
        failing: Whether a hook failed and has not worked since, or no step was made yet. Successes are then reported.
        replaying: Whether items are made again, so that their drops are already counted.
        batch: Number, in the pass, of the batch that items are made for; None: unknown.
        clock: Measures the times of hooks; None: nothing is timed.
    """

    on_drop: Callable[[Dropped], None]
    on_success: Callable[[str], bool]
    on_restore_error: ErrorHandler
    read: Callable[[list[Position]], Samples]
    leaf_of: Callable[[Position], int]
    hook_lock: threading.RLock
    direct: FeedReader
    patience: int
    in_a_row: int = 0
    passes_in_a_row: int = 0
    failing: bool = False
    replaying: bool = False
    batch: int | None = None
    clock: Clock | None = None
    _forms: dict[int, Form] = field(default_factory=dict[int, Form])

    def first_position(self, operator: LaneOperator, reference: Reference) -> Position | None:
        """The first sample of an item of `operator`; None: known only by making the item."""
        form = self._forms.get(id(operator))
        if form is None:  # large for a blend of a thousand datasets
            form = self._forms[id(operator)] = operator.reference_form
        return next(positions(form, reference), None)

    def succeeded(self, hook: str) -> None:
        """A hook ("": the hooks of the pure stage) works again: its failures are no longer in a row."""
        self.failing = self.on_success(hook)

    def restore_failed(self, error: Exception, sample: Any, sources: Any) -> None:
        """Call the handler of errors while rebuilding. Raises StateError if the handler raises."""
        try:
            self.on_restore_error(error, sample, sources)
        except Exception as raised:
            raise StateError(
                f"a sample of a saved state or restore key cannot be rebuilt: a hook now fails on it with "
                f"{type(error).__name__}: {error}; hooks must return the same results each time they see a sample"
            ) from raised

    @contextmanager
    def replay(self) -> Generator[None]:
        """A context for making items again."""
        outer, self.replaying = self.replaying, True
        in_a_row = self.in_a_row
        try:
            yield
        finally:
            self.replaying, self.in_a_row = outer, in_a_row

    @contextmanager
    def rebuilding(self) -> Generator[None]:
        """A context for calling hooks again on samples that they have processed before.

        Raises FatalSampleError if a hook raised an error of `FATAL`, ReadError or WorkerError if the samples could not
        be read, and StateError if a hook failed in another way.
        """
        with self.replay():
            try:
                yield
            except (StateError, ReadError, WorkerError, FatalSampleError):
                raise  # not raised by a hook, or already names it
            except Exception as error:
                raise_if_fatal(error, "a hook", "a sample that is rebuilt")
                self.restore_failed(error, None, None)
                raise StateError(
                    f"a sample of a saved state cannot be rebuilt: a hook now fails on it with "
                    f"{type(error).__name__}: {error}; hooks must return the same results each time they see a sample"
                ) from error


@dataclass(slots=True, eq=False)
class Lane:
    """A running lane.

    Attributes:
        number: Number of the lane among all lanes of the run.
        pass_number: Pass of the run, for random numbers.
        samples: Encoded samples to rebuild operators from.
        replays: Stream-to-stream functions that are running again, by key and call: delivered items, and the operator.
    """

    number: int
    pass_number: int
    reader: FeedReader
    context: LaneContext
    samples: Samples = field(default_factory=dict[Position, list[Any]])
    replays: dict[tuple[int, int], list[Any]] = field(default_factory=dict[tuple[int, int], list[Any]])

    def call(self, hook: HookSpec, key: int, number: Positions, value: Any, *, batch: int | None = None) -> Any:
        """Call a hook on a value. `key` is the operator's key in this lane, `number` (index 0) that of the item."""
        result = call_hook(hook, key, number, value, self._lock(hook), epoch=self.pass_number, batch=batch)
        if self.context.failing:
            self.context.succeeded(hook.name)
        return result

    def run(
        self,
        hook: HookSpec,
        key: int,
        number: Positions,
        value: Any,
        *,
        context: BatchContext | None = None,
        batches: Batches = (),
    ) -> HookGenerator:
        """Call a generator function. For `context` and `batches`, see `ValuesDraw`."""
        lock = _LockOfGenerator(self, hook)
        return HookGenerator(hook, key, number, value, lock, epoch=self.pass_number, context=context, batches=batches)

    def _lock(self, hook: HookSpec) -> AbstractContextManager[Any]:
        lock, clock = nullcontext() if hook.concurrent else self.context.hook_lock, self.context.clock
        return lock if clock is None else clock.timing(hook, lock)

    def drop(self, operator: LaneOperator, reference: Reference, hook: HookSpec, error: Exception, value: Any) -> None:
        """Count an item of `operator` that a hook dropped.

        Raises FatalSampleError if the error is one of `FATAL`, or too many items in a row were dropped.
        """
        first = self.context.first_position(operator, reference)
        raise_if_fatal(error, hook.name, "an item" if first is None else f"position {first[1]} of its dataset")
        if self.context.replaying:
            self.count_drop()
            return
        self.dropped(
            Dropped(
                leaf=-1 if first is None else self.context.leaf_of(first),
                hook=hook.name,
                failure_tolerance=hook.failure_tolerance,
                error=error,
                sample=None if isinstance(error, SkipSample) else value,
                sources=getattr(value, "__sources__", None),
                what="item",
            )
        )

    def dropped(self, dropped: Dropped) -> None:
        """Count a dropped sample or item. Raises as `drop`."""
        if not self.context.replaying:
            self.context.failing = True
            self.context.on_drop(dropped)
        self.count_drop()

    def count_pass(self) -> None:
        """Count the end of a pass of a repeated dataset.

        Raises FatalSampleError if too many passes in a row had no item for this lane.
        """
        self.context.passes_in_a_row += 1
        if self.context.passes_in_a_row > _EMPTY_PASSES:
            raise FatalSampleError(
                f"lane {self.number} read {_EMPTY_PASSES} passes of a repeated dataset without one item: a pass has "
                f"fewer items than there are lanes (or hooks drop all of them). Run with fewer lanes (lanes=), or "
                f"repeat the dataset below the batches, packs or limits"
            )

    def count_drop(self) -> None:
        """Count a drop. Raises FatalSampleError if there are too many in a row."""
        self.context.in_a_row += 1
        if self.context.in_a_row > self.context.patience:
            raise FatalSampleError(
                f"lane {self.number} read {self.context.patience} samples without one item: hooks, filters or packers "
                f"drop all (or nearly all) samples. loader.stats() lists what was dropped and why"
            )

    def sample(self, position: Position) -> Any:
        """Take an encoded sample from `samples`.

        Raises StateError if it is dropped now, but was not when the state was saved.
        """
        # Each use gets its own object, because hooks may change their arguments.
        value = self.samples[position].pop()
        if type(value) is Dropped:
            self.context.restore_failed(value.error, value.sample, value.sources)
            raise StateError(
                f"{value.shard}: {value.key} is part of the saved state, but {value.hook} drops it now "
                f"({type(value.error).__name__}: {value.error}); hooks must return the same results each time they see "
                f"a sample"
            ) from value.error
        return value

    def at_pass(self, pass_number: int) -> Lane:
        """The same lane, for an operator below which passes are counted on their own."""
        if pass_number == self.pass_number:
            return self
        return Lane(self.number, pass_number, self.reader, self.context, self.samples, self.replays)

    def replay(self) -> Lane:
        """The same lane, with its own feeds that read directly."""
        return Lane(self.number, self.pass_number, self.context.direct, self.context)

    def rebuilt(self, operator: LaneOperator, references: tuple[Reference, ...]) -> list[Item]:
        """Items of an operator that a state holds. Reads their samples. Raises as `LaneContext.rebuilding`."""
        self.samples = self.context.read([*positions(ListOf(operator.reference_form), references)])
        try:
            with self.context.rebuilding():
                return [(reference, operator.rebuild(reference, self)) for reference in references]
        finally:
            self.samples = {}
            self.replays.clear()

    def reopen(self, operator: LaneOperator, state: State) -> Items:
        """An operator of this lane, continued from a state. Reads the samples of the state."""
        self.samples = self.context.read([*positions(operator.state_form, state)])
        items = operator.open(self, state)
        self.samples = {}
        return items


class _LockOfGenerator:
    """Held while a generator runs. Timing may be turned on or off between values."""

    __slots__ = ("_held", "_hook", "_lane")

    def __init__(self, lane: Lane, hook: HookSpec) -> None:
        self._lane = lane
        self._hook = hook

    def __enter__(self) -> None:
        self._held = self._lane._lock(self._hook)
        self._held.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._held.__exit__(None, None, None)


Members = tuple[Reference, ...]
HookRunnerState = tuple[int] | tuple[int, int, Members]
"""(calls so far,); for a generator function also the items made by the running call, and its members."""


@dataclass(frozen=True, slots=True, eq=False)
class CombiningLanes(LaneOperator):
    """Makes one item from several. A reference is (number of the call, number among its items, members)."""

    child: LaneOperator
    hook: HookSpec
    generates: bool
    key: int

    def rebuild_member(self, reference: Reference, lane: Lane) -> Any:
        """The value of a member, as the hook receives it."""
        return self.child.rebuild(reference, lane)

    def hook_key(self, lane: Lane) -> int:
        """Key of the hook's random numbers."""
        return fold(self.key, lane.number, lane.pass_number)

    @property
    def members_form(self) -> Form:
        """Form of the references of several items."""
        return ListOf(self.child.reference_form)

    @property
    def runner_form(self) -> Form:
        return (Number(), Number(), self.members_form) if self.generates else (Number(),)

    @property
    def reference_form(self) -> Form:
        return Number(), Number(), self.members_form

    def number(self, reference: Reference) -> int:
        return fold(reference[0], reference[1])

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        call, made, members = reference
        if not members:
            raise StateError(f"{self.hook.name}: a reference without members; it is of another dataset, or damaged")
        values = [self.rebuild_member(member, lane) for member in members]
        if not self.generates:
            return lane.call(self.hook, self.hook_key(lane), [call], values)
        generator = lane.run(self.hook, self.hook_key(lane), [call], values)
        generator.skip(made)
        return generator.again(made)


class HookRunner:
    """Calls the hook of an operator in one lane and returns its results.

    Args:
        state: None at the beginning of a pass.
    """

    __slots__ = ("_calls", "_generator", "_key", "_lane", "_made", "_members", "_node", "_ready")

    def __init__(self, node: CombiningLanes, lane: Lane, state: HookRunnerState | None) -> None:
        self._node = node
        self._lane = lane
        self._key = node.hook_key(lane)
        self._calls = 0
        self._members: Members = ()
        self._made = 0
        self._generator: HookGenerator | None = None
        self._ready: Item | None = None
        if state is not None:
            self._calls, made, members = (*state, 0, ()) if len(state) == 1 else state
            if members:
                self._calls -= 1
                self.start(members, [node.rebuild_member(member, lane) for member in members])
                assert self._generator is not None
                self._generator.skip(made)
                self._made = made

    def start(self, members: Members, values: list[Any]) -> None:
        """Call the hook. If it drops the values, `next` returns None."""
        node = self._node
        call, self._calls = self._calls, self._calls + 1
        if node.generates:
            self._members, self._made = members, 0
            self._generator = self._lane.run(node.hook, self._key, [call], values)
            return
        reference = (call, 0, members)
        try:
            self._ready = reference, self._lane.call(node.hook, self._key, [call], values)
        except Exception as error:
            self._lane.drop(node, reference, node.hook, error, values)

    def next(self) -> Item | None:
        """The next result, or None if there is none."""
        if self._generator is None:
            item, self._ready = self._ready, None
            return item
        reference = (self._calls - 1, self._made, self._members)
        try:
            value = next(self._generator)
        except StopIteration:
            if not self._made:
                self._lane.count_drop()
            self.stop()
            return None
        except Exception as error:
            self.stop()
            self._lane.drop(self._node, reference, self._node.hook, error, None)
            return None
        self._made += 1
        if self._lane.context.failing:
            self._lane.context.succeeded(self._node.hook.name)
        return reference, value

    def stop(self) -> None:
        """Discard results that were not returned yet."""
        self._generator = self._ready = None
        self._members, self._made = (), 0

    def state(self) -> HookRunnerState:
        return (self._calls, self._made, self._members) if self._node.generates else (self._calls,)
