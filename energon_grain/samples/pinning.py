"""Samples and batches whose tensors lie in pinned (page-locked) memory.

A tensor, or whatever else has a method `pin_memory`, is asked for its pinned copy; torch is not imported here.
"""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")

PLAIN = frozenset({str, bytes, int, float, bool, complex, type(None)})
METADATA_FIELDS = frozenset({"__key__", "__restore_key__", "__subflavors__", "__sources__"})


def pin_memory(value: T) -> T:
    """A copy of a batch, or of any value, with what can be pinned pinned.

    Dataclasses, dictionaries, named tuples, lists and tuples are entered and made anew, each with its own type;
    metadata and all else, numpy arrays too, is shared with the copy. An entry with a `pin_memory` of its own pins
    itself.

    Raises:
        RuntimeError: There is no device to pin memory for.
    """
    return _entered(value)


def _pinned(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    own = getattr(value, "pin_memory", None)
    return own() if callable(own) and not isinstance(value, type) else _entered(value)


def _entered(value: Any) -> Any:
    if isinstance(value, dict):
        return _with_entries(value, {key: _pinned(entry) for key, entry in value.items() if key not in METADATA_FIELDS})
    if isinstance(value, (list, tuple)):
        entries: list[Any] | tuple[Any, ...] = value
        return entries if PLAIN.issuperset(map(type, entries)) else like(entries, [_pinned(entry) for entry in entries])
    if is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)  # keeps what is no field, and needs no constructor
        for name in _entered_fields(type(value)):
            if hasattr(value, name):
                object.__setattr__(made, name, _pinned(getattr(value, name)))
        return made
    return value


def _with_entries(original: dict[Any, Any], entries: dict[Any, Any]) -> dict[Any, Any]:
    made = copy.copy(original)
    made.update(entries)
    return made


@lru_cache(maxsize=1024)
def _entered_fields(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls) if field.name not in METADATA_FIELDS)


def like(original: Any, values: list[Any]) -> Any:
    """`values` as the kind of list, tuple or named tuple that `original` is."""
    return original._make(values) if hasattr(original, "_make") else type(original)(values)
