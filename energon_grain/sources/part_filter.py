"""Which parts of samples are read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

PartFilter: TypeAlias = Callable[[str], bool] | Collection[str] | None
"""Names, or a predicate on the name; None: all."""


def accepts(parts: PartFilter, name: str) -> bool:
    """Whether the part `name` is read."""
    if parts is None:
        return True
    return bool(parts(name)) if callable(parts) else name in parts
