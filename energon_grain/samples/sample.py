# SPDX-License-Identifier: Apache-2.0
"""The base of all sample types: fields, metadata of samples and batches, and the sources of their data.

Tensors, and any other values with a method `pin_memory` or `to`, make their own copies. This module imports no torch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, KeysView, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast, dataclass_transform

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.lazy_names import by_name
from energon_grain.samples.registration import register_type
from energon_grain.storage.epath import EPath

S = TypeVar("S", bound="Sample")
T = TypeVar("T")
F = TypeVar("F", bound="Fields")


class SourceInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One place on disk that a sample was made from.

    Immutable and hashable. A struct instead of a frozen dataclass, because every sample has one: construction takes
    0.2 µs instead of 0.9 µs.
    """

    dataset_path: EPath
    """Root of the dataset."""
    index: int | str
    """Number of the sample in the dataset; its key if the sample was looked up by key."""
    shard_name: str
    """File that holds the sample, relative to the dataset; the base folder for loose files."""
    file_names: tuple[str, ...]
    """Full names of the members that were read."""

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Set the fields from Energon's pickles."""
        for name, value in zip(self.__struct_fields__, state, strict=True):
            msgspec.structs.force_setattr(self, name, value)


def add_source_info(sample: T, *sources: SourceInfo) -> T:
    """Append `sources` to the `__sources__` of a sample (object or dictionary) in place, and return the sample.

    Values without a place for sources are returned unchanged.
    """
    record: Any = sample
    if isinstance(record, dict):
        record["__sources__"] = (*(record.get("__sources__") or ()), *sources)
    elif hasattr(record, "__sources__"):
        record.__sources__ = (*(record.__sources__ or ()), *sources)
    return sample


def get_source_info(sample: object) -> list[SourceInfo] | None:
    """The sources of a sample, of a batch, or of a list of samples in order; None if there are none."""
    if isinstance(sample, list):
        records: list[object] = sample
        found = [source for record in records for source in _sources(record)]
    else:
        found = list(_sources(sample))
    return found or None


def _sources(record: object) -> tuple[SourceInfo, ...]:
    if isinstance(record, dict):
        entry: Mapping[str, Any] = record
        return entry.get("__sources__") or ()
    return getattr(record, "__sources__", None) or ()


PLAIN = frozenset({str, bytes, int, float, bool, complex, type(None)})
METADATA_FIELDS = frozenset({"__key__", "__restore_key__", "__subflavors__", "__sources__"})
_NO_CONTENT = frozenset({*METADATA_FIELDS, "__valid__"})


class _Leaf:
    """The attribute `leaf` of types without a field of that name."""

    def __get__(self, record: Any, owner: Any = None) -> Any:
        if record is None:
            raise AttributeError("leaf")  # otherwise a dataclass takes it for the default of its own field
        return by_name("energon_grain.history.leaf_of.leaf_in")(record)


class Fields:
    """Base of `Sample` and `Batch`.

    `value["image"]` is `value.image`, and `model(**value)` and `dict(value)` use the fields without the metadata.

    As in Energon, attributes that are not fields may be set: `vars(value)` contains them, and copies and pickles keep
    them. Operations on fields (`==`, `repr`, `dataclasses.replace`, `extend`, batching) ignore them.
    """

    __slots__ = ("__dict__",)  # made when an attribute is set; unused, it costs 32 bytes and 20 ns per object
    __iter__ = None
    """Looping over a batch is an error. `dict(value)` and `**value` need no `__iter__`."""
    leaf = _Leaf()
    """The number of each sample's dataset in `loader.leaf_names`: (batch,) int32; see `leaf_of`.

    A tensor on the device of the batch's tensors, otherwise a numpy array. Computed from `__restore_key__` on each use.
    """

    def __setstate__(self, state: Any) -> None:
        # Energon's types and their pickles have no `__valid__`. (A `__getattr__` would make every access slower.)
        for part in ({"__valid__": None}, *(state if isinstance(state, tuple) else (state,))):
            for name, value in (part or {}).items():
                setattr(self, name, value)

    def keys(self) -> KeysView[str]:
        """Names of the fields, without the metadata (`__key__`, `__restore_key__`, …)."""
        return dict.fromkeys(_content_names(self)).keys()

    def __getitem__(self, name: str) -> Any:
        if name in _all_names(self):
            return getattr(self, name)
        raise KeyError(f"{type(self).__name__} has no field {name!r}; it has {', '.join(_content_names(self))}")

    def __contains__(self, name: object) -> bool:
        return name in _all_names(self)

    def as_dict(self, *, metadata: bool = False) -> dict[str, Any]:
        """The fields as a dictionary. Values are not copied.

        Args:
            metadata: Whether to include `__key__` and other metadata.
        """
        return {name: getattr(self, name) for name in (_all_names(self) if metadata else _content_names(self))}

    def pin_memory(self: F) -> F:
        """A copy with tensors in pinned memory, so that they can be copied to a GPU while it computes.

        Values without `pin_memory` (numpy arrays, strings) are shared with the copy. See the function `pin_memory`.
        """
        return pin_memory(self)

    def to(self: F, *device: Any, **options: Any) -> F:
        """A copy with tensors on a device. Arguments are those of `torch.Tensor.to`, such as `non_blocking=True`.

        Values without `to` (numpy arrays, strings) are shared with the copy.
        """
        return _entered(self, lambda value: value.to(*device, **options) if _can(value, "to") else None)


