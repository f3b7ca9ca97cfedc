# SPDX-License-Identifier: Apache-2.0
"""Converts columns of Arrow tables into parts of samples.

| column | part, before the decoder | decoded |
|---|---|---|
| booleans, integers, floating-point numbers | an array without an axis | unchanged |
| lists of these, of fixed or variable length; Hugging Face's `Array2D` to `Array5D` | an array | unchanged |
| strings | UTF-8 | `str` |
| bytes | bytes | by the column's name, as parts of tars |
| Hugging Face's images, audio and videos (`{bytes, path}`) | the file | as `jpg`, `wav`, `mp4`, any format |
| lists of these | `name.0`, `name.1`, … | in the same way |
| anything else: structs, lists of strings, times, decimals | JSON | parsed JSON |

A part has the name of its column. A row with a null has no such part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Take = Callable[[list[int]], list[Any]]
"""Returns the values of some rows of a column, None for nulls."""
_MEDIA = {"Image": "jpg", "Audio": "wav", "Video": "mp4", "Json": "json", "Npy": "npy"}
"""The part ending that decodes a column, by its type name in Hugging Face's features or from `MdsFiles`. Decoding
depends on the content, so any format works."""


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """How a column is converted.

    Attributes:
        arrow: Its type, in the file that determines the conversion.
        feature: Its feature in Hugging Face's `datasets`, from the same file.
        take: Converts its Arrow array to a function that returns values of rows.
        ending: The ending by which its bytes are decoded; None: by its own name, or not at all.
        many: Whether a value is a list of files.
    """

    arrow: Any
    feature: Any
    take: Callable[[Any], Take]
    ending: str | None = None
    many: bool = False

    @property
    def is_numeric(self) -> bool:
        """Whether a value is a number."""
        return self.take is _numbers

    def array(self, table: Any, name: str) -> Any:
        """The column of a table, from any of the files, as one array for `values`; None: the table lacks it.

        Dictionary-encoded columns stay encoded, since decoding can make them many times longer: see `values`.

        Raises ValueError and NotImplementedError if the type differs from that in the determining file.
        """
        if table is None or name not in table.column_names:
            return None
        try:
            array = _whole(table.column(name))
            _check_codes(array)
        except KeyError as error:  # pyarrow does not support intervals of months, days and milliseconds
            kind = table.schema.field(name).type
            raise NotImplementedError(f"the type {kind} is not supported") from error
        if _is_blank(array.type):  # pandas writes this type for a column of nulls
            return array.cast(self.arrow)
        kinds = self, _kind(array.type, self.feature)
        mine, its = ((getattr(each.take, "func", each.take), each.many) for each in kinds)
        if mine != its and self.take is not _json:
            raise ValueError(
                f"is of type {array.type} in this file, but {self.arrow} in an earlier one; write all files with the "
                "same type"
            )
        return array.dictionary_decode() if self.is_numeric and _is_dictionary(array) else array

    def values(self, array: Any) -> Take:
        """Returns the values of rows from the result of `array`. Copies only the dictionary entries that rows use."""
        return _taken(self.take, array)


def column_kinds(schemas: Iterator[Any], columns: Sequence[str]) -> dict[str, ColumnKind]:
    """How each of some columns is converted, by the first `pyarrow.Schema` that has it with values."""
    kinds: dict[str, ColumnKind] = {}
    while len(kinds) < len(columns) or any(_is_blank(kind.arrow) for kind in kinds.values()):
        schema = next(schemas, None)
        if schema is None:
            break
        features = _features(schema.metadata or {})
        for column in schema:
            if column.name not in kinds or _is_blank(kinds[column.name].arrow) > _is_blank(column.type):
                kinds[column.name] = _kind(column.type, features.get(column.name))
    return {name: kinds[name] for name in columns}


def _features(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The features of columns from Hugging Face's `datasets`; empty without."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return cast("dict[str, Any]", features) if isinstance(features, dict) else {}


def _kind(kind: Any, feature: Any) -> ColumnKind:
    import pyarrow

    is_ = pyarrow.types
    while isinstance(kind, pyarrow.BaseExtensionType):
        kind = kind.storage_type
    if is_.is_dictionary(kind):
        kind = kind.value_type
    type_name = feature.get("_type") if isinstance(feature, dict) else None
    if _is_number(kind):
        return ColumnKind(kind, feature, _numbers)
    if is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind):
        return ColumnKind(kind, feature, _bytes, "txt")
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind) or is_.is_binary_view(kind):
        return ColumnKind(kind, feature, _bytes, _MEDIA.get(str(type_name)))
    if type_name in _MEDIA and _is_file(kind):
        return ColumnKind(kind, feature, _files, _MEDIA[type_name])
    found = _kind_of_list(kind, feature) if _is_list(kind) else None
    return found or ColumnKind(kind, feature, _json, "json")


def _kind_of_list(kind: Any, feature: Any) -> ColumnKind | None:
    """The kind of a column of lists of files or of numbers; None for other lists."""
    inner = feature[0] if isinstance(feature, list) and feature else feature
    inner = inner.get("feature") if isinstance(inner, dict) and "feature" in inner else inner
    of = inner.get("_type") if isinstance(inner, dict) else None
    if of in _MEDIA and _is_file(kind.value_type):
        return ColumnKind(kind, feature, _lists_of_files, _MEDIA[of], many=True)
    depth, leaf = 0, kind
    while _is_list(leaf):
        depth, leaf = depth + 1, leaf.value_type
    if not _is_number(leaf):
        return None
    if depth == 1:
        return ColumnKind(kind, feature, partial(_arrays, shape=(-1,)))
    sides = _sides(feature, depth)
    return None if sides is None else ColumnKind(kind, feature, partial(_arrays, shape=sides))


def _sides(feature: Any, depth: int) -> tuple[int, ...] | None:
    """The shape of arrays from `datasets`, -1 for the first axis; None if unknown or of another depth."""
    if not isinstance(feature, dict) or not str(feature.get("_type")).startswith("Array"):
        return None
    shape = cast("dict[str, Any]", feature).get("shape")
    if not isinstance(shape, list) or len(shape) != depth:
        return None
    sides = (-1, *(side for side in shape[1:] if isinstance(side, int) and side > 0))
    return sides if len(sides) == depth else None


def _is_number(kind: Any) -> bool:
    import pyarrow

    is_ = pyarrow.types
    return is_.is_boolean(kind) or is_.is_integer(kind) or is_.is_floating(kind)


def _is_file(kind: Any) -> bool:
    """Whether it is Hugging Face's `{bytes, path}`."""
    import pyarrow

    return pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0


