"""Decoding numpy's `.npy` and `.npz`, and tensor binaries (`.ten`)."""

from __future__ import annotations

import ast
import io
import math
import zipfile
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Buffer = bytes | memoryview

_OBJECT = np.dtype(object)
_NPY_MAGIC = b"\x93NUMPY"
_MOST_HEADER_BYTES = 10_000  # numpy's own bound
_TENBIN_MAGIC = b"~TenBin~"
_TENBIN_TYPES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"})


def decode_npy(data: Buffer, *, allow_pickle: bool = False) -> npt.NDArray[Any]:
    """The array in a `.npy` file, writable and in the memory order that it was saved in.

    Raises:
        ValueError: The file is damaged, or holds Python objects and `allow_pickle` is false.
    """
    size = _npy_header_size(data)
    shape, fortran, dtype = _npy_header(bytes(data[:size])) if size else ((), False, _OBJECT)
    if dtype.hasobject or not dtype.itemsize:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=allow_pickle)
    if min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape} is announced")
    count = math.prod(shape)
    if len(data) - size < count * dtype.itemsize:
        raise ValueError(f"{count * dtype.itemsize} bytes of array data announced, {len(data) - size} present")
    flat = np.frombuffer(data, dtype, count, size)
    return flat.reshape(shape, order="F" if fortran else "C").copy(order="K")


def decode_npz(data: Buffer, *, allow_pickle: bool = False, max_bytes: int | None = None) -> dict[str, Any]:
    """The arrays in a `.npz` file by name; members that are no arrays as bytes.

    Raises:
        ValueError: The file is damaged, holds Python objects and `allow_pickle` is false, or unpacks to more than
            `max_bytes`.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        check_unpacked(archive, max_bytes)
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    return {
        name.removesuffix(".npy"): decode_npy(member, allow_pickle=allow_pickle)
        if member.startswith(_NPY_MAGIC)
        else member
        for name, member in members.items()
    }


def check_unpacked(archive: zipfile.ZipFile, max_bytes: int | None) -> None:
    """Raise ValueError where an archive announces too much; no member is read further than it announces."""
    members = archive.infolist()
    announced = sum(member.file_size for member in members)
    if max_bytes is not None and announced > max_bytes:
        raise ValueError(f"unpacks to {announced} bytes; SampleDecoder(max_part_bytes={max_bytes}) unpacks no more")
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise ValueError("is packed by another method than deflate")


def decode_tenbin(data: Buffer) -> list[npt.NDArray[Any]]:
    """The arrays of a tensor binary as WebDataset's `tenbin` writes it.

    The file is a row of chunks: `~TenBin~`, int64 length, and as many bytes, padded to a multiple of 64. Each array is
    a header chunk of int64s (type name, label, number of dimensions, sizes) and a data chunk.

    Raises:
        ValueError: The file is damaged.
    """
    chunks: list[memoryview] = []
    view = memoryview(data)
    offset = 0
    while offset < len(view):
        size = int.from_bytes(view[offset + 8 : offset + 16], "little", signed=True)
        if bytes(view[offset : offset + 8]) != _TENBIN_MAGIC or not 0 <= size <= len(view) - offset - 16:
            raise ValueError(f"no valid chunk at byte {offset} of {len(view)}")
        chunks.append(view[offset + 16 : offset + 16 + size])
        offset += 16 + -(-size // 64) * 64
    arrays: list[npt.NDArray[Any]] = []
    for header, content in zip(chunks[::2], chunks[1::2], strict=True):
        numbers = np.frombuffer(header, "<i8")
        name = bytes(header[:8]).rstrip(b"\0").decode("ascii")
        if name not in _TENBIN_TYPES or len(numbers) < 3 or len(numbers) != 3 + numbers[2]:
            raise ValueError(f"an array header of type {name!r} with {len(numbers)} numbers is not valid")
        arrays.append(np.frombuffer(content, f"<{name}").reshape([int(size) for size in numbers[3:]]).copy())
    return arrays


def _npy_header_size(data: Buffer) -> int:
    """Bytes before the array data; 0 for damaged files, which are left to numpy."""
    if data[:7] == _NPY_MAGIC + b"\1":
        return 10 + int.from_bytes(data[8:10], "little")
    if data[:7] in (_NPY_MAGIC + b"\2", _NPY_MAGIC + b"\3"):
        return 12 + int.from_bytes(data[8:12], "little")
    return 0


@lru_cache(maxsize=256)
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type. Cached: the samples of a dataset share a few headers."""
    stream = io.BytesIO(header)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    return _npy_header_3(header[12:])


def _npy_header_3(text: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """That of version 3, whose field names may be any text: numpy has no function for it alone."""
    if len(text) > _MOST_HEADER_BYTES:
        raise ValueError(f"an array header of {len(text)} bytes; at most {_MOST_HEADER_BYTES} are read")
    said = ast.literal_eval(text.decode("utf-8"))
    if not isinstance(said, dict) or said.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("an array header that does not say type, order and shape")
    if not isinstance(said["shape"], tuple) or not all(type(length) is int for length in said["shape"]):
        raise ValueError(f"an array of shape {said['shape']} is announced")
    return said["shape"], bool(said["fortran_order"]), np.lib.format.descr_to_dtype(said["descr"])
