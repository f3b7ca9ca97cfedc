# SPDX-License-Identifier: Apache-2.0
"""Registering sample types with JAX, if the program has imported it.

The packages below the loader import no framework. `energon_grain.loader.pytree` defines how JAX sees samples and
batches. It is imported at call time, once JAX is imported: when a class is defined, and when a batch or sample is
delivered. Classes defined before JAX was imported are registered on the first of these occasions.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from typing import Any

_waiting: list[weakref.ref[type]] = []
registered: set[type] = set()
"""Types that are registered with JAX."""


def register_type(cls: type) -> None:
    """Register the instances of a dataclass, or of `CrudeSample`, as pytrees."""
    _waiting.append(weakref.ref(cls))
    if "jax" in sys.modules:
        _register_waiting()


def register_value(value: Any) -> None:
    """Register the type of a batch, or of the batches in a list, tuple or dictionary, including users' dataclasses."""
    if (_waiting or type(value) not in registered) and "jax" in sys.modules:
        _register_waiting().register_value(value)


def _register_waiting() -> Any:
    pytree = importlib.import_module("energon_grain.loader.pytree")
    while _waiting:
        cls = _waiting.pop()()
        if cls is not None:
            # When a class is created, before the decorator has run, a subclass of a dataclass counts as a dataclass.
            pytree.register_type(cls)
    return pytree
