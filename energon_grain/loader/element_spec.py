"""Shapes and types of elements, for `grain.experimental.get_element_spec`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_grain.errors import EmptyDatasetError

if TYPE_CHECKING:
    from grain.experimental import ShapeDtypeStruct


def spec_of_batches(batches: Iterable[Any]) -> Any:
    """What batches are made of: a batch with a `ShapeDtypeStruct` for each array, None in shapes where two differ.

    What hooks make is known by making it, so this takes two batches, of which None (all was dropped) are none. What is
    no array has no shape and dtype `object`.

    Raises:
        EmptyDatasetError: There is no batch.
    """
    import jax
    from grain.experimental import ShapeDtypeStruct

    def spec(value: Any) -> ShapeDtypeStruct:
        if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
            return ShapeDtypeStruct(np.shape(value), np.asarray(value).dtype)
        return ShapeDtypeStruct((), np.dtype(object))

    def common(one: ShapeDtypeStruct, other: ShapeDtypeStruct) -> ShapeDtypeStruct:
        if len(one.shape) != len(other.shape):
            return one
        shape = tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True))
        return ShapeDtypeStruct(shape, one.dtype)

    made = (batch for batch in batches if batch is not None)
    specs: list[Any] = [jax.tree.map(spec, batch) for batch in islice(made, 2)]
    if not specs:
        raise EmptyDatasetError("what its elements are is not known: the dataset has none, or all of them are dropped")
    if len(specs) < 2 or jax.tree.structure(specs[0]) != jax.tree.structure(specs[1]):
        return specs[0]
    return jax.tree.map(common, *specs)
