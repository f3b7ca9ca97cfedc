"""Sorting keys as bytes, in memory and through files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from energon_grain.formats.key_order import duplicate_keys, external_key_order, is_ascending, key_order

# Few letters, NUL and long common beginnings: ties at every depth.
KEYS = st.lists(
    st.one_of(
        st.text(alphabet="ab\0", max_size=20).map(str.encode),
        st.text(alphabet="01", max_size=12).map(lambda text: b"a/very/long/common/beginning/" + text.encode()),
        st.binary(max_size=10),
    ),
    max_size=80,
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


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=KEYS, run=st.integers(1, 30))
def test_order_through_files_is_the_same(tmp_path: Path, keys: list[bytes], run: int) -> None:
    blocks = list(external_key_order(*columns(keys), tmp_path, memory_bytes=128 * run))
    order = np.concatenate(blocks) if blocks else np.zeros(0, np.int64)
    assert order.tolist() == sorted(range(len(keys)), key=lambda i: (keys[i], i))
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=KEYS, run=st.integers(1, 30), ascending=st.booleans())
def test_duplicates_are_reported_through_files(tmp_path: Path, keys: list[bytes], run: int, ascending: bool) -> None:
    keys = sorted(keys) if ascending else keys
    found: list[tuple[int, int]] = []
    list(external_key_order(*columns(keys), tmp_path, memory_bytes=128 * run, on_duplicates=lambda p: found.extend(p)))
    order = sorted(range(len(keys)), key=lambda i: (keys[i], i))
    expected = [(a, b) for a, b in pairwise(order) if keys[a] == keys[b]]
    assert [tuple(pair) for pair in found] == expected


@settings(max_examples=200)
@given(KEYS)
def test_ascending_is_noticed(keys: list[bytes]) -> None:
    assert is_ascending(*columns(keys)) == (keys == sorted(keys))
    assert is_ascending(*columns(sorted(keys)))


@pytest.mark.parametrize("shuffled", [False, True])
def test_many_keys_come_in_blocks(tmp_path: Path, shuffled: bool) -> None:
    numbers = np.random.default_rng(5).permutation(50_000) if shuffled else np.arange(50_000)
    start, text = columns([b"%08d" % number for number in numbers])
    blocks = list(external_key_order(start, text, tmp_path, memory_bytes=128 * 4_000))
    assert np.array_equal(np.concatenate(blocks), key_order(start, text))
    if shuffled:
        assert len(blocks) == 13
        assert max(map(len, blocks)) < 1.3 * 4_000
