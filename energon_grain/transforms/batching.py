# SPDX-License-Identifier: Apache-2.0
"""Combines samples into batches.

Only arrays (including numpy scalars) are stacked, with smaller ones padded with zeros at their ends. Dictionaries,
dataclasses and named tuples are batched by field. Everything else, including numbers and strings, becomes a list. The
first sample decides how a field is handled, so a batch costs a few operations per field and one list element per
sample.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.samples.registration import register_value
from energon_grain.samples.sample import METADATA_FIELDS, get_source_info
from energon_grain.samples.types import CrudeSample

T = TypeVar("T")
Array = npt.NDArray[Any]
Shape = tuple[int, ...]

_LISTED = METADATA_FIELDS  # one entry per sample
PLAIN_TYPES = frozenset({str, bytes, int, float, bool, list, type(None)})  # types without arrays to look for
WORTH_A_LOOK = 16 << 10
"""Minimum bytes of an array for which it pays to check whether a stack of them already exists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayKind:
    """Operations on arrays of one type. All results have the type of the first array.

    The arrays have `shape`, `ndim` and `nbytes`, and support assignment to tuples of slices.

    Attributes:
        stack: Stacks arrays of one shape on a new first dimension.
        pad_stack: The same for arrays of several shapes, with zeros at their ends; also takes the shape of the result.
        concatenate: Concatenates arrays of at least one dimension that agree in all but the first, along the first.
        concat_pad: The same for arrays of several shapes, with zeros at their ends; also takes the shape of the result.
        reduce: Like `object.__reduce__`, with the data as `pickle.PickleBuffer`, to send arrays between processes.
            None: the type's own pickling is efficient.
        like: Makes an array of a numpy array, on the device of another array. None: numpy arrays are used as they are.
    """

    stack: Callable[[Sequence[Any]], Any]
    pad_stack: Callable[[Sequence[Any], Shape], Any]
    concatenate: Callable[[Sequence[Any]], Any]
    concat_pad: Callable[[Sequence[Any], Shape], Any]
    reduce: Callable[[Any], tuple[Any, ...]] | None = None
    like: Callable[[npt.NDArray[Any], Any], Any] | None = None


def register_array_kind(cls: type, kind: ArrayKind) -> None:
    """Treat instances of `cls` and its subclasses as arrays in batches and between processes."""
    _kinds[cls] = kind
    kind_of.cache_clear()


@lru_cache(maxsize=1024)
def kind_of(cls: type) -> ArrayKind | None:
    """Return the kind of an array type; None for other types."""
    return next((_kinds[base] for base in cls.__mro__ if base in _kinds), None)


def reducers() -> dict[type, Callable[[Any], Any]] | None:
    """Return a pickler's `dispatch_table`; None if the default table suffices."""
    own = {cls: kind.reduce for cls, kind in _kinds.items() if kind.reduce is not None}
    return {**copyreg.dispatch_table, **own} if own else None


@lru_cache(maxsize=1024)
def is_tensor(cls: type) -> bool:
    """Return whether a type is torch's tensor, or a subclass."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in cls.__mro__)


def fill_rows(out: Any, batch: Sequence[Any]) -> Any:
    """Set row i of `out` to array i, from its beginning, and return `out`."""
    for row, array in enumerate(batch):
        out[(row, *map(slice, array.shape))] = array
    return out


def fill_stretches(out: Any, batch: Sequence[Any]) -> Any:
    """Set the rows of `out` to the rows of the arrays, one array after the other, and return `out`."""
    start = 0
    for array in batch:
        stop = start + array.shape[0]
        out[(slice(start, stop), *map(slice, array.shape[1:]))] = array
        start = stop
    return out


def _stack(batch: Sequence[Array]) -> Array:
    """Stack arrays. One concatenation and a reshape cost a third of `np.stack` for small arrays."""
    first = batch[0]
    if not first.ndim:
        return np.array(batch).astype(first.dtype, copy=False)
    base = first.base
    if base is not None and first.nbytes >= WORTH_A_LOOK and _are_rows(batch, base):
        return base
    return _concatenate(batch).reshape(len(batch), *first.shape)


def _are_rows(batch: Sequence[Array], base: Any) -> bool:
    """Return whether `batch` consists of all rows of the array `base` in order (as the image decoder returns them)."""
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


def generic_batch(batch: list[Any], *, where: str = "") -> Any:
    """Batch a non-empty list by the type of its first element.

    Arrays are padded and stacked. The fields of dictionaries, dataclasses and named tuples are batched separately and
    put into the same type; metadata (`__key__`, `__subflavors__`, …) become lists. A dataclass with a method
    `from_samples` makes its own batch. Everything else stays a list.

    Args:
        batch: Values of one type, at least one.
        where: Path of these values inside the samples, for messages.

    Raises:
        ValueError: Arrays of one field differ in their number of dimensions, or only some samples have the field.
    """
    return _by_type(batch, where, batch_pad_stack, delegate=True)


def generic_concat(batch: list[Any], *, where: str = "") -> Any:
    """Join a non-empty list of batches: arrays are concatenated along their first dimension, padded in the others.

    Dictionaries, dataclasses and named tuples are handled as in `generic_batch`; everything else becomes a list with
    one entry per batch.

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
        raise TypeError(f"homogeneous_concat_mix: expected batches of one type, got {kinds}")
    return generic_concat(samples)


