"""WebDataset's tensor binaries (`.ten`): several arrays in one part."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_TYPES = frozenset(("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))


def encode_tensors(arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """Return a tensor binary with these arrays. `transforms.array.decode_tenbin` describes the layout.

    Raises:
        ValueError: The format has no such type of array.
    """
    return b"".join(_chunk(_header(array)) + _chunk(np.ascontiguousarray(array).tobytes()) for array in arrays)


def _header(array: npt.NDArray[Any]) -> bytes:
    name = array.dtype.str[1:]
    if name not in _TYPES:
        raise ValueError(f"Tensor binaries hold no arrays of {array.dtype}")
    return struct.pack(f"<8s8sq{array.ndim}q", name.encode(), b"", array.ndim, *array.shape)


def _chunk(content: bytes) -> bytes:
    padding = -len(content) % 64
    return b"~TenBin~" + struct.pack("<q", len(content)) + content + b"\0" * padding
