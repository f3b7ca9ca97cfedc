# SPDX-License-Identifier: Apache-2.0
"""Calling a hook on a value, with its draw, its seeds and its lock.

Hooks may use the global random generators of the process (`@stateless(restore_seeds=True)`). These are seeded before
each call and restored after it.
"""

from __future__ import annotations

import copy
import os
import random
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Protocol, cast

import numpy as np

from energon_grain.errors import ConfigError, FatalSampleError, StateError
from energon_grain.samplers.hashing import fold
from energon_grain.storage.cancellation import raise_if_cancelled

_lock = threading.RLock()
DEFAULT_FAILURE_TOLERANCE = 100
"""Failures of one hook in a row that end a run, unless set otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HookSpec:
    """A user function and how to call it.

    Attributes:
        name: Name in random keys, failure limits and statistics.
        function: Takes a sample, a list of samples, or a batch.
        failure_tolerance: Failures in a row that end a run; 0: no limit.
        restore_seeds: Whether to seed the global generators around each call.
        concurrent: Whether calls may run at the same time.
        filters: Whether its purpose is to drop samples.
        lists: Whether it takes a list of values. It then returns a list with one entry for each value: the new value,
            or an exception that drops it.
    """

    name: str
    function: Callable[[Any], Any]
    failure_tolerance: int
    restore_seeds: bool
    concurrent: bool
    filters: bool = False
    lists: bool = False

    def one(self, value: Any) -> Any:
        """Call a hook on lists with a single value. Raises as `many`, and the entry itself if it is an exception."""
        (entry,) = self.many([value])
        if isinstance(entry, Exception):
            raise entry
        return entry

    def many(self, values: list[Any]) -> list[Any]:
        """The entries that a hook on lists returns.

        Raises ConfigError if the number of entries is wrong, and any error that the hook raises.
        """
        entries = self.function(values.copy())
        if not isinstance(entries, list | tuple) or len(cast("list[Any]", entries)) != len(values):
            raise ConfigError(
                f"{self.name} must return a list with one entry for each of the {len(values)} samples in its argument, "
                f"in their order; it returned {_length_of(entries)}. To drop a sample, make its entry an exception, "
                f"such as SkipSample()"
            )
        return list(cast("list[Any]", entries))


def _length_of(value: Any) -> str:
    kind = type(value).__name__
    return f"a {kind} of {len(value)}" if isinstance(value, list | tuple) else f"a value of type {kind}"


class Positions(Protocol):
    """A position for each index."""

    def __getitem__(self, place: int, /) -> int: ...


class Draw:
    """The draw of the current call of a hook.

    The stream makes one for a whole chunk of samples and moves `place` along. Values that a hook does not read cost
    nothing.
    """

    __slots__ = ("_batch", "_epochs", "_generator", "_generator_place", "_indices", "_key", "_positions", "place")

    def __init__(
        self,
        key: int,
        positions: Positions,
        indices: list[int],
        epochs: list[int],
        batch_index: int | Callable[[int], int] | None = None,
    ) -> None:
        self._key = key
        self._positions = positions
        self._indices = indices
        self._epochs = epochs
        self._batch = batch_index
        self.place = 0
        self._generator: np.random.Generator | None = None
        self._generator_place = -1

    @property
    def position(self) -> int:
        """Position in the leaf's own stream (sample hooks), or number of the batch's first item (batch hooks)."""
        return self._positions[self.place]

    @property
    def index(self) -> int:
        """Index of the sample in its leaf; -1 in batch hooks."""
        return self._indices[self.place]

    @property
    def epoch(self) -> int:
        """Pass over the leaf (0, 1, …) that this sample belongs to; in batch hooks, the pass of a finite stream."""
        return self._epochs[self.place]

    @property
    def batch_index(self) -> int:
        """Number of the batch being made, on this host and in this pass (or in the endless stream).

        In hooks on samples: the batch that the sample belongs to if no sample before it is dropped. In a generator
        hook: the batch that the current value is made for, looked up for each value. A value that is made again for a
        saved state or a restore key keeps its first number.

        Raises:
            RuntimeError: The sample is read before a generator, filter, packer or similar, so its batch is unknown.
        """
        if self._batch is None:
            raise RuntimeError(
                "the number of the batch is not known in this hook: its samples pass through generators, filters, "
                "groups or packs before they become batches. Use current_sample_index, or `rng` for random numbers"
            )
        return self._batch if isinstance(self._batch, int) else self._batch(self.place)

    @property
    def seed(self) -> int:
        """64-bit key of this draw's random numbers: a hash of (seed, leaf, position, hook)."""
        return fold(self._key, self.position)

    @property
    def rng(self) -> np.random.Generator:
        """The random generator of this draw, made on first use. Equal draws give equal numbers in any process."""
        if self._generator is None or self._generator_place != self.place:
            self._generator = np.random.Generator(np.random.Philox(key=self.seed))
            self._generator_place = self.place
        return self._generator


