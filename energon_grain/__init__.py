"""Exact, elastic and fast data loading for Energon WebDatasets, for JAX through Grain and for PyTorch.

Everything below is imported when it is first used: `import energon_grain` by itself costs next to nothing, and neither
Grain nor JAX is loaded before a loader is made.
"""

from __future__ import annotations

import importlib
from typing import Any

from energon_grain._version import __version__ as __version__

_HOMES: dict[str, str] = {}


def _homes() -> dict[str, str]:
    """Public name to the module that holds it: what `__init__.pyi` says, read when the first name is asked for."""
    if not _HOMES:
        import re

        with open(f"{__file__}i", encoding="utf-8") as file:
            lines = re.findall(r"^from (\S+) import (?:\(([^)]*)\)|(.*))$", file.read(), re.MULTILINE)
        _HOMES.update((name, home) for home, *names in lines for name in re.findall(r"(\w+) as ", " ".join(names)))
    return _HOMES


def __getattr__(name: str) -> Any:
    if name == "__all__":
        value: Any = sorted(_homes())
    elif name in _homes():
        value = getattr(importlib.import_module(_homes()[name], __name__), name)
    else:
        raise AttributeError(f"module 'energon_grain' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})
