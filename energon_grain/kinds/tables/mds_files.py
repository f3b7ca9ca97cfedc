# SPDX-License-Identifier: Apache-2.0
"""Mosaic's MDS: shards of concatenated samples, listed in an `index.json`. See `TableFiles`.

    number of samples (4) | offset of each, and of the end (4 each) | description of the columns (JSON) | samples

A sample is the sizes (4 each) of its columns of variable size, then its values. Numbers are little-endian. Runs of
samples of about 1 MiB are read at a time; compressed shards are read whole. The hashes in an index are verified when a
process first uses a shard.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import xxhash

from energon_grain.errors import DatasetNotFoundError, FormatError
from energon_grain.formats.data_files import Version
from energon_grain.formats.local_files import LocalFiles
from energon_grain.forms import Form
from energon_grain.kinds.tables.files import DAMAGED, Int64Array, Record, TableFiles
from energon_grain.kinds.tables.mds_compression import COMPRESSED_ENDINGS, COMPRESSION, decompress
from energon_grain.kinds.tables.mds_hashes import refuse_wrong_hash
from energon_grain.storage.location import folder_of, join
from energon_grain.storage.remote import read_whole

INDEX_JSON = "index.json"
"""Lists the shards, in their folder."""
_GROUP_BYTES = 1 << 20
_PIECE_BYTES = 8 << 20
_SIZES = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64)}
_NUMBERS = {"int": "int64"} | {f"{kind}{bits}": f"{kind}{bits}" for kind, sizes in _SIZES.items() for bits in sizes}
_TEXTS = ("str", "str_int", "str_float", "str_decimal")
_FILES = dict.fromkeys(("jpeg", "jpegarray", "jpeg_array", "png"), "Image") | {"json": "Json", "ndarray": "Npy"}
"""Types of values that are files, by encoding, see `ColumnKind`. Unknown encodings stay bytes."""
_TYPES = {8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4", 64: "u8", 65: "i8", 66: "f8"}

_Size = Annotated[int, msgspec.Meta(ge=0, le=4 << 30)]  # offsets in a shard have 32 bits


class _File(msgspec.Struct, omit_defaults=True):
    basename: Annotated[str, msgspec.Meta(pattern="^[^/.][^/]*(/[^/.][^/]*)*$")]
    bytes: _Size
    hashes: dict[str, str] | None = {}


class _Shard(msgspec.Struct):
    """The entry of a shard in an index."""

    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[_Size | None]
    samples: _Size
    raw_data: _File
    format: Literal["mds"] = "mds"
    compression: Annotated[str, msgspec.Meta(pattern=COMPRESSION)] | None = None
    zip_data: _File | None = None

    def __post_init__(self) -> None:
        if not len(self.column_names) == len(self.column_encodings) == len(self.column_sizes):
            raise ValueError("a shard has different numbers of column names, encodings and sizes")


class _Index(msgspec.Struct):
    shards: list[_Shard]


class _Head(msgspec.Struct, array_like=True):
    """The stored description of a shard: its entry in the index, and the bounds of each run of samples.

    Attributes:
        first: First sample of each run.
        start: First byte of each run, and the end of the last one.
        digest: XXH3-64 of the offsets of all samples.
    """

    shard: _Shard
    first: list[int]
    start: list[int]
    digest: int = 0


_INDEX, _HEAD = Form(_Index), Form(_Head)


class MdsFiles(TableFiles):
    """The shards that an `index.json` lists; see `TableFiles`. The path is that file, or its folder."""

    kind = "MDS shards"
    endings = (".mds", *COMPRESSED_ENDINGS)
    group_word = "run of samples"
    group_option = "without compression, or with a smaller `size_limit`"

    def _find(self) -> tuple[str, list[str], dict[str, Version] | None]:
        root = folder_of(self.location) if self.location.endswith(INDEX_JSON) else self.location
        index = join(root, INDEX_JSON)
        try:
            self._shards = _INDEX.from_json(text := read_whole(index)).shards
        except FileNotFoundError as error:
            raise DatasetNotFoundError(f"{index}: no such file; it lists the shards of an MDS dataset") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FormatError(f"{index}: {error}; it is damaged, or not of a supported MDS dataset") from error
        self._named_by = xxhash.xxh3_64_hexdigest(text)
        self._compared = set[int]()
        names = [(shard.zip_data or shard.raw_data).basename for shard in self._shards]
        if not names or len(set(names)) < len(names):
            raise FormatError(f"{index}: lists {'a shard twice' if names else 'no shard'}")
        return root, names, None

    @property
    def described_by(self) -> dict[str, str]:
        root = folder_of(self.location) if self.location.endswith(INDEX_JSON) else self.location
        return {INDEX_JSON: join(root, INDEX_JSON)}

    def schema(self, file: int = 0) -> Any:
        import pyarrow as pa

        shard = self._shards[file]
        fields: list[Any] = []
        features: dict[str, Any] = {}
        for name, encoding in zip(shard.column_names, shard.column_encodings, strict=True):
            base = encoding.partition(":")[0]
            kind = pa.from_numpy_dtype(_NUMBERS[base]) if base in _NUMBERS else pa.large_binary()
            fields.append((name, pa.large_string() if base in _TEXTS else kind))
            features[name] = {"_type": _FILES.get(base)}
        return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": features}})})

    def _read_head(self, file: int) -> bytes:
        shard, path, size = self._shards[file], self.paths[file], self._versions[file][0]
        if shard.compression:
            return msgspec.msgpack.encode(_Head(_without_hashes(shard), [0], [0, size]))
        if shard.raw_data.bytes != size:
            raise FormatError(f"{path}: has {size} bytes, but {INDEX_JSON} lists {shard.raw_data.bytes}; {DAMAGED}")
        self.store.expect(path, self._versions[file])  # type: ignore[arg-type]
        with self._decoding(path):
            begins = _begins(self._read(file, 0, min(4 * (shard.samples + 2), size)), shard.samples, size)
        first = np.flatnonzero(np.diff((begins[:-1] - begins[0]) // _GROUP_BYTES, prepend=-1))
        start = [*begins[first].tolist(), int(begins[-1])]
        digest = xxhash.xxh3_64_intdigest(begins.tobytes())
        return msgspec.msgpack.encode(_Head(_without_hashes(shard), first.tolist(), start, digest))

    def _record(self, file: int, head: bytes) -> Record:
        parsed = _HEAD.from_msgpack(head)
        shard = parsed.shard
        plain = shard.compression and shard.raw_data.bytes
        places = [(start, stop, plain or stop - start) for start, stop in pairwise(parsed.start)]
        return self._recorded(file, head, shard.column_names, np.diff([*parsed.first, shard.samples]).tolist(), places)

    def _table(self, group: int, names: list[str]) -> Any:
        import pyarrow as pa

        file = int(self.groups.file[group])
        shard, schema = self._shards[file], self.schema(file)
        count = int(self.groups.first[group + 1] - self.groups.first[group])
        start, stop, _ = self.groups.extents[group].max(axis=0).tolist()
        data = self._read(file, start, stop)
        if not shard.compression:
            self._compare_plain(file)
            number = int(self.groups.first[group] - self.groups.first[np.searchsorted(self.groups.file, file)])
            begins = np.frombuffer(self._read(file, 4 + 4 * number, 8 + 4 * (number + count)), "<u4").astype(np.int64)
            begins -= start
        else:
            self._compare(file, shard.zip_data, [data])
            data = decompress(data, shard.compression, shard.raw_data.bytes)
            self._compare(file, shard.raw_data, [data])
            self._compared.add(file)
            begins = _begins(data[: 4 * (count + 2)], count, len(data))
            if begins[-1] != len(data):  # pyarrow's Brotli leaves missing bytes uninitialised
                raise ValueError(f"its samples end at byte {begins[-1]}, but its index lists {len(data)} bytes")
        bounds = _bounds(data, begins, shard.column_sizes)
        arrays: list[Any] = []
        for name in names:
            place = shard.column_names.index(name)
            encoding, kind = shard.column_encodings[place], schema.field(name).type
            values = [data[begin:end] for begin, end in bounds[:, place : place + 2].tolist()]
            base, _, detail = encoding.partition(":")
            if base in _NUMBERS:
                arrays.append(pa.array(np.frombuffer(b"".join(values), np.dtype(_NUMBERS[base]).newbyteorder("<"))))
                continue
            files = [_npy(value, detail) for value in values] if base == "ndarray" else values
            arrays.append(pa.array(files, pa.large_binary()).view(kind))
        return pa.table(arrays, names=names)

    def _compare_plain(self, file: int) -> None:
        """Verify the hashes of an uncompressed shard, which reads all of it. Raises ValueError.

        Shards in a store are not verified: this host may need only a few runs of each.
        """
        if isinstance(self.store, LocalFiles):
            size = self._versions[file][0]
            pieces = (self._read(file, at, min(at + _PIECE_BYTES, size)) for at in range(0, size, _PIECE_BYTES))
            self._compare(file, self._shards[file].raw_data, pieces)
        self._compared.add(file)

    def _compare(self, file: int, entry: _File | None, pieces: Iterable[bytes]) -> None:
        """Verify the hashes of a shard once per process. Raises ValueError."""
        if file not in self._compared and entry is not None and entry.hashes:
            refuse_wrong_hash(entry.hashes, pieces)


def _without_hashes(shard: _Shard) -> _Shard:
    """The identity of a shard: the same data may be indexed with or without hashes."""
    plain = [file and msgspec.structs.replace(file, hashes={}) for file in (shard.raw_data, shard.zip_data)]
    return msgspec.structs.replace(shard, raw_data=plain[0], zip_data=plain[1])


def _begins(data: bytes, count: int, size: int) -> Int64Array:
    """(count + 1,) start of each sample, and the end of the last one. Raises ValueError."""
    numbers = np.frombuffer(data[: len(data) // 4 * 4], "<u4").astype(np.int64)
    if len(numbers) < count + 2 or numbers[0] != count:
        raise ValueError(f"begins with {numbers[:1].tolist()}, but {INDEX_JSON} lists {count} samples")
    begins = numbers[1 : count + 2]
    if begins[0] < 4 * (count + 2) or (np.diff(begins) < 0).any() or begins[-1] > size:
        raise ValueError("the offsets of its samples are not ascending, or exceed the file")
    return begins


def _bounds(data: bytes, begins: Int64Array, sizes: Sequence[int | None]) -> Int64Array:
    """(samples, columns + 1) start of each value, and the end of the last one. Raises ValueError."""
    count, sizes_bytes = len(begins) - 1, 4 * sizes.count(None)
    if not (begins[0] >= 0 and (np.diff(begins) >= sizes_bytes).all() and begins[-1] <= len(data)):
        raise ValueError("its samples are not at the listed offsets")
    stored = np.frombuffer(data, np.uint8)[begins[:-1, None] + np.arange(sizes_bytes)]
    lengths = np.tile(np.array([size or 0 for size in sizes], np.int64), (count, 1))
    lengths[:, [size is None for size in sizes]] = stored.reshape(count, sizes_bytes).copy().view("<u4")
    bounds = np.cumsum(np.concatenate([begins[:-1, None] + sizes_bytes, lengths], axis=1), axis=1)
    if (bounds[:, -1] != begins[1:]).any():
        raise ValueError("the sizes of the values do not add up to the size of their sample")
    return bounds


def _npy(value: bytes, detail: str) -> bytes:
    """An array as a `.npy` file. Raises ValueError."""
    dtype, _, written = detail.partition(":")
    try:
        if not dtype:
            dtype, value = _TYPES[value[0]], value[1:]
        if written:
            shape = tuple(map(int, written.split(",")))
        else:
            axes, step = value[0] >> 2, 1 << (value[0] & 3)
            shape = tuple(np.frombuffer(value, f"<u{step}", axes, 1).tolist())
            value = value[1 + axes * step :]
        np.save(file := io.BytesIO(), np.frombuffer(value, np.dtype(dtype).newbyteorder("<")).reshape(shape))
        return file.getvalue()
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"not a valid array: {error!r}") from error
