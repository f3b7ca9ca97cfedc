"""Putting samples together into batches.

Arrays (numpy scalars among them), and nothing else, are stacked, the smaller ones padded with zeros at their ends;
dictionaries, dataclasses and named tuples are entered; everything else, numbers and strings too, becomes a list. What
happens to a field follows from its value in the first sample, so a batch costs a few operations a field and one list
element a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from energon_grain.samples.crude import CrudeSample
from energon_grain.samples.pytree import register_value

T = TypeVar("T")
Array = npt.NDArray[Any]

_LISTED = frozenset({"__key__", "__restore_key__", "__subflavors__", "__sources__"})  # metadata: one entry a sample
_PLAIN = frozenset({str, bytes, int, float, bool, list, type(None)})  # types that need no further look


def generic_batch(batch: list[Any], *, where: str = "") -> Any:
    """Batch a non-empty list by the type of its first element.

    Arrays are padded and stacked; the fields of dictionaries, dataclasses and named tuples are batched each and put
    into the same type again, metadata (`__key__`, `__subflavors__`, …) as lists; a dataclass with a method
    `from_samples` makes its batch itself; everything else stays the list.

    Args:
        batch: What to batch, at least one element, all alike.
        where: Path of these values inside the samples, for messages.

    Raises:
        ValueError: Arrays of one field differ in their number of dimensions, or only some samples have the field.
    """
    return _by_type(batch, where, batch_pad_stack, delegate=True)


def generic_concat(batch: list[Any], *, where: str = "") -> Any:
    """Join a non-empty list of batches: arrays are concatenated along their first dimension, padded in the others.

    Goes into dictionaries, dataclasses and named tuples as `generic_batch` does; everything else stays a list with one
    entry a batch.

    Raises:
        ValueError: Arrays of one field differ in their number of dimensions, or only some batches have the field.
    """
    return _by_type(batch, where, concat_pad, delegate=False)


def homogeneous_concat_mix(samples: list[Any]) -> Any:
    """Join batches of one type by `generic_concat`.

    Raises:
        TypeError: The batches have different types.
    """
    if len({type(sample) for sample in samples}) > 1:
        kinds = ", ".join(sorted({type(sample).__name__ for sample in samples}))
        raise TypeError(f"homogeneous_concat_mix joins batches of one type, these are {kinds}")
    return generic_concat(samples)


def batch_samples(
    samples: list[Any],
    result_type: type | None = None,
    actions: Mapping[str, Callable[[list[Any]], Any]] | None = None,
) -> Any:
    """Batch samples field by field into `result_type` (a dataclass, named tuple or dict; default: that of the samples).

    A `result_type` with a method `from_samples` makes its batch itself. Else each field is batched by `generic_batch`,
    or by `actions[field]` where given.

    Raises:
        TypeError: The samples have no fields, or `result_type` has others.
        ValueError: Arrays of one field differ in their number of dimensions, or only some samples have the field.
    """
    result_type = result_type or type(samples[0])
    from_samples = getattr(result_type, "from_samples", None)
    if from_samples is not None and is_dataclass(result_type):
        return from_samples(samples)
    columns = batch_columns(samples, "")
    if columns is None:
        kind = type(samples[0]).__name__
        raise TypeError(f"samples to batch must be dictionaries, dataclasses or named tuples, not {kind}")
    for name, column in columns.items():
        if actions is not None and name in actions:
            columns[name] = actions[name](column)
        elif name not in _LISTED and type(column[0]) not in _PLAIN:
            columns[name] = generic_batch(column, where=name)
    return result_type(columns) if issubclass(result_type, dict) else _construct(result_type, columns)


def batch_list(batch: list[T]) -> list[T]:
    """The list itself: one entry a sample."""
    return batch


def batch_stack(batch: Sequence[Array], *, where: str = "") -> Array:
    """Stack arrays of one shape on a new first dimension. The result has the first one's type.

    Raises:
        ValueError: The shapes differ.
    """
    if len(_distinct_shapes(batch, where)) > 1:
        raise ValueError(f"{_at(where)}arrays of one shape can be stacked, these are {_shapes(batch)}")
    return _stack(batch)


def batch_pad_stack(batch: Sequence[Array], *, where: str = "") -> Array:
    """Stack arrays on a new first dimension, each padded with zeros at its ends to the largest size.

    `[1, 2]` and `[3]` become `[[1, 2], [3, 0]]`. The result has the first one's type.

    Raises:
        ValueError: The numbers of dimensions differ.
    """
    shapes = _distinct_shapes(batch, where)
    if len(shapes) == 1:
        return _stack(batch)
    stacked = np.zeros((len(batch), *_largest(shapes)), batch[0].dtype)
    for row, array in zip(stacked, batch, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return stacked


def _stack(batch: Sequence[Array]) -> Array:
    """Stack arrays of one shape: one concatenation and a reshape cost a third of `np.stack` where arrays are small."""
    first = batch[0]
    if not first.ndim:
        return np.array(batch).astype(first.dtype, copy=False)
    base = first.base
    if base is not None and first.nbytes >= _WORTH_A_LOOK and _are_rows(batch, base):
        return base
    return np.concatenate(batch, axis=0, dtype=first.dtype, casting="unsafe").reshape(len(batch), *first.shape)


_WORTH_A_LOOK = 16 << 10


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


def concat_pad(batch: Sequence[Array], *, where: str = "") -> Array:
    """Concatenate arrays along their first dimension, padded with zeros in all others.

    The result has the first one's type.

    Raises:
        ValueError: The numbers of dimensions differ or are zero.
    """
    first = batch[0]
    inner = {shape[1:] for shape in _distinct_shapes(batch, where)}
    if not first.ndim:
        raise ValueError(f"{_at(where)}arrays without dimensions cannot be concatenated")
    if len(inner) == 1:
        return np.concatenate(batch, axis=0, dtype=first.dtype, casting="unsafe")
    joined = np.zeros((sum(map(len, batch)), *_largest(inner)), first.dtype)
    start = 0
    for array in batch:
        joined[(slice(start, start + len(array)), *map(slice, array.shape[1:]))] = array
        start += len(array)
    return joined


def batch_columns(samples: list[Any], where: str) -> dict[str, list[Any]] | None:
    """The values of each field of the first sample over all samples; None where it has no fields.

    Raises:
        ValueError: A sample lacks a field that the first has.
    """
    first = samples[0]
    if isinstance(first, dict):
        keys: list[str] = list(first)
        getters: tuple[tuple[str, Callable[[Any], Any]], ...] | None = tuple((key, itemgetter(key)) for key in keys)
    else:
        getters = _field_getters(type(first))
    if getters is None:
        return None
    try:
        columns = {name: list(map(getter, samples)) for name, getter in getters}
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{_at(where)}samples of one batch must have the same fields: {error!r}") from error
    if getattr(first, "__valid__", None) is not None:
        columns["__valid__"] = [sample.__valid__ for sample in samples]
    return columns


@lru_cache(maxsize=1024)
def _field_getters(cls: type) -> tuple[tuple[str, attrgetter[Any]], ...] | None:
    """Name and getter of each field of a dataclass or named tuple; None for other types."""
    if is_dataclass(cls):
        # `__valid__` is the mask of a batch; samples have none, and what has none is not batched.
        names = [field.name for field in fields(cls) if field.init and field.name != "__valid__"]
        return tuple((name, attrgetter(name)) for name in names)
    named: tuple[str, ...] | None = getattr(cls, "_fields", None) if issubclass(cls, tuple) else None
    return None if named is None else tuple((name, attrgetter(name)) for name in named)


def _by_type(batch: list[Any], where: str, arrays: Callable[..., Array], *, delegate: bool) -> Any:
    first = batch[0]
    if type(first) in _PLAIN:
        return batch
    if isinstance(first, np.ndarray):
        return arrays(batch, where=where)
    if isinstance(first, np.generic) and arrays is batch_pad_stack:
        return np.asarray(batch)  # numpy scalars are arrays without dimensions
    if delegate and is_dataclass(first) and hasattr(first, "from_samples"):
        return first.from_samples(batch)  # pyright: ignore[reportAttributeAccessIssue]
    columns = batch_columns(batch, where)
    if columns is None:
        return batch
    for name, column in columns.items():
        if name not in _LISTED and type(column[0]) not in _PLAIN:
            columns[name] = _by_type(column, f"{where}.{name}" if where else name, arrays, delegate=delegate)
    if isinstance(first, dict):
        return CrudeSample(columns) if isinstance(first, CrudeSample) else columns
    return _construct(type(first), columns)


def _construct(cls: type, columns: dict[str, Any]) -> Any:
    batch = cls(**columns)
    register_value(batch)  # a plain dataclass of the user becomes a pytree with its first batch
    return batch


def _distinct_shapes(batch: Sequence[Array], where: str) -> set[tuple[int, ...]]:
    """The shapes that occur, checked to have one number of dimensions."""
    try:
        shapes = {array.shape for array in batch}
    except AttributeError:
        row, other = next((row, value) for row, value in enumerate(batch) if not hasattr(value, "shape"))
        raise ValueError(f"{_at(where)}sample 0 has an array, sample {row} has {type(other).__name__}") from None
    if len(shapes) > 1 and len(set(map(len, shapes))) > 1:
        raise ValueError(f"{_at(where)}arrays of one number of dimensions can be padded, these are {_shapes(batch)}")
    return shapes


def _largest(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The largest size in each dimension."""
    return tuple(max(sizes) for sizes in zip(*shapes, strict=True))


def _at(where: str) -> str:
    return f"{where}: " if where else ""


def _shapes(batch: Sequence[Array]) -> str:
    distinct = list(dict.fromkeys(str(array.shape) for array in batch))
    return ", ".join(distinct[:5]) + (", …" if len(distinct) > 5 else "")