def _is_list(kind: Any) -> bool:
    import pyarrow

    is_ = pyarrow.types
    return is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind)


def _is_blank(kind: Any) -> bool:
    """Whether a column of this type, or its lists, can only contain nulls."""
    import pyarrow

    while _is_list(kind):
        kind = kind.value_type
    return pyarrow.types.is_null(kind)


def nothing(rows: list[int]) -> list[Any]:
    """A `Take` of a missing column."""
    return [None] * len(rows)


def _whole(column: Any) -> Any:
    """A column as one array. Several chunks are concatenated with 64-bit offsets."""
    import pyarrow

    if column.num_chunks == 1:
        array = column.chunk(0)
    else:
        wide = {pyarrow.string(): pyarrow.large_string(), pyarrow.binary(): pyarrow.large_binary()}
        array = pyarrow.concat_arrays(column.cast(wide.get(column.type, column.type)).chunks)
    while isinstance(array.type, pyarrow.BaseExtensionType):
        array = array.storage
    return array.dictionary_decode() if _is_dictionary(array) and _is_blank(array.type.value_type) else array


def _is_dictionary(array: Any) -> bool:
    import pyarrow

    return pyarrow.types.is_dictionary(array.type)


def _check_codes(array: Any) -> None:
    """Refuse dictionary codes out of range, at any depth: pyarrow would read past the end of the dictionary.

    Raises ValueError.
    """
    import pyarrow

    is_ = pyarrow.types
    while isinstance(array.type, pyarrow.BaseExtensionType):
        array = array.storage
    if is_.is_dictionary(array.type):
        codes, count = plain_numbers(array.indices), len(array.dictionary)
        is_valid = validity_of(array.indices)
        wrong = np.flatnonzero((codes < 0) | (codes >= count))
        wrong = wrong if is_valid is None else wrong[is_valid[wrong]]
        if len(wrong):
            raise ValueError(
                f"row {wrong[0]} has dictionary code {codes[wrong[0]]}, but the dictionary has {count} values"
            )
        _check_codes(array.dictionary)
    elif is_.is_struct(array.type):
        for place in range(array.type.num_fields):
            _check_codes(array.field(place))
    elif is_.is_map(array.type):
        _check_codes(array.keys)
        _check_codes(array.items)
    elif hasattr(array, "values"):  # lists of any kind
        _check_codes(array.values)