class _Current(threading.local):
    draw: Draw | Callable[[], Sequence[Draw]] | None = None


current = _Current()
"""The draw of the running hook, one per thread; for a hook on lists, a function that makes the draws of its samples.
The stream sets it; hooks read it through `current_draw` and `current_draws`."""


def current_draw() -> Draw:
    """The draw that the running hook works on.

    Raises:
        RuntimeError: Called outside a hook, or in a hook that works on many samples at once.
    """
    draw = current.draw
    if draw is None:
        raise RuntimeError("current_draw() is only available inside a running hook; no hook runs in this thread")
    if not isinstance(draw, Draw):
        raise RuntimeError(
            "this hook works on many samples at once, and each has its own draw: use `current_draws()`, a list of "
            "draws in the order of the samples, or `self.rngs` for their random numbers"
        )
    return draw


def current_draws() -> list[Draw]:
    """Return the draws of the samples that the running hook receives, in order. Other hooks have only one draw.

    Raises:
        RuntimeError: Called outside a hook.
    """
    draw = current.draw
    return [current_draw()] if draw is None or isinstance(draw, Draw) else list(draw())


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalGenerator:
    """A global random generator of the process."""

    seed: Callable[[int], Any]
    get_state: Callable[[], Any]
    set_state: Callable[[Any], Any]


GENERATORS = {
    "random": GlobalGenerator(seed=random.seed, get_state=random.getstate, set_state=random.setstate),
    "numpy": GlobalGenerator(
        # Words in reverse order compared to `random`: the same order would make both return the same numbers.
        seed=lambda seed: np.random.seed([seed >> 32, seed & 0xFFFFFFFF]),  # noqa: NPY002 (hooks use the globals)
        get_state=np.random.get_state,
        set_state=np.random.set_state,
    ),
}
"""Global generators that hooks may use, by name. Backends add their own."""


