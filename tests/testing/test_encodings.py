"""The file formats that the test datasets bring along."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from energon_grain.testing.interleaved_datasets import encode_tensors
from energon_grain.testing.question_datasets import encode_avi
from energon_grain.transforms.decode import decode_tenbin

DTYPES = st.sampled_from(["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint64"])


@given(st.lists(DTYPES.flatmap(lambda name: hnp.arrays(name, hnp.array_shapes(min_dims=0, max_side=4))), max_size=4))
def test_tensor_binaries_decode(arrays: list[np.ndarray]) -> None:
    found = decode_tenbin(encode_tensors(arrays))
    assert len(found) == len(arrays)
    for ours, theirs in zip(arrays, found, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_tensor_binaries_have_no_complex_numbers() -> None:
    with pytest.raises(ValueError, match="complex64"):
        encode_tensors([np.zeros(2, np.complex64)])


def test_avi_is_a_tree_of_chunks_with_an_index() -> None:
    pictures = [b"\xff\xd8 first", b"\xff\xd8 2nd"]  # one of odd length
    data = encode_avi(pictures, (32, 48), frames_per_second=5)
    assert data[:4] == b"RIFF"
    assert data[8:12] == b"AVI "
    assert struct.unpack("<I", data[4:8]) == (len(data) - 8,)
    movie = data.index(b"movi")
    index = data.index(b"idx1") + 8
    for number, picture in enumerate(pictures):
        name, _, offset, size = struct.unpack_from("<4sIII", data, index + 16 * number)
        start = movie + offset
        assert name == data[start : start + 4] == b"00dc"
        assert data[start + 8 : start + 8 + size] == picture
