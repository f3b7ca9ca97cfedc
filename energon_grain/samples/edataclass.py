"""The decorator of all sample and batch types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """Make `cls` a dataclass with keyword-only fields and slots.

    The same as `@dataclass(kw_only=True, slots=True)`. Use `dataclass` itself where other options are needed; a plain
    `@dataclass` works on subclasses of our types too, at the cost of a `__dict__` per instance.
    """
    return dataclass(kw_only=True, slots=True)(cls)
