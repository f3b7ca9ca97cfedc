# SPDX-License-Identifier: Apache-2.0
"""The base of typed batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from energon_grain.samples.registration import register_type
from energon_grain.samples.sample import BASE_FIELDS, Fields, SourceInfo, extend
from energon_grain.transforms.batching import stack_or_list

B = TypeVar("B", bound="Batch")


@dataclass(kw_only=True, slots=True, weakref_slot=True)
class Batch(Fields):
    """Base of typed batches. Subclass it with `@edataclass` or a plain `@dataclass` and add fields.

    With JAX imported, every subclass is a pytree: its leaves are the arrays in its fields, everything else is static
    (`energon_grain.loader.pytree`).
    """

    __key__: list[str]
    """Keys of the samples, in order."""
    __restore_key__: tuple[Any, ...]
    """Restore keys of the samples, in order."""
    __subflavors__: list[dict[str, Any] | None] | None = None
    """Tags of each sample, in order; None if no sample has any."""
    __sources__: tuple[SourceInfo, ...] | None = None
    """Source files of all samples, sample by sample."""
    __valid__: npt.NDArray[np.bool_] | None = None
    """(batch,) whether a row is a sample or padding of a last batch. None: all rows are samples."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super(Batch, cls).__init_subclass__(**kwargs)
        register_type(cls)

    @classmethod
    def derive_from(cls: type[B], base_batch: Any, **fields_of_new: Any) -> B:
        """Make a batch of this type with the four base fields of `base_batch` and the given other fields.

        Base fields can be overridden by keyword.
        """
        for name in BASE_FIELDS:
            if name not in fields_of_new:
                fields_of_new[name] = getattr(base_batch, name)
        return cls(**fields_of_new)

    @classmethod
    def extend(cls: type[B], src: Any, **fields_of_new: Any) -> B:
        """Make a batch of this type from all fields of `src`, an instance of a parent type, and the given fields.

        Raises:
            TypeError: `src` is not an instance of a parent type of this one.
        """
        return extend(cls, src, fields_of_new)

    @classmethod
    def from_samples(cls: type[B], samples: Sequence[Any], **fields_of_new: Any) -> B:
        """Make a batch from samples with this type's fields: arrays are padded and stacked, other values become lists.

        Numpy scalars count as arrays without dimensions; dictionaries of arrays become lists. Base fields keep one
        entry per sample (also `__subflavors__`), except `__sources__`, which is flattened. Fields that the samples lack
        keep their default.

        Args:
            samples: Samples of one type, at least one.
            **fields_of_new: Fields of the batch that are not made from the samples.

        Raises:
            TypeError: The samples lack a field without a default.
            ValueError: There are no samples, or arrays of one field cannot be stacked.
        """
        if not samples:
            raise ValueError(f"{cls.__name__}.from_samples: got no samples, expected at least one")
        made = dict(fields_of_new)
        for field in fields(cls):
            name = field.name
            if name in made or not field.init or name == "__valid__":
                continue
            if not hasattr(samples[0], name):
                _require_default(cls, field, samples[0])
                continue
            column = [getattr(sample, name) for sample in samples]
            value = _BASE[name](column) if name in _BASE else stack_or_list(column, where=name)
            if value is not None:
                made[name] = value
        return cls(**made)


def _require_default(cls: type, field: Field[Any], sample: Any) -> None:
    if field.default is MISSING and field.default_factory is MISSING:
        raise TypeError(
            f"{cls.__name__}.from_samples: {type(sample).__name__} has no field {field.name!r}; "
            f"pass {field.name}=… or give the field a default"
        )


def _unless_none(column: list[Any]) -> list[Any] | None:
    return column if any(entry is not None for entry in column) else None


def _flat(column: list[Any]) -> tuple[Any, ...] | None:
    return tuple(chain.from_iterable(filter(None, column))) if _unless_none(column) else None


_BASE: dict[str, Callable[[list[Any]], Any]] = {
    "__key__": list,
    "__restore_key__": tuple,
    "__subflavors__": _unless_none,
    "__sources__": _flat,
}
"""Makes a field of a batch from the column of a base field; None keeps the field's default."""


register_type(Batch)
