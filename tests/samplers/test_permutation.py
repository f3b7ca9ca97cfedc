"""The permutation is a bijection for every size, has an inverse, and one kernel serves mixed sizes and keys."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from energon_grain.samplers.hashing import fold
from energon_grain.samplers.permutation import MAX_SIZE, permute, unpermute

SMALL = sorted(
    {
        *range(1, 130),
        *(2**k + d for k in range(1, 13) for d in (-1, 0, 1)),
        *(4**k + 1 for k in range(1, 8)),
        *(k * k + d for k in (31, 50) for d in (-1, 0, 1)),
        10_000,
    }
)


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1, fold("a key")])
def test_every_small_size_is_a_bijection(key: int) -> None:
    for n in SMALL:
        image = permute(np.arange(n), n, key)
        assert np.array_equal(np.sort(image), np.arange(n)), n
        assert np.array_equal(unpermute(image, n, key), np.arange(n)), n


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 2**61) | st.integers(1, 40) | st.just(MAX_SIZE), st.integers(0, 2**64 - 1), st.data()),
        min_size=1,
        max_size=8,
    )
)
def test_one_call_serves_any_sizes_and_keys(cases: list[tuple[int, int, st.DataObject]]) -> None:
    values = np.array([data.draw(st.integers(0, n - 1)) for n, _, data in cases])
    n = np.array([n for n, _, _ in cases])
    keys = np.array([key for _, key, _ in cases], dtype=np.uint64)
    image = permute(values, n, keys)
    assert np.all((image >= 0) & (image < n))
    assert np.array_equal(unpermute(image, n, keys), values)
    alone = [int(permute(values[i : i + 1], int(n[i]), int(keys[i]))[0]) for i in range(len(cases))]
    assert image.tolist() == alone


@pytest.mark.parametrize(
    "n", [2**31 - 1, 2**32 + 1, 2**53 - 1, 2**53 + 1, 3**38, 2**61 - 1, 2**61, MAX_SIZE - 1, MAX_SIZE]
)
def test_huge_sizes_round_trip_without_collisions(n: int) -> None:
    values = np.unique(np.concatenate([np.arange(20_000), n - 1 - np.arange(20_000)]))
    image = permute(values, n, fold(n))
    assert np.all((image >= 0) & (image < n))
    assert np.unique(image).size == values.size
    assert np.array_equal(unpermute(image, n, fold(n)), values)
    assert np.array_equal(image, permute(values, np.full(values.size, n), fold(n)))


def test_blocks_and_walks_do_not_depend_on_how_many_are_asked() -> None:
    n = 20_011
    whole = permute(np.arange(n), n, 9)
    for part in (slice(0, 1), slice(8_190, 8_195), slice(5, n, 3)):
        assert np.array_equal(permute(np.arange(n)[part], n, 9), whole[part])
    square = np.arange(12).reshape(3, 4)
    assert np.array_equal(permute(square, 12, 9), permute(np.arange(12), 12, 9).reshape(3, 4))
    assert permute(np.empty(0, dtype=np.int64), 5, 9).size == 0


def test_arguments_are_left_alone() -> None:
    values, n, keys = np.arange(7), np.full(7, 7), np.arange(7, dtype=np.uint64)
    permute(values, n, keys)
    assert np.array_equal(values, np.arange(7))
    assert np.array_equal(n, np.full(7, 7))
    assert np.array_equal(keys, np.arange(7))


def test_a_value_outside_the_set_is_refused() -> None:
    for bad in (5, -1, MAX_SIZE):
        with pytest.raises(IndexError, match=r"not in \[0, n\)"):
            permute(np.array([0, bad]), 5, 1)
        with pytest.raises(IndexError):
            permute(np.array([0, bad]), np.array([5, 5]), 1)
    for n in (0, -3, MAX_SIZE + 1):
        with pytest.raises(ValueError, match="size must be in"):
            permute(np.array([0]), n, 1)


def test_the_order_of_a_size_does_not_change_between_versions() -> None:
    assert permute(np.arange(10), 10, fold("golden")).tolist() == [5, 7, 2, 8, 0, 3, 9, 6, 1, 4]
    large = permute(np.arange(3), 10**15, fold("golden"))
    assert large.tolist() == [104980322443988, 114803297127358, 697629524001048]


def test_expected_walks_are_few() -> None:
    for n in (13, 1_000, 10**6, 2**40 + 1):
        low = 1 << ((n - 1).bit_length() // 2)
        assert -(-n // low) * low - n < math.isqrt(n) + 1
