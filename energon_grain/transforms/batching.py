# SPDX-License-Identifier: Apache-2.0
"""Putting samples together into batches.

Arrays (numpy scalars among them), and nothing else, are stacked, the smaller ones padded with zeros at their ends;
dictionaries, dataclasses and named tuples are entered; everything else, numbers and strings too, becomes a list. What
happens to a field follows from its value in the first sample, so a batch costs a few operations a field and one list
element a sample.
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

_LISTED = METADATA_FIELDS  # one entry a sample
_PLAIN = frozenset({str, bytes, int, float, bool, list, type(None)})  # types that need no further look
WORTH_A_LOOK = 16 << 10
"""Bytes of an array from which on it pays to look whether a stack of them is there already."""


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
    or by `actions[field]` where given. Raises TypeError and ValueError.
    """
    result_type = result_type or type(samples[0])
    from_samples = getattr(result_type, "from_samples", None)
    if from_samples is not None and is_dataclass(result_type):
        return from_samples(samples)
    columns = batch_columns(samples, "")
    if columns is None:
        kind = type(samples[0]).__name__
        hint = "; does the hook that encodes them return its sample?" if samples[0] is None else ""
        raise TypeError(f"samples to batch must be dictionaries, dataclasses or named tuples, not {kind}{hint}")
    for name, column in columns.items():
        if actions is not None and name in actions:
            action = actions[name]
            columns[name] = cast("Any", action)(column, where=name) if action in _NAMING else action(column)
        elif name not in _LISTED and type(column[0]) not in _PLAIN:
            columns[name] = generic_batch(column, where=name)
    return result_type(columns) if issubclass(result_type, dict) else _construct(result_type, columns)


def stack_or_list(batch: list[Any], *, where: str = "") -> Any:
    """Arrays, numpy scalars among them, padded and stacked; of anything else the list itself. Raises ValueError."""
    joined = _joined(batch, where, batch_pad_stack)
    return batch if joined is None else joined


def batch_list(batch: list[T]) -> list[T]:
    """The list itself: one entry a sample."""
    return batch


def batch_stack(batch: Sequence[T], *, where: str = "") -> T:
    """Stack arrays of one shape on a new first dimension. The result has the first one's type.

    Raises:
        ValueError: The shapes differ, or a value is no array.
    """
    kind = _kind(batch, where)
    if len(_distinct_shapes(batch, where)) > 1:
        raise ValueError(f"{_at(where)}arrays of one shape can be stacked, these are {_shapes(batch)}")
    return kind.stack(batch)


def batch_pad_stack(batch: Sequence[T], *, where: str = "") -> T:
    """Stack arrays on a new first dimension, each padded with zeros at its ends to the largest size.

    `[1, 2]` and `[3]` become `[[1, 2], [3, 0]]`. The result has the first one's type.

    Raises:
        ValueError: The numbers of dimensions differ, or a value is no array.
    """
    kind = _kind(batch, where)
    shapes = _distinct_shapes(batch, where)
    return kind.stack(batch) if len(shapes) == 1 else kind.pad_stack(batch, (len(batch), *_largest(shapes)))


def concat_pad(batch: Sequence[T], *, where: str = "") -> T:
    """Concatenate arrays along their first dimension, padded with zeros in all others.

    The result has the first one's type.

    Raises:
        ValueError: The numbers of dimensions differ or are zero, or a value is no array.
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
"""Those that name the field in their errors."""


def batch_columns(samples: list[Any], where: str) -> dict[str, list[Any]] | None:
    """The values of each field of the first sample over all samples; None where it has no fields.

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
        kind = ConfigError if uncooked else ValueError  # the former ends the run with the first batch
        raise kind(f"{_at(where)}samples of one batch must have the same fields: {uncooked or repr(error)}") from error
    if getattr(first, "__valid__", None) is not None:
        columns["__valid__"] = [sample.__valid__ for sample in samples]
    return columns


def _uncooked(samples: list[Any]) -> str:
    """Which dataset is crude beside typed samples; "" where that is not what differs."""
    crude = [sample for sample in samples if isinstance(sample, CrudeSample)]
    typed = [type(sample).__name__ for sample in samples if not isinstance(sample, CrudeSample)]
    if not (crude and typed):
        return ""
    sources = get_source_info(crude[0])
    where = f"those of {sources[0].dataset_path}" if sources else "some"
    return f"{where} are crude, others {typed[0]}; give the task encoder (--task-encoder) a cooker for the crude ones"