def batch_samples(
    samples: list[Any],
    result_type: type | None = None,
    actions: Mapping[str, Callable[[list[Any]], Any]] | None = None,
) -> Any:
    """Batch samples by field into `result_type` (a dataclass, named tuple or dict; default: the type of the samples).

    A `result_type` with a method `from_samples` makes its own batch. Otherwise each field is batched by
    `actions[field]` if present, or by `generic_batch`. Raises TypeError and ValueError.
    """
    result_type = result_type or type(samples[0])
    from_samples = getattr(result_type, "from_samples", None)
    if from_samples is not None and is_dataclass(result_type):
        return from_samples(samples)
    columns = batch_columns(samples, "")
    if columns is None:
        kind = type(samples[0]).__name__
        hint = ". Check that the hook that encodes them returns its sample" if samples[0] is None else ""
        raise TypeError(f"cannot batch {kind}: expected dictionaries, dataclasses or named tuples{hint}")
    for name, column in columns.items():
        if actions is not None and name in actions:
            action = actions[name]
            columns[name] = cast("Any", action)(column, where=name) if action in _NAMING else action(column)
        elif name not in _LISTED and type(column[0]) not in PLAIN_TYPES:
            columns[name] = generic_batch(column, where=name)
    return result_type(columns) if issubclass(result_type, dict) else _construct(result_type, columns)


def stack_or_list(batch: list[Any], *, where: str = "") -> Any:
    """Pad and stack arrays and numpy scalars; return other values as the list. Raises ValueError."""
    joined = _joined(batch, where, batch_pad_stack)
    return batch if joined is None else joined


def batch_list(batch: list[T]) -> list[T]:
    """Return the list: one entry per sample."""
    return batch


def batch_stack(batch: Sequence[T], *, where: str = "") -> T:
    """Stack arrays of one shape on a new first dimension. The result has the type of the first array.

    Raises:
        ValueError: The shapes differ, or a value is not an array.
    """
    kind = _kind(batch, where)
    if len(_distinct_shapes(batch, where)) > 1:
        raise ValueError(f"{_at(where)}cannot stack arrays of different shapes {_shapes(batch)}: use batch_pad_stack")
    return kind.stack(batch)


def batch_pad_stack(batch: Sequence[T], *, where: str = "") -> T:
    """Stack arrays on a new first dimension, each padded with zeros at its ends to the largest size.

    `[1, 2]` and `[3]` become `[[1, 2], [3, 0]]`. The result has the type of the first array.

    Raises:
        ValueError: The numbers of dimensions differ, or a value is not an array.
    """
    kind = _kind(batch, where)
    shapes = _distinct_shapes(batch, where)
    return kind.stack(batch) if len(shapes) == 1 else kind.pad_stack(batch, (len(batch), *_largest(shapes)))


def concat_pad(batch: Sequence[T], *, where: str = "") -> T:
    """Concatenate arrays along their first dimension, padded with zeros in all others.

    The result has the type of the first array.

    Raises:
        ValueError: The numbers of dimensions differ or are zero, or a value is not an array.
    """
    kind = _kind(batch, where)
    shapes = _distinct_shapes(batch, where)
    if () in shapes:
        raise ValueError(f"{_at(where)}arrays without dimensions cannot be concatenated")
    inner = {shape[1:] for shape in shapes}
    if len(inner) == 1:
        return kind.concatenate(batch)
    total = sum(array.shape[0] for array in cast("Sequence[Any]", batch))
    return kind.concat_pad(batch, (total, *_largest(inner)))


_NAMING: tuple[Callable[..., Any], ...] = (generic_batch, generic_concat, batch_stack, batch_pad_stack, concat_pad)
"""Functions that take the field name for their errors."""


