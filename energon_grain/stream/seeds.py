"""Global random generators for hooks that use them: `@stateless(restore_seeds=True)`."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from energon_grain.datasets.draw_context import Draw

_lock = threading.RLock()


class SeededGlobals:
    """A context in which `random` and `numpy.random` are seeded from a key; afterwards they are as before.

    Entered again it goes on with the numbers behind those that were used, as a generator hook needs it. The generators
    belong to the process: a context waits until no other thread is in one.

    Args:
        seed: 64-bit key.
    """

    __slots__ = ("_inner", "_outer", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inner: tuple[Any, Any] | None = None
        self._outer: tuple[Any, Any] | None = None

    def __enter__(self) -> None:
        _lock.acquire()
        self._outer = random.getstate(), np.random.get_state()  # noqa: NPY002 (hooks use the globals)
        if self._inner is None:
            random.seed(self._seed)
            # The words in the other order than `random` takes them: equal ones would make both give the same numbers.
            np.random.seed([self._seed >> 32, self._seed & 0xFFFFFFFF])  # noqa: NPY002
        else:
            random.setstate(self._inner[0])
            np.random.set_state(self._inner[1])  # noqa: NPY002

    def __exit__(self, *exception: object) -> None:
        assert self._outer is not None
        try:
            self._inner = random.getstate(), np.random.get_state()  # noqa: NPY002
            random.setstate(self._outer[0])
            np.random.set_state(self._outer[1])  # noqa: NPY002
        finally:
            _lock.release()


def seeded_globals(function: Callable[[Any], Any], draw: Draw) -> Callable[[Any], Any]:
    """Wrap a hook so that it runs with global generators seeded from the draw, and they are as before afterwards."""

    def call(value: Any) -> Any:
        with SeededGlobals(draw.seed):
            return function(value)

    return call
