# SPDX-License-Identifier: Apache-2.0
"""Names that a package imports on first use. Its `__init__.pyi` is the only list of them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

PACKAGES: dict[str, Callable[[str], Any]] = {}
"""Looks up the public names of each package that `from_stub` serves, for the modules below it."""


def from_stub(
    names: dict[str, Any], besides: ModuleType | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package: names resolve to the modules in its stub, and form `__all__`.

    Args:
        names: The package's `globals()`.
        besides: A fallback package for names that the stub does not list.
    """
    homes: dict[str, str] = {}

    def read() -> dict[str, str]:
        if not homes:
            with open(f"{names['__file__']}i", encoding="utf-8") as file:
                lines = re.findall(r"^from (\S+) import (?:\(([^)]*)\)|(.*))$", file.read(), re.MULTILINE)
            found = {name: home for home, *some in lines for name in re.findall(r"(\w+) as ", " ".join(some))}
            homes.update(found)  # in one step: another thread may be reading
        return homes

    def get(name: str) -> Any:
        if name in names:
            return names[name]
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
    """Import the module of a dotted name and return the attribute."""
    module, _, attribute = dotted.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