@lru_cache(maxsize=1024)
def _field_getters(cls: type) -> tuple[tuple[str, attrgetter[Any]], ...] | None:
    """Name and getter of each field of a dataclass or named tuple; None for other types."""
    if is_dataclass(cls):
        # `__valid__` is the mask of a batch; samples have none, and what has none is not batched.
        names = [field.name for field in fields(cls) if field.init and field.name != "__valid__"]
        return tuple((name, attrgetter(name)) for name in names)
    named: tuple[str, ...] | None = getattr(cls, "_fields", None) if issubclass(cls, tuple) else None
    return None if named is None else tuple((name, attrgetter(name)) for name in named)


def _by_type(batch: list[Any], where: str, arrays: Callable[..., Any], *, delegate: bool) -> Any:
    first = batch[0]
    if type(first) in _PLAIN:
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
        if name not in _LISTED and type(column[0]) not in _PLAIN:
            columns[name] = _by_type(column, f"{where}.{name}" if where else name, arrays, delegate=delegate)
    if isinstance(first, dict):
        return CrudeSample(columns) if isinstance(first, CrudeSample) else columns
    return _construct(type(first), columns)


def _joined(batch: list[Any], where: str, arrays: Callable[..., Any]) -> Any:
    """What `arrays` makes of the arrays of a field; None where they are none."""
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
    register_value(batch)  # a plain dataclass of the user becomes a pytree with its first batch
    return batch


def _kind(batch: Sequence[Any], where: str) -> ArrayKind:
    """The kind of the first array, checked to be that of all where arrays are not numpy's."""
    kind = kind_of(type(batch[0]))
    if kind is None:
        raise _no_array(batch[0], where)
    if kind is not NUMPY:  # numpy takes whatever can be made an array
        for row, value in enumerate(batch):
            if kind_of(type(value)) is not kind:
                raise _mixed(batch, row, where)
    return kind


def _no_array(value: Any, where: str) -> ValueError:
    kind = type(value).__name__
    if is_tensor(type(value)):
        return ValueError(
            f"{_at(where)}a {kind} of torch is batched where energon_grain_torch is imported; take TaskEncoder and "
            f"get_train_dataset from there, or return a numpy array ({kind.lower()}.numpy()) from the hook"
        )
    if isinstance(value, dict) or is_dataclass(value):
        return ValueError(
            f"{_at(where)}these are whole samples ({kind}), and arrays can be stacked and concatenated: take one field "
            f"of them, as batch_stack([sample.image for sample in samples]), or generic_batch(samples), which pads"
        )
    return ValueError(f"{_at(where)}arrays can be stacked and concatenated, sample 0 has {kind}")


def _mixed(batch: Sequence[Any], row: int, where: str) -> ValueError:
    kinds = [type(batch[place]).__name__ for place in (0, row)]
    return ValueError(f"{_at(where)}sample 0 has an array ({kinds[0]}), sample {row} has {kinds[1]}")


def _distinct_shapes(batch: Sequence[Any], where: str) -> set[tuple[int, ...]]:
    """The shapes that occur, checked to have one number of dimensions."""
    try:
        shapes = {array.shape for array in batch}
    except AttributeError:
        row = next(row for row, value in enumerate(batch) if not hasattr(value, "shape"))
        raise _mixed(batch, row, where) from None
    if len(shapes) > 1 and len(set(map(len, shapes))) > 1:
        raise ValueError(f"{_at(where)}arrays of one number of dimensions can be padded, these are {_shapes(batch)}")
    return shapes


def _largest(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The largest size in each dimension."""
    return tuple(max(sizes) for sizes in zip(*shapes, strict=True))


def _at(where: str) -> str:
    return f"{where}: " if where else ""


def _shapes(batch: Sequence[Any]) -> str:
    distinct = list(dict.fromkeys(str(array.shape) for array in batch))
    return ", ".join(distinct[:5]) + (", …" if len(distinct) > 5 else "")