def batch_columns(samples: list[Any], where: str) -> dict[str, list[Any]] | None:
    """Return the values of each field of the first sample over all samples; None if it has no fields.

    Raises ConfigError and ValueError.
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
        uncooked = _uncooked(samples)
        kind = ConfigError if uncooked else ValueError  # a ConfigError ends the run with the first batch
        raise kind(f"{_at(where)}samples of one batch must have the same fields: {uncooked or repr(error)}") from error
    if getattr(first, "__valid__", None) is not None:
        columns["__valid__"] = [sample.__valid__ for sample in samples]
    return columns


def _uncooked(samples: list[Any]) -> str:
    """Name the crude dataset in a batch of crude and typed samples; "" for other differences."""
    crude = [sample for sample in samples if isinstance(sample, CrudeSample)]
    typed = [type(sample).__name__ for sample in samples if not isinstance(sample, CrudeSample)]
    if not (crude and typed):
        return ""
    sources = get_source_info(crude[0])
    where = f"samples of {sources[0].dataset_path}" if sources else "some samples"
    return f"{where} are crude, others {typed[0]}; give the task encoder (--task-encoder) a cooker for the crude ones"


@lru_cache(maxsize=1024)
def _field_getters(cls: type) -> tuple[tuple[str, attrgetter[Any]], ...] | None:
    """Return the name and getter of each field of a dataclass or named tuple; None for other types."""
    if is_dataclass(cls):
        # `__valid__` is the mask of a batch. Samples have no mask, so it is not batched.
        names = [field.name for field in fields(cls) if field.init and field.name != "__valid__"]
        return tuple((name, attrgetter(name)) for name in names)
    named: tuple[str, ...] | None = getattr(cls, "_fields", None) if issubclass(cls, tuple) else None
    return None if named is None else tuple((name, attrgetter(name)) for name in named)


def _by_type(batch: list[Any], where: str, arrays: Callable[..., Any], *, delegate: bool) -> Any:
    first = batch[0]
    if type(first) in PLAIN_TYPES:
        return batch
    joined = _joined(batch, where, arrays)
    if joined is not None:
        return joined
    if delegate and is_dataclass(first) and hasattr(first, "from_samples"):
        return first.from_samples(batch)  # pyright: ignore[reportAttributeAccessIssue]
    columns = batch_columns(batch, where)
    if columns is None:
        return batch
    for name, column in columns.items():
        if name not in _LISTED and type(column[0]) not in PLAIN_TYPES:
            columns[name] = _by_type(column, f"{where}.{name}" if where else name, arrays, delegate=delegate)
    if isinstance(first, dict):
        return CrudeSample(columns) if isinstance(first, CrudeSample) else columns
    return _construct(type(first), columns)


def _joined(batch: list[Any], where: str, arrays: Callable[..., Any]) -> Any:
    """Join the arrays of a field with `arrays`; None if the values are not arrays."""
    first = batch[0]
    if kind_of(type(first)) is not None:
        return arrays(batch, where=where)
    if isinstance(first, np.generic) and arrays is batch_pad_stack:
        return np.asarray(batch)  # numpy scalars are arrays without dimensions
    if is_tensor(type(first)):
        raise _no_array(first, where)
    return None


def _construct(cls: type, columns: dict[str, Any]) -> Any:
    batch = cls(**columns)
    register_value(batch)  # a plain dataclass of the user becomes a pytree on its first batch
    return batch


def _kind(batch: Sequence[Any], where: str) -> ArrayKind:
    """Return the kind of the first array. Except for numpy, all arrays must be of that kind."""
    kind = kind_of(type(batch[0]))
    if kind is None:
        raise _no_array(batch[0], where)
    if kind is not NUMPY:  # numpy accepts any array-like value
        for row, value in enumerate(batch):
            if kind_of(type(value)) is not kind:
                raise _mixed(batch, row, where)
    return kind


def _no_array(value: Any, where: str) -> ValueError:
    kind = type(value).__name__
    if is_tensor(type(value)):
        return ValueError(
            f"{_at(where)}torch's {kind} needs the PyTorch backend: import TaskEncoder and get_train_dataset from "
            f"energon_grain_torch, or return a numpy array ({kind.lower()}.numpy()) from the hook"
        )
    if isinstance(value, dict) or is_dataclass(value):
        return ValueError(
            f"{_at(where)}expected arrays to stack, got whole samples ({kind}): use one field, as in "
            f"batch_stack([sample.image for sample in samples]), or generic_batch(samples), which pads"
        )
    return ValueError(f"{_at(where)}expected arrays to stack, sample 0 has {kind}")


def _mixed(batch: Sequence[Any], row: int, where: str) -> ValueError:
    kinds = [type(batch[place]).__name__ for place in (0, row)]
    return ValueError(f"{_at(where)}sample 0 has an array ({kinds[0]}), sample {row} has {kinds[1]}")


def _distinct_shapes(batch: Sequence[Any], where: str) -> set[tuple[int, ...]]:
    """Return the distinct shapes, which must have the same number of dimensions."""
    try:
        shapes = {array.shape for array in batch}
    except AttributeError:
        row = next(row for row, value in enumerate(batch) if not hasattr(value, "shape"))
        raise _mixed(batch, row, where) from None
    if len(shapes) > 1 and len(set(map(len, shapes))) > 1:
        raise ValueError(f"{_at(where)}cannot pad arrays of different numbers of dimensions: {_shapes(batch)}")
    return shapes


def _largest(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the largest size in each dimension."""
    return tuple(max(sizes) for sizes in zip(*shapes, strict=True))


def _at(where: str) -> str:
    return f"{where}: " if where else ""


def _shapes(batch: Sequence[Any]) -> str:
    distinct = list(dict.fromkeys(str(array.shape) for array in batch))
    return ", ".join(distinct[:5]) + (", …" if len(distinct) > 5 else "")
