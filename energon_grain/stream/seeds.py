"""Global random generators for hooks that use them: `@stateless(restore_seeds=True)`."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_grain.datasets.draw_context import Draw

_lock = threading.RLock()


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalGenerator:
    """A random generator that belongs to the process.

    Attributes:
        seed: Seeds it with 64 bits.
        get_state: What `set_state` takes.
        set_state: Goes back to a state.
    """

    seed: Callable[[int], Any]
    get_state: Callable[[], Any]
    set_state: Callable[[Any], Any]


GENERATORS = {
    "random": GlobalGenerator(seed=random.seed, get_state=random.getstate, set_state=random.setstate),
    "numpy": GlobalGenerator(
        # The words in the other order than `random` takes them: equal ones would make both give the same numbers.
        seed=lambda seed: np.random.seed([seed >> 32, seed & 0xFFFFFFFF]),  # noqa: NPY002 (hooks use the globals)
        get_state=np.random.get_state,
        set_state=np.random.set_state,
    ),
}
"""Those that hooks may use, by name. A backend adds its own."""


class SeededGlobals:
    """A context in which all `GENERATORS` are seeded from a key; afterwards they are as before.

    Entered again it goes on with the numbers behind those that were used, as a generator hook needs it. The generators
    belong to the process: a context waits until no other thread is in one.

    Args:
        seed: 64-bit key.
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


os.register_at_fork(after_in_child=_renew_lock)  # a thread that does not exist in the child may have held it


def seeded_globals(function: Callable[[Any], Any], draw: Draw) -> Callable[[Any], Any]:
    """Wrap a hook so that it runs with global generators seeded from the draw, and they are as before afterwards."""

    def call(value: Any) -> Any:
        with SeededGlobals(draw.seed):
            return function(value)

    return call