class SeededGlobals:
    """A context in which all `GENERATORS` are seeded from a key. They are restored afterwards.

    Entered again, it continues with the following numbers, as a generator hook needs. The generators belong to the
    process, so only one thread can be in such a context at a time.
    """

    __slots__ = ("_inner", "_outer", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inner: dict[str, Any] | None = None
        self._outer: dict[str, Any] | None = None

    def __enter__(self) -> None:
        _lock.acquire()
        self._outer = _states()
        if self._inner is None:
            for generator in GENERATORS.values():
                generator.seed(self._seed)
        else:
            _restore(self._inner)

    def __exit__(self, *exception: object) -> None:
        assert self._outer is not None
        try:
            self._inner = _states()
            _restore(self._outer)
        finally:
            _lock.release()


def _states() -> dict[str, Any]:
    return {name: generator.get_state() for name, generator in GENERATORS.items()}


def _restore(states: dict[str, Any]) -> None:
    for name, state in states.items():
        GENERATORS[name].set_state(state)


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # a thread that does not exist in the child may hold it


def seeded_globals(function: Callable[[Any], Any], draw: Draw) -> Callable[[Any], Any]:
    """Wrap a hook so that global generators are seeded from the draw before the call and restored after it."""

    def call(value: Any) -> Any:
        with SeededGlobals(draw.seed):
            return function(value)

    return call


_OF_COPY = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__setattr__", "__new__", "__copy__")


def snapshot(value: Any) -> Any:
    """A shallow copy of a dataclass or dictionary, unaffected by later writes to its fields. Other values as they are.

    1.4 µs for a sample with slots, such as ours, 2.5 µs for other dataclasses, and 0.2 µs for a dictionary.
    """
    copied = _copier(type(value))
    return value if copied is None else copied(value)


@lru_cache(maxsize=1024)
def _copier(kind: type[Any]) -> Callable[[Any], Any] | None:
    if issubclass(kind, dict):
        return copy.copy
    if not is_dataclass(kind):
        return None
    names = tuple(field.name for field in fields(kind))
    slots = {name for each in kind.__mro__ for name in getattr(each, "__slots__", ())} - {"__weakref__"}
    plain = all(getattr(kind, name, None) is getattr(object, name, None) for name in _OF_COPY)
    if plain and len(names) > 1 and slots == {*names} and not kind.__dictoffset__:
        return _of_slots(kind, names)
    return copy.copy


def _of_slots(kind: type[Any], names: tuple[str, ...]) -> Callable[[Any], Any]:
    values_of = attrgetter(*names)

    def copied(value: Any) -> Any:
        try:
            values = values_of(value)
        except AttributeError:  # an empty slot
            return copy.copy(value)
        made = object.__new__(kind)
        for name, one in zip(names, values, strict=True):
            setattr(made, name, one)
        return made

    return copied


Batches = tuple[tuple[int, int], ...]
"""Pairs of the number of a value and the number of a batch, in ascending order."""


def call_hook(
    hook: HookSpec,
    key: int,
    number: Positions,
    value: Any,
    lock: AbstractContextManager[Any],
    *,
    epoch: int,
    batch: int | None = None,
) -> Any:
    """Call a hook with random numbers keyed by (key, number).

    Args:
        hook: The hook.
        key: 64-bit key of the hook.
        number: Number of the item, as a sequence of length one, which may compute it on access.
        value: Argument of the hook.
        lock: Held during the call.
        epoch: `Draw.epoch` in the hook.
        batch: `Draw.batch_index` in the hook; None: unknown.

    Raises:
        Cancelled: The result is no longer needed; the hook was not called.
        Exception: Any error that the hook raises.
    """
    raise_if_cancelled()
    draw = Draw(key, number, [-1], [epoch], batch_index=batch)
    outer = current.draw
    with lock:
        current.draw = (lambda: [draw]) if hook.lists else draw
        try:
            if hook.lists:
                return hook.one(value)
            if hook.restore_seeds:
                with SeededGlobals(draw.seed):
                    return hook.function(value)
            return hook.function(value)
        finally:
            current.draw = outer


def _stopped(function: Any) -> FatalSampleError:
    return FatalSampleError(
        f"{function!r} raised StopIteration, which would end the iteration silently; return to end a generator, and "
        f"give `next` a default"
    )


class BatchContext(Protocol):
    """The batch that items are being made for."""

    batch: int | None
    """Number of the batch in the pass; None: unknown."""


class ValuesDraw(Draw):
    """The draw of a generator hook, whose values may become parts of different batches.

    Attributes:
        made: Values made so far.
        batches: (number of a value, batch that it was made for), for each value where the hook requested it. When the
            hook runs again, it receives the recorded batches.
        context: Source of the current batch; None: the batch is unknown.
    """

    __slots__ = ("batches", "context", "made")

    made: int
    batches: Batches
    context: BatchContext | None

    @property
    def batch_index(self) -> int:
        """The batch that the current value is made for."""
        known = next((batch for number, batch in self.batches if number == self.made), None)
        if known is not None:
            return known
        if self.context is None or self.context.batch is None:
            return super().batch_index  # raises
        self.batches = (*self.batches, (self.made, self.context.batch))
        return self.context.batch


class HookGenerator:
    """A running generator hook. Other hooks may run between its values: its random numbers are its own.

    Nothing runs before the first value is requested.
    """

    __slots__ = ("_function", "_generator", "_lock", "_outer", "_seeds", "_value", "draw")

    def __init__(
        self,
        hook: HookSpec,
        key: int,
        number: Positions,
        value: Any,
        lock: AbstractContextManager[Any],
        *,
        epoch: int,
        context: BatchContext | None = None,
        batches: Batches = (),
    ) -> None:
        self.draw = ValuesDraw(key, number, [-1], [epoch])
        self.draw.made = 0
        self.draw.batches = batches
        self.draw.context = context
        self._seeds = SeededGlobals(self.draw.seed) if hook.restore_seeds else None
        self._lock = lock
        self._function = hook.function
        self._value = value
        self._generator: Iterator[Any] | None = None
        self._outer: Draw | Callable[[], Sequence[Draw]] | None = None

    def __iter__(self) -> HookGenerator:
        return self

    def __next__(self) -> Any:
        raise_if_cancelled()
        self._outer = current.draw
        with self._lock:
            current.draw = self.draw
            try:
                with nullcontext() if self._seeds is None else self._seeds:
                    generator = self._generator or self._begin()
                    value = snapshot(next(generator))
                    self.draw.made += 1
                    return value
            except RuntimeError as error:
                if isinstance(error.__cause__, StopIteration):
                    raise _stopped(self._function) from error
                raise
            finally:
                current.draw = self._outer

    def _begin(self) -> Iterator[Any]:
        try:
            self._generator = iter(self._function(self._value))
        except StopIteration as error:
            raise _stopped(self._function) from error
        return self._generator

    @contextmanager
    def outside(self) -> Generator[None]:
        """A context for calling other hooks from the running generator: they must not see its lock, draw and seeds."""
        if self._seeds is not None:
            self._seeds.__exit__()
        current.draw = self._outer
        self._lock.__exit__(None, None, None)
        try:
            yield
        finally:
            self._lock.__enter__()
            current.draw = self.draw
            if self._seeds is not None:
                self._seeds.__enter__()

    def skip(self, values: int) -> None:
        """Skip values that were delivered before. Raises StateError if there are fewer."""
        for number in range(values):
            self.again(number)

    def again(self, number: int) -> Any:
        """The next value, which was made before. Raises StateError if the generator ends before it."""
        for value in self:
            return value
        raise StateError(
            f"{self._function!r} made only {number} values of an item, but more when the state was saved; hooks must "
            f"return the same results each time they see a sample"
        )
