"""The kinds of arrays that batching knows: numpy's, and those that adapters register."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayKind:
    """How arrays of one type are put together. All results have the type of the first array.

    The arrays have `shape`, `ndim` and `nbytes`, and are assigned to by tuples of slices.

    Attributes:
        stack: Arrays of one shape, on a new first dimension.
        pad_stack: The same for arrays of several shapes, with zeros at their ends; also takes the shape of the result.
        concatenate: Arrays of at least one dimension that agree in all but the first, along the first.
        concat_pad: The same for arrays of several shapes, with zeros at their ends; also takes the shape of the result.
        reduce: What `object.__reduce__` returns, with the data as `pickle.PickleBuffer`; how arrays travel between
            processes. None: the type pickles well by itself.
    """

    stack: Callable[[Sequence[Any]], Any]
    pad_stack: Callable[[Sequence[Any], Shape], Any]
    concatenate: Callable[[Sequence[Any]], Any]
    concat_pad: Callable[[Sequence[Any], Shape], Any]
    reduce: Callable[[Any], tuple[Any, ...]] | None = None


def register_array_kind(cls: type, kind: ArrayKind) -> None:
    """Make instances of `cls` and its subclasses arrays wherever samples are batched or sent between processes."""
    _kinds[cls] = kind
    kind_of.cache_clear()


@lru_cache(maxsize=1024)
def kind_of(cls: type) -> ArrayKind | None:
    """The kind of a type, None where it is no array."""
    return next((_kinds[base] for base in cls.__mro__ if base in _kinds), None)


def reducers() -> dict[type, Callable[[Any], Any]] | None:
    """A pickler's `dispatch_table`; None: the usual one, as no kind needs another."""
    own = {cls: kind.reduce for cls, kind in _kinds.items() if kind.reduce is not None}
    return {**copyreg.dispatch_table, **own} if own else None


@lru_cache(maxsize=1024)
def is_tensor(cls: type) -> bool:
    """Whether a type is torch's tensor, or derived from it."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in cls.__mro__)


def fill_rows(out: Any, batch: Sequence[Any]) -> Any:
    """`out`, after its row i was set to array i from its beginning on."""
    for row, array in enumerate(batch):
        out[(row, *map(slice, array.shape))] = array
    return out


def fill_stretches(out: Any, batch: Sequence[Any]) -> Any:
    """`out`, after its rows were set to those of the arrays, one array after the other."""
    start = 0
    for array in batch:
        stop = start + array.shape[0]
        out[(slice(start, stop), *map(slice, array.shape[1:]))] = array
        start = stop
    return out


def _stack(batch: Sequence[Array]) -> Array:
    """One concatenation and a reshape cost a third of `np.stack` where arrays are small."""
    first = batch[0]
    if not first.ndim:
        return np.array(batch).astype(first.dtype, copy=False)
    base = first.base
    if base is not None and first.nbytes >= WORTH_A_LOOK and _are_rows(batch, base):
        return base
    return _concatenate(batch).reshape(len(batch), *first.shape)


WORTH_A_LOOK = 16 << 10
"""Bytes of an array from which on it pays to look whether a stack of them is there already."""


def _are_rows(batch: Sequence[Array], base: Any) -> bool:
    """Whether `batch` is all rows of the array `base` in their order (as the image decoder makes them)."""
    first = batch[0]
    if type(base) is not np.ndarray or base.shape != (len(batch), *first.shape) or base.dtype != first.dtype:
        return False
    if not base.flags.c_contiguous or not base.flags.writeable:
        return False
    start: int = base.__array_interface__["data"][0]
    return all(
        row.base is base
        and row.strides == first.strides
        and row.__array_interface__["data"][0] == start + at * first.nbytes
        for at, row in enumerate(batch)
    )


def _concatenate(batch: Sequence[Array]) -> Array:
    return np.concatenate(batch, axis=0, dtype=batch[0].dtype, casting="unsafe")


NUMPY = ArrayKind(
    stack=_stack,
    pad_stack=lambda batch, shape: fill_rows(np.zeros(shape, batch[0].dtype), batch),
    concatenate=_concatenate,
    concat_pad=lambda batch, shape: fill_stretches(np.zeros(shape, batch[0].dtype), batch),
)
_kinds: dict[type, ArrayKind] = {np.ndarray: NUMPY}