def pin_memory(value: T) -> T:
    """A copy of a batch, or of any value, with tensors in pinned memory.

    Dataclasses, dictionaries, named tuples, lists and tuples are traversed and copied, and keep their types. Metadata
    and all other values, including numpy arrays, are shared with the copy. Entries with their own `pin_memory` are
    pinned by it.

    Raises RuntimeError if there is no device to pin memory for.
    """
    return _entered(value, lambda value: value.pin_memory() if _can(value, "pin_memory") else None)


def _can(value: Any, method: str) -> bool:
    return callable(getattr(value, method, None)) and not isinstance(value, type)


Change = Callable[[Any], Any]
"""A moved copy of a value; None: the value itself cannot be moved."""


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
        made = copy.copy(value)  # keeps attributes that are not fields, and calls no constructor
        for name in dict.fromkeys((*_names(type(value)), *getattr(value, "__dict__", ()))):
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
    """`values` as the same type of list, tuple or named tuple as `original`."""
    return original._make(values) if hasattr(original, "_make") else type(original)(values)


BASE_FIELDS = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
"""Names of the metadata fields of every sample and batch."""


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """Make `cls` a dataclass with keyword-only fields and slots.

    Equal to `@dataclass(kw_only=True, slots=True)`. Use `dataclass` itself for other options. A plain `@dataclass` also
    works on subclasses of our types, but stores its own fields in a dictionary, which is slower.
    """
    return dataclass(kw_only=True, slots=True)(cls)


@dataclass(kw_only=True, slots=True, weakref_slot=True)
class Sample(Fields):
    """One training example. Subclass it with `@edataclass` or a plain `@dataclass` and add fields.

    Fields are keyword-only, and instances are mutable. With JAX imported, every subclass is a pytree: the arrays in its
    fields are its leaves, and everything else is static (`energon_grain.loader.pytree`).
    """

    __key__: str
    """Identifies the sample within its dataset."""
    __restore_key__: tuple[Any, ...]
    """The draw that made the sample; a nested tuple of strings and integers."""
    __subflavors__: dict[str, Any] | None = None
    """Tags of the sample's dataset."""
    __sources__: tuple[SourceInfo, ...] | None = None
    """Files that the sample was made from."""
    __valid__: npt.NDArray[np.bool_] | None = None
    """If the type is used as a batch: (batch,) True for samples, False for padding. None: no padding."""

    @property
    def __subflavor__(self) -> Any:
        """The value of `subflavor:` in a metadataset, the older form of `subflavors: {__subflavor__: …}`; else None.

        If the type is used as a batch: a list of these values.
        """
        tags: Any = self.__subflavors__
        if isinstance(tags, list):
            return [(each or {}).get("__subflavor__") for each in cast("list[Any]", tags)]
        return (tags or {}).get("__subflavor__")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # No zero-argument super(): `slots=True` makes a new class, and the cell would refer to the old one.
        super(Sample, cls).__init_subclass__(**kwargs)
        register_type(cls)

    @classmethod
    def derive_from(cls: type[S], base_sample: Sample, **fields_of_new: Any) -> S:
        """Make a sample of this type with the four base fields of `base_sample` and the given other fields.

        Base fields may be overridden by keyword.
        """
        base_fields: dict[str, Any] = {
            "__key__": base_sample.__key__,
            "__restore_key__": base_sample.__restore_key__,
            "__subflavors__": base_sample.__subflavors__,
            "__sources__": base_sample.__sources__,
        }
        return cls(**{**base_fields, **fields_of_new})

    @classmethod
    def extend(cls: type[S], src: Any, **fields_of_new: Any) -> S:
        """Make a sample of this type from all fields of `src`, an instance of a parent type, and the given ones.

        Raises:
            TypeError: `src` is not an instance of a parent type of this one.
        """
        return extend(cls, src, fields_of_new)

    @classmethod
    def from_joined(cls: type[S], *samples: Sample | None) -> S:
        """Merge the samples of a join into one of this type. This is the default joiner.

        The base fields are those of the first sample (the primary), except `__sources__`, which lists those of all
        samples in order. If several samples have another field of the same name, the last one wins. None is a missing
        sample.

        Raises:
            TypeError: The primary sample is missing, or the merged fields do not fit this type.
        """
        if not samples or samples[0] is None:
            raise TypeError("from_joined: the primary sample (the first argument) must not be missing")
        merged = {name: getattr(samples[0], name) for name in BASE_FIELDS}
        present = [sample for sample in samples if sample is not None]
        for sample in present:
            merged.update({f.name: getattr(sample, f.name) for f in fields(sample) if f.name not in BASE_FIELDS})
        sources: Any = ()
        for each in filter(None, (sample.__sources__ for sample in present)):
            sources = sources + each if sources else each  # lazy sources stay lazy when added
        merged["__sources__"] = sources
        return cls(**merged)


def extend(cls: type[T], src: Any, fields_of_new: dict[str, Any]) -> T:
    """Make a `cls` from all fields of `src`, an instance of a parent type, updated by `fields_of_new`."""
    parent: type = type(src)
    if not is_dataclass(parent) or parent not in cls.__mro__:
        raise TypeError(
            f"{cls.__name__}.extend: expected an instance of a parent type of {cls.__name__}, got a {parent.__name__}"
        )
    values = {field.name: getattr(src, field.name) for field in fields(parent) if field.init}
    return cls(**{**values, **fields_of_new})


register_type(Sample)
