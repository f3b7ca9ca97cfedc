"""The base of every sample type, and the decorator of sample and batch types."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, cast, dataclass_transform

import numpy as np
import numpy.typing as npt

from energon_grain.samples.fields import Fields
from energon_grain.samples.registration import register_type
from energon_grain.samples.source_info import SourceInfo

S = TypeVar("S", bound="Sample")
T = TypeVar("T")

BASE_FIELDS = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
"""Names of the metadata fields that every sample and every batch has."""


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """Make `cls` a dataclass with keyword-only fields and slots.

    The same as `@dataclass(kw_only=True, slots=True)`. Use `dataclass` itself where other options are needed; a plain
    `@dataclass` works on subclasses of our types too, at the cost of a `__dict__` per instance.
    """
    return dataclass(kw_only=True, slots=True)(cls)


@dataclass(kw_only=True, slots=True, weakref_slot=True)
class Sample(Fields):
    """One training example. Subclass it with `@edataclass` or a plain `@dataclass` and add fields.

    Fields are keyword-only, instances are mutable. With JAX imported, every subclass is a pytree: its leaves are the
    arrays in its fields, all else is static (`energon_grain.loader.pytree`).
    """

    __key__: str
    """Identifies the sample within its dataset."""
    __restore_key__: tuple[Any, ...]
    """Says which draw made the sample; a nested tuple of strings and integers."""
    __subflavors__: dict[str, Any] | None = None
    """Tags of the dataset that the sample came from."""
    __sources__: tuple[SourceInfo, ...] | None = None
    """Files that the sample was made from."""
    __valid__: npt.NDArray[np.bool_] | None = None
    """Where the type serves as a batch: (batch,) which rows are samples; the others are padding. None: all."""

    @property
    def __subflavor__(self) -> Any:
        """What a metadataset says as `subflavor:`, the older form of `subflavors: {__subflavor__: …}`; else None.

        Where the type serves as a batch: a list of them.
        """
        tags: Any = self.__subflavors__
        if isinstance(tags, list):
            return [(each or {}).get("__subflavor__") for each in cast("list[Any]", tags)]
        return (tags or {}).get("__subflavor__")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # No zero-argument super(): `slots=True` makes the class anew, and the cell would hold the old one.
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
        """Merge the samples of a join into one of this type; the default joiner.

        The base fields are those of the first (the primary), except `__sources__`, which lists those of all in order.
        Of other fields with equal names the last sample that has it wins. None stands for a sample that is missing.

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
        for sample in present:
            # Sums of sources that were not looked up yet stay so.
            sources = (
                (sources + sample.__sources__ if sources else sample.__sources__) if sample.__sources__ else sources
            )
        merged["__sources__"] = sources
        return cls(**merged)


def extend(cls: type[T], src: Any, fields_of_new: dict[str, Any]) -> T:
    """Make a `cls` from all fields of `src`, an instance of a parent type, updated by `fields_of_new`."""
    parent: type = type(src)
    if not is_dataclass(parent) or parent not in cls.__mro__:
        raise TypeError(
            f"{cls.__name__}.extend: takes an instance of a parent type of {cls.__name__}, not a {parent.__name__}"
        )
    values = {field.name: getattr(src, field.name) for field in fields(parent) if field.init}
    return cls(**{**values, **fields_of_new})


register_type(Sample)
