"""Sorting keys as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_grain.errors import DuplicateKeyError
from energon_grain.formats.duplicate_keys import refuse_duplicate_keys
from energon_grain.formats.key_order import duplicate_keys, key_order

# Few letters, NUL and long common beginnings: ties at every depth.
KEYS = st.lists(
    st.one_of(
        st.text(alphabet="ab\0", max_size=20).map(str.encode),
        st.text(alphabet="01", max_size=12).map(lambda text: b"a/very/long/common/beginning/" + text.encode()),
        st.binary(max_size=10),
    ),
    max_size=60,
)


def columns(keys: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    start = np.concatenate([[0], np.cumsum([len(key) for key in keys])]).astype(np.int64)
    return start, np.frombuffer(b"".join(keys), np.uint8)


@settings(max_examples=300)
@given(KEYS)
def test_order_is_that_of_sorted_bytes_and_stable(keys: list[bytes]) -> None:
    order = key_order(*columns(keys))
    assert order.dtype == np.int64
    assert order.tolist() == sorted(range(len(keys)), key=lambda i: (keys[i], i))


@settings(max_examples=200)
@given(KEYS)
def test_sorted_keys_keep_their_order(keys: list[bytes]) -> None:
    assert key_order(*columns(sorted(keys))).tolist() == list(range(len(keys)))


@settings(max_examples=300)
@given(KEYS)
def test_duplicates_are_found(keys: list[bytes]) -> None:
    start, text = columns(keys)
    order = key_order(start, text)
    ascending = sorted(keys)
    expected = [i for i in range(len(keys) - 1) if ascending[i] == ascending[i + 1]]
    assert duplicate_keys(start, text, order).tolist() == expected


def test_refusing_lists_keys_and_shards() -> None:
    start, text = columns([b"a", b"b", b"c", b"b", b"c", b"c"])
    shard_first = np.array([0, 3, 6])
    with pytest.raises(DuplicateKeyError) as caught:
        refuse_duplicate_keys(start, text, shard_first, ["x.tar", "y.tar"].__getitem__)
    message = str(caught.value)
    assert "3 samples" in message
    assert "'b' in x.tar and in y.tar" in message
    assert "'c' in y.tar twice" in message


def test_refusing_lists_a_few_of_many() -> None:
    keys = [b"%d" % (i // 2) for i in range(200)]
    with pytest.raises(DuplicateKeyError, match=r"100 samples .* and 95 more"):
        refuse_duplicate_keys(*columns(keys), np.array([0, 200]), str)


def test_no_duplicates_pass() -> None:
    refuse_duplicate_keys(*columns([b"b", b"a", b""]), np.array([0, 3]), str)
