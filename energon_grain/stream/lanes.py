# SPDX-License-Identifier: Apache-2.0
"""What lanes run: operators, from a lane's samples to its items.

Below the lowest node whose items depend on data a graph is an index map; from there on upwards every lane runs the same
tree of operators on its own samples. A `LaneOperator` describes one, once for all lanes; `LaneOperator.open` makes the
`Items` of one lane.

Items are values, each with a *reference* from which the value can be made again. References and states are nested
tuples of integers, whose form an operator says (`stream.state`), so what a lane holds costs a few bytes in a saved
state. Their meaning is known to the operator that made them and to nobody else.
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
from energon_grain.stream.state import Form, Many, Number, Place, Position, Rounds, positions
from energon_grain.stream.worker_config import ErrorHandler

Reference = Any
State = Any
"""Nested tuples of integers and references: immutable, cheap to take after every item."""
Item = tuple[Reference, Any]
Samples = dict[Position, list[Any]]
"""Encoded samples by position, as many as there are uses of it."""
_EMPTY_PASSES = 1000
_ENDLESS = 1 << 62


class Items(Protocol):
    """An operator at work in one lane."""

    def next(self) -> Item | None:
        """The lane's next item; None at the end of the pass, and again until `begin` is called."""
        ...

    def begin(self, pass_number: int) -> None:
        """Go to the beginning of a pass. What is endless below goes on where it stood."""

    def state(self) -> State:
        """The place behind the last item."""
        ...

    def expect(self, items: float) -> None:
        """Tell how many items will probably be asked for soon, so that as much is read ahead."""


class LaneOperator:
    """Base of operators: immutable, and without anything of a single lane.

    What is not overridden is as in `child`: fitting for one that hands on the items of its child as they are.

    Attributes:
        child: Whose items it works on; one over several has `children` instead.
        chooses: Whether its items are those of what lies below, whatever their values: it only leaves them out, or in
            another order. A hook on them may then run where samples are read.
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
        """Whether its items depend on what is in those below, and not on positions alone."""
        return not self.chooses

    @property
    def order_version(self) -> int:
        """Order version (`stream.cursor.ORDER_VERSION`) since which its own items and states are what they are."""
        return 1

    @property
    def finite(self) -> bool:
        """Whether its passes end."""
        return self.child.finite

    def items(self) -> int:
        """Items of a pass over all lanes, if nothing is dropped: an estimate. Endless: of one pass over the data."""
        return self.child.items()

    def buffers(self) -> Iterator[int]:
        """For each buffer here and below that is emptied when it is full, how often a pass fills it."""
        for child in self.children:
            yield from child.buffers()

    @property
    def spans_passes(self) -> bool:
        """Whether a pass goes on where the last one ended, so that states outlive passes."""
        return any(child.spans_passes for child in self.children)

    @property
    def state_form(self) -> Form:
        """What states of its `Items` look like."""
        return self.child.state_form

    @property
    def reference_form(self) -> Form:
        """What references of its items look like."""
        return self.child.reference_form

    def open(self, lane: Lane, state: State | None) -> Items:
        """The items of a lane, behind a state; None: from the beginning of `lane.pass_number`.

        The samples that the state is made of are among `lane.samples`.
        """
        raise NotImplementedError

    def number(self, reference: Reference) -> int:
        """64-bit number of an item among those of its lane; it keys random numbers of hooks on it."""
        return self.child.number(reference)

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The value of an item again; the samples that its reference is made of are among `lane.samples`."""
        return self.child.rebuild(reference, lane)


Node = TypeVar("Node", bound=LaneOperator)


