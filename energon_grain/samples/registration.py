# SPDX-License-Identifier: Apache-2.0
"""Making sample types known to JAX, where the program has imported it.

The floors below the loader import no framework. What samples and batches are to JAX is a matter of
`energon_grain.loader.pytree`, which is imported here at call time, once JAX is there: when a class is defined, and when
a batch or a sample is delivered. Classes that were defined before JAX was imported are registered on the first of these
occasions, all of them.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from typing import Any

_waiting: list[weakref.ref[type]] = []
registered: set[type] = set()
"""Types that JAX knows."""


def register_type(cls: type) -> None:
    """Make the instances of a dataclass, or of `CrudeSample`, pytrees."""
    _waiting.append(weakref.ref(cls))
    if "jax" in sys.modules:
        _register_waiting()


def register_value(value: Any) -> None:
    """Make a batch, or the batches in a list, tuple or dictionary, pytrees: plain dataclasses of users too."""
    if (_waiting or type(value) not in registered) and "jax" in sys.modules:
        _register_waiting().register_value(value)


def _register_waiting() -> Any:
    pytree = importlib.import_module("energon_grain.loader.pytree")
    while _waiting:
        cls = _waiting.pop()()
        if cls is not None:
            # At class creation, before the decorator has run, a subclass of a dataclass counts as one.
            pytree.register_type(cls)
    return pytree