def _taken(take: Callable[[Any], Take], array: Any) -> Take:
    """The `Take` of an array. For dictionary-encoded arrays it takes from the dictionary."""
    if not _is_dictionary(array):
        return take(array)
    is_valid = validity_of(array)
    codes = plain_numbers(array.indices).astype(np.int64)
    inner = take(array.dictionary)

    def taken(rows: list[int]) -> list[Any]:
        wanted = codes[rows]
        if isinstance(take, partial):  # arrays must not be shared between samples
            return inner(wanted.tolist())
        used, place = np.unique(wanted, return_inverse=True)
        values = inner(used.tolist())
        return [values[each] for each in place.tolist()]

    return taken if is_valid is None else _where_valid(taken, is_valid)


def _where_valid(take: Take, is_valid: npt.NDArray[np.bool_]) -> Take:
    """A `Take` with None for nulls, which does not take values of nulls."""

    def checked(rows: list[int]) -> list[Any]:
        own = is_valid[rows].tolist()
        values = iter(take([row for row, valid in zip(rows, own, strict=True) if valid]))
        return [next(values) if valid else None for valid in own]

    return checked


def with_nan(numbers: npt.NDArray[Any], is_valid: npt.NDArray[np.bool_] | None) -> npt.NDArray[Any]:
    """Numbers, as floating-point with NaN for nulls."""
    if is_valid is None or is_valid.all():
        return numbers
    numbers = numbers.astype(numbers.dtype if numbers.dtype.kind == "f" else np.float64)
    numbers[~is_valid] = np.nan
    return numbers


def validity_of(array: Any) -> npt.NDArray[np.bool_] | None:
    """(n,) whether there is a value; None: all have one."""
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def _leaving_out(take: Take, is_valid: npt.NDArray[np.bool_] | None) -> Take:
    """A `Take` with None for nulls."""
    if is_valid is None:
        return take

    def checked(rows: list[int]) -> list[Any]:
        return [value if valid else None for value, valid in zip(take(rows), is_valid[rows].tolist(), strict=True)]

    return checked


def plain_numbers(array: Any) -> npt.NDArray[Any]:
    """Numbers of an Arrow array, with arbitrary numbers for nulls."""
    import pyarrow
    import pyarrow.compute

    if array.null_count:
        array = pyarrow.compute.fill_null(array, pyarrow.scalar(0).cast(array.type))
    return array.to_numpy(zero_copy_only=False)


def _numbers(array: Any) -> Take:
    numbers = plain_numbers(array)
    return _leaving_out(lambda rows: [numbers[row, ...].copy() for row in rows], validity_of(array))


