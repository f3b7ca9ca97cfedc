from __future__ import annotations

import io
import struct
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from energon_grain.transforms.decode import decode_npy, decode_npz, decode_tenbin

TYPES = hnp.scalar_dtypes() | hnp.array_dtypes(max_size=3, allow_subarrays=True) | hnp.unicode_string_dtypes()


def npy(array: np.ndarray[Any, Any], version: tuple[int, int] | None = None) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that old versions of numpy cannot read versions 2 and 3
        np.lib.format.write_array(stream, array, version=version)
    return stream.getvalue()


@settings(max_examples=50)
@given(st.data(), TYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=4), st.booleans())
def test_npy_decodes_as_numpy_does(data: st.DataObject, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool):
    array = data.draw(hnp.arrays(dtype, shape))
    file = npy(np.asfortranarray(array) if fortran else array)
    wanted = np.lib.format.read_array(io.BytesIO(file))
    for buffer in (file, memoryview(b"x" + file + b"more")[1:]):
        decoded = decode_npy(buffer)
        assert decoded.dtype == wanted.dtype
        assert decoded.shape == wanted.shape
        assert decoded.tobytes() == wanted.tobytes()
        assert decoded.flags.writeable
        assert decoded.flags.f_contiguous == wanted.flags.f_contiguous


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(version: tuple[int, int]):
    array = np.arange(6).reshape(2, 3)
    assert decode_npy(npy(array, version)).tolist() == array.tolist()


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: b"", lambda d: d[:9], lambda d: b"x" + d, lambda d: d[:40]]
)
def test_damaged_npy(damage: Any):
    with pytest.raises((ValueError, SyntaxError)):
        decode_npy(damage(npy(np.arange(6))))


def test_python_objects_need_permission():
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        decode_npy(file.getvalue())
    assert decode_npy(file.getvalue(), allow_pickle=True)[0] == {}
    archive = io.BytesIO()
    np.savez(archive, a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        decode_npz(archive.getvalue())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(save: Any):
    stream = io.BytesIO()
    save(stream, a=np.arange(3), b=np.ones((2, 2)))
    decoded = decode_npz(memoryview(stream.getvalue()))
    assert {name: array.tolist() for name, array in decoded.items()} == {"a": [0, 1, 2], "b": [[1, 1], [1, 1]]}


def chunk(content: bytes) -> bytes:
    return b"~TenBin~" + struct.pack("<q", len(content)) + content + bytes(-len(content) % 64)


def tenbin(*arrays: np.ndarray[Any, Any]) -> bytes:
    parts: list[bytes] = []
    for array in arrays:
        header = array.dtype.str[1:].encode().ljust(8, b"\0") + bytes(8)
        parts += [chunk(header + struct.pack(f"<{1 + array.ndim}q", array.ndim, *array.shape)), chunk(array.tobytes())]
    return b"".join(parts)


def test_tenbin():
    decoded = decode_tenbin(tenbin(np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7, np.uint8)))
    assert [array.tolist() for array in decoded] == [[[0, 1, 2], [3, 4, 5]], 7]
    assert decoded[0].dtype == np.float32
    assert decode_tenbin(b"") == []


@given(st.data())
def test_damaged_tenbin_never_decodes_to_something_else(data: st.DataObject):
    file = bytearray(tenbin(np.arange(6, dtype=np.int16)))
    position = data.draw(st.integers(0, 79 + 23))
    file[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decoded = decode_tenbin(bytes(file))
    except ValueError:
        return
    assert len(decoded) == 1  # the label, padding or data changed, or the type became one of the same size
