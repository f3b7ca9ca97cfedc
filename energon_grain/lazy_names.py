# SPDX-License-Identifier: Apache-2.0
"""Names that a package imports when they are first asked for. The one list of them is its `__init__.pyi`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

PACKAGES: dict[str, Callable[[str], Any]] = {}
"""Looks up the public names of each package that `from_stub` serves, for modules that are below it."""


def from_stub(
    names: dict[str, Any], besides: ModuleType | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: each name from the module that the stub says, and `__all__` of them.

    Args:
        names: The package's `globals()`.
        besides: A package whose names it has too, where it has none of its own.
    """
    homes: dict[str, str] = {}

    def read() -> dict[str, str]:
        if not homes:
            with open(f"{names['__file__']}i", encoding="utf-8") as file:
                lines = re.findall(r"^from (\S+) import (?:\(([^)]*)\)|(.*))$", file.read(), re.MULTILINE)
            found = {name: home for home, *some in lines for name in re.findall(r"(\w+) as ", " ".join(some))}
            homes.update(found)  # at once: another thread may be asking
        return homes

    def get(name: str) -> Any:
        others: list[str] = [] if besides is None else besides.__all__
        if name == "__all__":
            value: Any = sorted({*read(), *others})
        elif name in read():
            value = getattr(importlib.import_module(homes[name], names["__name__"]), name)
        elif name in others:
            value = getattr(besides, name)
        else:
            raise AttributeError(f"module {names['__name__']!r} has no attribute {name!r}")
        names[name] = value
        return value

    PACKAGES[names["__name__"]] = get
    return get, lambda: sorted({*names, *get("__all__")})


def by_name(dotted: str) -> Any:
    """What has this dotted name; its module is imported now."""
    module, _, attribute = dotted.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