class ItemsOver(Generic[Node]):
    """Base of the `Items` of an operator over one other; what is not overridden hands on the child's."""

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

    Round j of lane l is position `((j div S) * L + l) * S + j mod S` of the pass, with stripes of S positions: S is 1,
    or the batch size of finite batches formed in lanes, so that all but the last batch of a pass are full.

    Attributes:
        order: From positions to draws of this feed's leaves, counted from 0.
        first_leaf: Number of its first leaf among all.
        stripe: S.
    """

    index: int
    order: IndexMap
    first_leaf: int
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
        """Samples of a pass; endless: of one pass over what is repeated."""
        return self.order.samples

    def rounds(self, lane: int, pass_number: int) -> int:
        """Rounds that a lane has in a pass."""
        length = self.order.length(pass_number)
        if length is None:
            return _ENDLESS
        whole, rest = divmod(length, self.lanes * self.stripe)
        return whole * self.stripe + min(max(rest - lane * self.stripe, 0), self.stripe)

    def in_stream(self, lane: int, pass_number: int, rounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """(n,) positions, among those of all passes, of rounds of a lane."""
        stripe, place = np.divmod(rounds, self.stripe)
        return (stripe * self.lanes + lane) * self.stripe + place + self.order.start(pass_number)

    def draw(self, positions: npt.NDArray[np.int64]) -> Draws:
        """Draws of positions among those of all passes; leaves are counted among all leaves of the stream."""
        draws = self.order.draw_in_stream(positions)
        return replace(draws, leaf=draws.leaf + np.int32(self.first_leaf))

    def open(self, lane: Lane, state: State | None) -> Items:
        return lane.reader.open(self, lane, state)

    @property
    def state_form(self) -> Form:
        """Pass and rounds; what was read ahead is read again."""
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
    """The number of an item, worked out when a hook asks for random numbers."""

    __slots__ = ("_operator", "_reference")

    def __init__(self, operator: LaneOperator, reference: Reference) -> None:
        self._operator = operator
        self._reference = reference

    def __getitem__(self, place: int, /) -> int:
        return self._operator.number(self._reference)


class FeedReader(Protocol):
    """Gives lanes their samples."""

    def open(self, feed: Feed, lane: Lane, state: State | None) -> Items: ...


@dataclass(slots=True, eq=False)
class LaneContext:
    """What the lanes of one host share.

    Attributes:
        on_drop: Called for each sample or item that is dropped.
        read: Encoded samples of positions, one for each time that a position is named; what is dropped is `Dropped`.
        leaf_of: Number of the leaf of a position.
        patience: Samples in a row that may be dropped on the way to one item.
        on_success: Called after a failure with the name of a lane's hook that works again, or "" for a sample that all
            hooks of the pure stage let through.
        on_restore_error: `WorkerConfig.restore_error_handler`.
        in_a_row: What was dropped since the last item of any lane.
        passes_in_a_row: Passes of something repeated that ended since then.
        failing: Whether some hook failed and did not work since, or no step was made yet: what works is told.
        replaying: Whether what was made before is made again, so that drops were counted.
        batch: Number, in the pass, of the batch that items are made for; None: nobody can tell.
        clock: Takes the times of hooks; None: nothing is timed.
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
        """The first sample that an item of `operator` is made of; None: only making it would tell."""
        form = self._forms.get(id(operator))
        if form is None:  # of a blend of a thousand datasets it is large
            form = self._forms[id(operator)] = operator.reference_form
        return next(positions(form, reference), None)

    def succeeded(self, hook: str) -> None:
        """A hook works again (""; those of the pure stage): its failures are no longer in a row."""
        self.failing = self.on_success(hook)

    def restore_failed(self, error: Exception, sample: Any, sources: Any) -> None:
        """Tell the handler of errors in what is rebuilt. Raises StateError if the handler raised."""
        try:
            self.on_restore_error(error, sample, sources)
        except Exception as raised:
            raise StateError(
                f"something that a saved state or a restore key names cannot be rebuilt: a hook fails on it now with "
                f"{type(error).__name__}: {error}; hooks must do the same whenever they see a sample"
            ) from raised

    @contextmanager
    def replay(self) -> Generator[None]:
        """A context in which what was made before is made again."""
        outer, self.replaying = self.replaying, True
        in_a_row = self.in_a_row
        try:
            yield
        finally:
            self.replaying, self.in_a_row = outer, in_a_row

    @contextmanager
    def rebuilding(self) -> Generator[None]:
        """A context in which what hooks made once is made again.

        Raises FatalSampleError if a hook failed as no policy may skip, ReadError or WorkerError if what hooks are given
        could not be read, and StateError if a hook failed in another way.
        """
        with self.replay():
            try:
                yield
            except (StateError, ReadError, WorkerError, FatalSampleError):
                raise  # which are no hook's, or say whose
            except Exception as error:
                raise_if_fatal(error, "a hook", "a sample that is rebuilt")
                self.restore_failed(error, None, None)
                raise StateError(
                    f"a sample that a saved state holds cannot be rebuilt, a hook fails on it now with "
                    f"{type(error).__name__}: {error}; hooks must do the same whenever they see a sample"
                ) from error


