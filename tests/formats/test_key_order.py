"""Sorting keys as bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

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
