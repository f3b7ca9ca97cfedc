"""Where object stores are implemented: `energon_grain.stores`, above the kernel, found by name."""

from __future__ import annotations

import importlib
from typing import Any

_OWN = "energon_grain.stores"


def stores_module(name: str) -> Any:
    """A module of the package that implements object stores."""
    return importlib.import_module(f"{_OWN}.{name}")
