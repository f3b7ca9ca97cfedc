"""Global random generators for hooks that use them: `@stateless(restore_seeds=True)`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from energon_grain.datasets.draw_context import Draw


def seeded_globals(function: Callable[[Any], Any], draw: Draw) -> Callable[[Any], Any]:
    """Wrap a hook so that `random` and `numpy.random` are seeded from the draw while it runs, and as before afterwards.

    The caller sees to it that no two such calls overlap in time.
    """

    def call(value: Any) -> Any:
        python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 (the hook uses the globals)
        seed = draw.seed
        random.seed(seed)
        # The words in the other order than `random` takes them: equal ones would make both give the same numbers.
        np.random.seed([seed >> 32, seed & 0xFFFFFFFF])  # noqa: NPY002
        try:
            return function(value)
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002

    return call
