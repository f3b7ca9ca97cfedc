"""The permutation is a bijection for every size, has an inverse, and looks uniform.

Chi-square tests go over many keys, most of all where it is hardest, at small sizes. Each statistic is
(chi-square - d) / sqrt(2 d), which has mean 0 and variance 1 for a uniform permutation; the keys are fixed, so that a
test that passes passes always. The limit of 6 lies far above chance for the number of tests here; 10 rounds instead of
12 give 10 at n = 16 with 1,000,000 keys, 4 rounds give thousands.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from energon_grain.samplers import permutation
from energon_grain.samplers.hashing import Column, fold, fold_array
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


LIMIT = 6.0


def keys(name: str, count: int) -> Column:
    return fold_array(fold(name), np.arange(count, dtype=np.uint64))


def excess(counts: npt.NDArray[np.int64]) -> float:
    freedom = counts.size - 1
    expected = counts.sum() / counts.size
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def images(n: int, at: int, key: Column, count: int) -> npt.NDArray[np.int64]:
    return permute(np.full(count, at), n, key)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7])
def test_all_orders_of_a_small_set_come_up_equally_often(n: int) -> None:
    count = 200_000
    key = keys("orders", count)
    code = np.zeros(count, dtype=np.int64)
    for at in range(n):
        code = code * n + images(n, at, key, count)
    seen, counts = np.unique(code, return_counts=True)
    assert seen.size == math.factorial(n)
    assert excess(counts) < LIMIT


@pytest.mark.parametrize("n", [5, 8, 9, 12, 13, 16, 17, 25, 32, 33, 49, 64, 65, 100, 128, 255, 256, 257])
def test_neighbours_are_independent(n: int) -> None:
    count = 200_000
    low = 1 << ((n - 1).bit_length() // 2)
    for distance in sorted({1, low, n // 2}):
        key = keys(f"distance {distance}", count)
        first, second = images(n, 0, key, count), images(n, distance, key, count)
        assert excess(np.bincount((second - first) % n, minlength=n)[1:]) < LIMIT, distance
        if n <= 65:
            pairs = np.bincount(first * n + second, minlength=n * n).reshape(n, n)
            assert excess(pairs[~np.eye(n, dtype=bool)]) < LIMIT, distance


def test_fewer_rounds_would_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permutation, "ROUNDS", 4)
    key = keys("distance 1", 100_000)
    for n in (5, 64):
        difference = (images(n, 1, key, 100_000) - images(n, 0, key, 100_000)) % n
        assert excess(np.bincount(difference, minlength=n)[1:]) > 50


@pytest.mark.parametrize("n", [9, 16, 25, 49, 50])
def test_half_of_all_orders_are_odd(n: int) -> None:
    odd = 0
    for number in range(400):
        order = permute(np.arange(n), n, fold("parity", number)).tolist()
        odd += sum(a > b for a, b in itertools.combinations(order, 2)) % 2
    assert 140 < odd < 260  # 200, standard deviation 10


@pytest.mark.parametrize("n", [1_000, 10**6 + 3, 2**40 + 7, 2**62])
def test_one_order_of_a_large_set_has_no_pattern(n: int) -> None:
    at = np.arange(300_000) % n
    for seed in range(3):
        key = (
            fold("large", seed)
            if n > 300_000
            else fold_array(fold("large", seed), (np.arange(300_000) // n).astype(np.uint64))
        )
        image = permute(at, n, key)
        cells = 250  # of equal size but for rounding
        for values in (image, np.diff(image) % n, np.diff(image[::64]) % n):
            assert excess(np.bincount((values * (cells / n)).astype(np.int64).clip(0, cells - 1))) < LIMIT


@pytest.mark.parametrize("n", [5, 64, 1_000])
def test_orders_of_successive_epochs_and_seeds_are_independent(n: int) -> None:
    count = 100_000
    number = np.arange(count, dtype=np.uint64)
    at = np.arange(count) % n
    for first, second in (
        (fold_array(fold("leaf"), number), fold_array(fold("leaf"), number + np.uint64(1))),
        (fold_array(fold("leaf"), number, 1), fold_array(fold("leaf"), number + np.uint64(1), 0)),
        (number, number + np.uint64(1)),  # keys that nobody folded
    ):
        difference = (permute(at, n, first) - permute(at, n, second)) % n
        assert excess(np.bincount(difference, minlength=n)) < LIMIT
    assert permute(np.arange(n), n, fold(5, 1)).tolist() != permute(np.arange(n), n, fold(6, 0)).tolist()
