"""What samples and batches are beside their fields: a mapping of names to values, and copies of them elsewhere.

A tensor, or whatever else has a method `pin_memory` or `to`, is asked for its copy; torch is not imported here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, KeysView
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound="Fields")

PLAIN = frozenset({str, bytes, int, float, bool, complex, type(None)})
METADATA_FIELDS = frozenset({"__key__", "__restore_key__", "__subflavors__", "__sources__"})
_NO_CONTENT = frozenset({*METADATA_FIELDS, "__valid__"})


class Fields:
    """What `Sample` and `Batch` have in common.

    `value["image"]` is `value.image`, and `model(**value)` and `dict(value)` take the fields without the metadata.
    """

    __slots__ = ()
    __iter__ = None
    """As `dict(value)` and `**value` need none, a loop over a batch by mistake is an error."""

    def __setstate__(self, state: Any) -> None:
        # Energon's have no `__valid__`, and so have its pickles. (A `__getattr__` would make every access slower.)
        for part in ({"__valid__": None}, *(state if isinstance(state, tuple) else (state,))):
            for name, value in (part or {}).items():
                setattr(self, name, value)

    def keys(self) -> KeysView[str]:
        """Names of the fields, without the metadata (`__key__`, `__restore_key__`, …)."""
        return dict.fromkeys(_content_names(self)).keys()

    def __getitem__(self, name: str) -> Any:
        if name in _all_names(self):
            return getattr(self, name)
        raise KeyError(f"{type(self).__name__} has no field {name!r}, it has {', '.join(_content_names(self))}")

    def __contains__(self, name: object) -> bool:
        return name in _all_names(self)

    def as_dict(self, *, metadata: bool = False) -> dict[str, Any]:
        """The fields as a dictionary, whose values are shared.

        Args:
            metadata: Whether `__key__` and its like are in it, too.
        """
        return {name: getattr(self, name) for name in (_all_names(self) if metadata else _content_names(self))}

    def pin_memory(self: F) -> F:
        """A copy with the tensors in pinned memory, from where they are copied to a GPU while it computes.

        What has no `pin_memory` (numpy arrays, texts) is shared with the copy. See `energon_grain.samples.fields`.
        """
        return pin_memory(self)

    def to(self: F, *device: Any, **options: Any) -> F:
        """A copy with the tensors on a device: arguments are those of `torch.Tensor.to`, such as `non_blocking=True`.

        What has no `to` (numpy arrays, texts) is shared with the copy.
        """
        return _entered(self, lambda value: value.to(*device, **options) if _can(value, "to") else None)


def pin_memory(value: T) -> T:
    """A copy of a batch, or of any value, with what can be pinned pinned.

    Dataclasses, dictionaries, named tuples, lists and tuples are entered and made anew, each with its own type;
    metadata and all else, numpy arrays too, is shared with the copy. An entry with a `pin_memory` of its own pins
    itself.

    Raises:
        RuntimeError: There is no device to pin memory for.
    """
    return _entered(value, lambda value: value.pin_memory() if _can(value, "pin_memory") else None)


def _can(value: Any, method: str) -> bool:
    return callable(getattr(value, method, None)) and not isinstance(value, type)


Change = Callable[[Any], Any]
"""A value in a new place; None: it cannot be moved by itself."""


def _changed(value: Any, change: Change) -> Any:
    if type(value) in PLAIN:
        return value
    made = change(value)
    return _entered(value, change) if made is None else made


def _entered(value: Any, change: Change) -> Any:
    if isinstance(value, dict):
        mapping: dict[Any, Any] = copy.copy(value)
        mapping.update({key: _changed(entry, change) for key, entry in value.items() if key not in METADATA_FIELDS})
        return mapping
    if isinstance(value, (list, tuple)):
        entries: list[Any] | tuple[Any, ...] = value
        plain = PLAIN.issuperset(map(type, entries))
        return entries if plain else like(entries, [_changed(entry, change) for entry in entries])
    if is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)  # keeps what is no field, and needs no constructor
        for name in _names(type(value)):
            if name not in METADATA_FIELDS and hasattr(value, name):
                object.__setattr__(made, name, _changed(getattr(value, name), change))
        return made
    return value


@lru_cache(maxsize=1024)
def _names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


def _all_names(value: Any) -> tuple[str, ...]:
    return _names(type(value))


def _content_names(value: Any) -> tuple[str, ...]:
    return tuple(name for name in _all_names(value) if name not in _NO_CONTENT)


def like(original: Any, values: list[Any]) -> Any:
    """`values` as the kind of list, tuple or named tuple that `original` is."""
    return original._make(values) if hasattr(original, "_make") else type(original)(values)
