"""Decoding numpy's `.npy` and `.npz`, and tensor binaries (`.ten`)."""

from __future__ import annotations

import io
import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Buffer = bytes | memoryview

_OBJECT = np.dtype(object)
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
    count = math.prod(shape)
    if len(data) - size < count * dtype.itemsize:
        raise ValueError(f"{count * dtype.itemsize} bytes of array data announced, {len(data) - size} present")
    flat = np.frombuffer(data, dtype, count, size)
    return flat.reshape(shape, order="F" if fortran else "C").copy(order="K")


def decode_npz(data: Buffer, *, allow_pickle: bool = False) -> dict[str, npt.NDArray[Any]]:
    """The arrays in a `.npz` file by name.

    Raises:
        ValueError: The file is damaged, or holds Python objects and `allow_pickle` is false.
    """
    with np.load(io.BytesIO(data), allow_pickle=allow_pickle) as archive:
        return dict(archive)


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
    """Bytes before the array data; 0 for what is left to numpy: damaged files and the rare version 3."""
    if data[:7] == b"\x93NUMPY\1":
        return 10 + int.from_bytes(data[8:10], "little")
    if data[:7] == b"\x93NUMPY\2":
        return 12 + int.from_bytes(data[8:12], "little")
    return 0


@lru_cache(maxsize=256)
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type. Cached: the samples of a dataset share a few headers."""
    stream = io.BytesIO(header)
    if np.lib.format.read_magic(stream) == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)