@dataclass(slots=True, eq=False)
class Lane:
    """One lane at work.

    Attributes:
        number: Of the lane among all lanes of the run.
        pass_number: Pass of the run, as it counts for random numbers.
        samples: Encoded samples that operators are rebuilt from.
        replays: Functions from stream to stream that run again meanwhile, by key and call: items handed out, and the
            operator.
    """

    number: int
    pass_number: int
    reader: FeedReader
    context: LaneContext
    samples: Samples = field(default_factory=dict[Position, list[Any]])
    replays: dict[tuple[int, int], list[Any]] = field(default_factory=dict[tuple[int, int], list[Any]])

    def call(self, hook: HookSpec, key: int, number: Positions, value: Any, *, batch: int | None = None) -> Any:
        """Call a hook on a value; `key` is the operator's in this lane, `number` (at place 0) the item's."""
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
        """Call a hook that is a generator function; for `context` and `batches` see `ValuesDraw`."""
        lock = _LockOfGenerator(self, hook)
        return HookGenerator(hook, key, number, value, lock, epoch=self.pass_number, context=context, batches=batches)

    def _lock(self, hook: HookSpec) -> AbstractContextManager[Any]:
        lock, clock = nullcontext() if hook.concurrent else self.context.hook_lock, self.context.clock
        return lock if clock is None else clock.timing(hook, lock)

    def drop(self, operator: LaneOperator, reference: Reference, hook: HookSpec, error: Exception, value: Any) -> None:
        """Count an item of `operator` that a hook dropped.

        Raises FatalSampleError if the error is one that no policy may skip, or too much was dropped in a row.
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
        """Count a sample or item that was dropped. Raises as `drop`."""
        if not self.context.replaying:
            self.context.failing = True
            self.context.on_drop(dropped)
        self.count_drop()

    def count_pass(self) -> None:
        """A pass of something that is repeated came to its end.

        Raises FatalSampleError if too many in a row had no item for this lane.
        """
        self.context.passes_in_a_row += 1
        if self.context.passes_in_a_row > _EMPTY_PASSES:
            raise FatalSampleError(
                f"lane {self.number} came through {_EMPTY_PASSES} passes of a dataset that is repeated without one "
                f"item: it has fewer items in a pass than there are lanes (or its hooks drop them all). Run with fewer "
                f"lanes (lanes=), or repeat what lies below the batches, packs or limits"
            )

    def count_drop(self) -> None:
        """Something was dropped. Raises FatalSampleError if too often in a row."""
        self.context.in_a_row += 1
        if self.context.in_a_row > self.context.patience:
            raise FatalSampleError(
                f"lane {self.number} came through {self.context.patience} samples without one item: hooks, filters or "
                f"packers drop all (or nearly all) of what it reads. loader.stats() says what was dropped and why"
            )

    def sample(self, position: Position) -> Any:
        """An encoded sample of `samples`.

        Raises StateError if it was dropped now, although it was not when the state was saved.
        """
        # Each use gets an object of its own: hooks may change what they are given.
        value = self.samples[position].pop()
        if type(value) is Dropped:
            self.context.restore_failed(value.error, value.sample, value.sources)
            raise StateError(
                f"{value.shard}: {value.key} was part of the saved state, but {value.hook} drops it now "
                f"({type(value.error).__name__}: {value.error}); hooks must do the same whenever they see a sample"
            ) from value.error
        return value

    def at_pass(self, pass_number: int) -> Lane:
        """The same lane for an operator below which passes are counted on their own."""
        if pass_number == self.pass_number:
            return self
        return Lane(self.number, pass_number, self.reader, self.context, self.samples, self.replays)

    def replay(self) -> Lane:
        """The same lane, with feeds of its own that read directly."""
        return Lane(self.number, self.pass_number, self.context.direct, self.context)

    def rebuilt(self, operator: LaneOperator, references: tuple[Reference, ...]) -> list[Item]:
        """Items of an operator that a state holds, whose samples are read now. Raises as `LaneContext.rebuilding`."""
        self.samples = self.context.read([*positions(Many(operator.reference_form), references)])
        try:
            with self.context.rebuilding():
                return [(reference, operator.rebuild(reference, self)) for reference in references]
        finally:
            self.samples = {}
            self.replays.clear()

    def reopen(self, operator: LaneOperator, state: State) -> Items:
        """An operator of this lane behind a state, whose held samples are read now."""
        self.samples = self.context.read([*positions(operator.state_form, state)])
        items = operator.open(self, state)
        self.samples = {}
        return items


class _LockOfGenerator:
    """Held while a generator runs; whether its time is taken may change from value to value."""

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
"""(calls so far,); of a generator function also items that came of the call that still runs, and its members."""


@dataclass(frozen=True, slots=True, eq=False)
class CombiningLanes(LaneOperator):
    """An item of several items. A reference is (number of the call, number among the items of the call, members)."""

    child: LaneOperator
    hook: HookSpec
    generates: bool
    key: int

    def rebuild_member(self, reference: Reference, lane: Lane) -> Any:
        """A member's value, as it is handed to the hook."""
        return self.child.rebuild(reference, lane)

    def hook_key(self, lane: Lane) -> int:
        """Key of the hook's random numbers."""
        return fold(self.key, lane.number, lane.pass_number)

    @property
    def members_form(self) -> Form:
        """References of several items."""
        return Many(self.child.reference_form)

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
            raise StateError(f"{self.hook.name}: a reference names no member; it is not of this dataset, or damaged")
        values = [self.rebuild_member(member, lane) for member in members]
        if not self.generates:
            return lane.call(self.hook, self.hook_key(lane), [call], values)
        generator = lane.run(self.hook, self.hook_key(lane), [call], values)
        generator.skip(made)
        return generator.again(made)


class HookRunner:
    """Calls the hook of an operator in one lane and hands out what comes of it.

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
        """Call the hook. If it drops the values, `next` has nothing."""
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
        """What is ready, if anything is."""
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
        """Leave out what is not handed out yet."""
        self._generator = self._ready = None
        self._members, self._made = (), 0

    def state(self) -> HookRunnerState:
        return (self._calls, self._made, self._members) if self._node.generates else (self._calls,)