def _bytes(array: Any) -> Take:
    import pyarrow

    kind = array.type
    if pyarrow.types.is_string_view(kind) or pyarrow.types.is_binary_view(kind):
        array = array.cast(pyarrow.large_binary())
    elif pyarrow.types.is_fixed_size_binary(kind):
        array = array.cast(pyarrow.binary())
    wide = pyarrow.types.is_large_string(array.type) or pyarrow.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32) if offsets is not None else np.zeros(1, np.int64)
    ends = ends[array.offset : array.offset + len(array) + 1]
    view = memoryview(b"" if data is None else data)

    def take(rows: list[int]) -> list[Any]:
        at = np.array(rows, np.int64)
        return [bytes(view[begin:end]) for begin, end in zip(ends[at].tolist(), ends[at + 1].tolist(), strict=True)]

    return _leaving_out(take, validity_of(array))


def _files(array: Any) -> Take:
    import pyarrow.compute

    return _taken(_bytes, cast("Any", pyarrow.compute).struct_field(array, "bytes"))


def _offsets(array: Any) -> tuple[Int64Array, Any]:
    """(n + 1,) start of each list in the array of all entries, and that array."""
    import pyarrow

    if not pyarrow.types.is_fixed_size_list(array.type):
        return array.offsets.to_numpy().astype(np.int64), array.values
    return (np.arange(len(array) + 1) + array.offset) * array.type.list_size, array.values


def _lists_of_files(array: Any) -> Take:
    offsets, entries = _offsets(array)
    inner = _files(entries)

    def take(rows: list[int]) -> list[Any]:
        return [inner(list(range(offsets[row], offsets[row + 1]))) for row in rows]

    return _leaving_out(take, validity_of(array))


def _arrays(array: Any, *, shape: tuple[int, ...]) -> Take:
    offsets, entries = _offsets(array)
    while _is_list(entries.type):
        inner, entries = _offsets(entries)
        offsets = inner[offsets]
    numbers, is_valid = plain_numbers(entries), validity_of(entries)

    def one(begin: int, end: int) -> npt.NDArray[Any]:
        piece = with_nan(numbers[begin:end], None if is_valid is None else is_valid[begin:end])
        return piece.reshape(shape).copy()

    def take(rows: list[int]) -> list[Any]:
        return [one(offsets[row], offsets[row + 1]) for row in rows]

    return _leaving_out(take, validity_of(array))


def _json(array: Any) -> Take:
    import pyarrow

    array = array.cast(_in_microseconds(array.type), safe=False)

    def take(rows: list[int]) -> list[Any]:
        found = array.take(pyarrow.array(rows, pyarrow.int64()))
        try:
            values = found.to_pylist()
        except (ValueError, OverflowError, NotImplementedError, LookupError):
            values = [_python_value(found, place, row) for place, row in enumerate(rows)]
        return [None if value is None else msgspec.json.encode(value, enc_hook=str) for value in values]

    return take


def _python_value(array: Any, place: int, row: int) -> Any:
    """A value as a Python object. Raises ValueError naming the row if Python cannot represent it: a date after 9999."""
    try:
        return array[place].as_py()
    except UnicodeDecodeError as error:
        raise ValueError(f"row {row} is not UTF-8: {error}") from error
    except (ValueError, OverflowError, NotImplementedError, LookupError) as error:
        message = f"{type(error).__name__}: {error}" if isinstance(error, LookupError) else str(error)
        raise ValueError(f"row {row} has an unsupported value of type {array.type}: {message}") from error


def _in_microseconds(kind: Any) -> Any:
    """A type with microseconds, which Python's time types support, instead of nanoseconds, which need pandas."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if is_.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if is_.is_time64(kind):
        return pa.time64("us")
    if is_.is_struct(kind):
        return pa.struct([each.with_type(_in_microseconds(each.type)) for each in kind])
    if is_.is_map(kind):
        return pa.map_(*(each.with_type(_in_microseconds(each.type)) for each in (kind.key_field, kind.item_field)))
    if _is_list(kind):
        size = (kind.list_size,) if is_.is_fixed_size_list(kind) else ()
        make = pa.large_list if is_.is_large_list(kind) else pa.list_
        return make(kind.value_field.with_type(_in_microseconds(kind.value_type)), *size)
    return kind
