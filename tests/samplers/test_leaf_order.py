"""The permutation is a bijection that looks uniform; leaf orders against a second, slow reading of the rules.

Chi-square tests of the permutation go over many keys, most of all where it is hardest, at small sizes. Each statistic
is (chi-square - d) / sqrt(2 d), which has mean 0 and variance 1 for a uniform permutation; the keys are fixed, so that
a test that passes passes always. The limit of 6 lies far above chance for the number of tests here; 10 rounds instead
of 12 give 10 at n = 16 with 1,000,000 keys, 4 rounds give thousands.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from energon_grain.errors import ConfigError
from energon_grain.samplers import permutation
from energon_grain.samplers.hashing import Column, fold, fold_array
from energon_grain.samplers.leaf_order import LeafOrder, LeafTable, window_blocks
from energon_grain.samplers.permutation import MAX_SIZE, permute, unpermute
from energon_grain.samplers.window_shuffle import WindowShuffle


def perm(n: int, key: int) -> list[int]:
    return permute(np.arange(n), n, key).tolist()


def key(order: LeafOrder, purpose: str, *words: int) -> int:
    result = fold_array(order.key, fold(purpose), *words)
    assert isinstance(result, int)
    return result


def block_order(order: LeafOrder, lap: int) -> list[int]:
    """The values of one lap, block after block."""
    assert order.block
    total = order.n * order.passes
    size = min(order.block, total)
    blocks = [list(range(total))[i : i + size] for i in range(0, total, size)]
    blocks_key = key(order, "blocks", lap)
    short = fold_array(blocks_key, fold("short"))
    assert isinstance(short, int)
    slots = [blocks[i] for i in perm(len(blocks) - 1, blocks_key)] if len(blocks) > 1 else []
    slots.insert(short * len(blocks) >> 64, blocks[-1])
    return [value for slot in slots for value in slot]


def expected_lap(order: LeafOrder, lanes: int, lap: int) -> list[tuple[int, int]]:
    """The draws of one lap, by lists."""
    total = order.n * order.passes
    if order.block is None:
        values = perm(total, key(order, "full", lap))
    else:
        in_blocks = block_order(order, lap)
        lanes = 1 if order.runs else lanes
        blocks = -(-total // min(order.block, total))
        window = min(order.window, blocks) * min(order.block, total)
        stretches: list[list[int]] = []
        start = 0
        for stretch in range(lanes):
            length = total // lanes + (stretch < total % lanes)
            mixed: list[int] = []
            for begin in range(start, start + length, window):
                places = in_blocks[begin : min(begin + window, start + length)]
                mixed += [places[i] for i in perm(len(places), key(order, "window", lap, begin))]
            stretches.append(mixed)
            start += length
        values = [stretches[place % lanes][place // lanes] for place in range(total)]
    return [(value % order.n, lap * order.passes + value // order.n) for value in values]


def expected_lap_as_they_lie(order: LeafOrder, lanes: int, lap: int) -> list[tuple[int, int]]:
    """The same where the source names the blocks."""
    assert order.starts is not None
    total, bounds = order.n * order.passes, order.starts.tolist()
    blocks = [
        list(range(turn * order.n + begin, turn * order.n + end))
        for turn in range(order.passes)
        for begin, end in itertools.pairwise(bounds)
    ]
    slots = [blocks[i] for i in perm(len(blocks), key(order, "blocks", lap))]
    windows = [sum(slots[at : at + order.window], []) for at in range(0, len(slots), order.window)]
    lanes = 1 if order.runs else lanes
    stretches: list[list[int]] = []
    start = 0
    for stretch in range(lanes):
        stop = start + total // lanes + (stretch < total % lanes)
        mixed: list[int] = []
        at = 0
        for window in windows:
            begin, places = max(start, at), window[max(start - at, 0) : max(stop - at, 0)]
            mixed += [places[i] for i in perm(len(places), key(order, "window", lap, begin))] if places else []
            at += len(window)
        stretches.append(mixed)
        start = stop
    values = [stretches[place % lanes][place // lanes] for place in range(total)]
    return [(value % order.n, lap * order.passes + value // order.n) for value in values]


def draws(order: LeafOrder, lanes: int, start: int, stop: int) -> list[tuple[int, int]]:
    index, epoch = LeafTable([order], lanes).draw(0, np.arange(start, stop))
    return list(zip(index.tolist(), epoch.tolist(), strict=True))


ORDERS = [
    (LeafOrder(n=n, key=fold("leaf", n), block=block, window=window, passes=passes, runs=runs), lanes)
    for n, block, window, passes, runs, lanes in itertools.product(
        (1, 2, 10, 17), (None, 1, 4, 100), (1, 3), (1, 3), (False, True), (1, 3)
    )
    if block or (window == 1 and not runs)
]


def test_draws_are_those_of_the_written_rules() -> None:
    for order, lanes in ORDERS:
        total = order.n * order.passes
        assert draws(order, lanes, 0, 2 * total) == expected_lap(order, lanes, 0) + expected_lap(order, lanes, 1), order


AS_THEY_LIE = [
    (LeafOrder(n=sum(sizes), key=fold("lie", *sizes), block=2, starts=np.cumsum([0, *sizes]), **options), lanes)
    for sizes in ([1], [5], [3, 1, 4, 1, 5, 9, 2, 6], [2, 2, 2], [1] * 9)
    for options in ({}, {"window": 3}, {"passes": 3}, {"window": 2, "passes": 2, "runs": True})
    for lanes in (1, 3, 8)
]


@pytest.mark.parametrize(("order", "lanes"), AS_THEY_LIE)
def test_blocks_as_they_lie(order: LeafOrder, lanes: int) -> None:
    total = order.n * order.passes
    drawn = draws(order, lanes, 0, 3 * total)
    expected = [expected_lap_as_they_lie(order, lanes, lap) for lap in range(3)]
    assert drawn == sum(expected, [])
    assert Counter(drawn) == Counter(itertools.product(range(order.n), range(3 * order.passes)))
    table = LeafTable([LeafOrder(n=5, key=1), order, LeafOrder(n=7, key=2, shuffle=False)], lanes)
    child = np.random.default_rng(0).permutation(3 * total)
    leaf = (child % 3).astype(np.int32)
    index, epoch = table.draw(leaf, child)
    for number in range(3):
        own = leaf == number
        one = table.draw(number, child[own])
        assert (index[own].tolist(), epoch[own].tolist()) == (one[0].tolist(), one[1].tolist())
    assert [drawn[at] for at in child[leaf == 1]] == list(
        zip(index[leaf == 1].tolist(), epoch[leaf == 1].tolist(), strict=True)
    )


def test_every_epoch_is_a_permutation() -> None:
    for order, lanes in ORDERS:
        total = order.n * order.passes
        drawn = Counter(draws(order, lanes, 0, 3 * total))
        assert drawn == Counter(itertools.product(range(order.n), range(3 * order.passes))), order


@settings(deadline=None)
@given(st.data())
def test_any_chunk_of_any_mixture_is_drawn_alike(data: st.DataObject) -> None:
    lanes = data.draw(st.integers(1, 12))
    orders = data.draw(
        st.lists(
            st.builds(
                LeafOrder,
                n=st.integers(1, 300) | st.integers(2**40, 2**60),
                key=st.integers(0, 2**64 - 1),
                shuffle=st.booleans(),
                block=st.none() | st.integers(1, 70),
                window=st.integers(1, 3),
                passes=st.integers(1, 3),
                replacement=st.booleans(),
                runs=st.booleans(),
            ),
            min_size=1,
            max_size=5,
        )
    )
    leaf = np.array(data.draw(st.lists(st.integers(0, len(orders) - 1), min_size=1, max_size=30)), dtype=np.int32)
    child = np.array([data.draw(st.integers(0, 3 * orders[i].n)) for i in leaf])
    table = LeafTable(orders, lanes)
    index, epoch = table.draw(leaf, child)
    for i in range(leaf.size):
        one, one_epoch = table.draw(int(leaf[i]), child[i : i + 1])
        assert (int(index[i]), int(epoch[i])) == (int(one[0]), int(one_epoch[0]))
        assert 0 <= index[i] < orders[leaf[i]].n
    known = np.array([not (orders[i].shuffle and orders[i].replacement) for i in leaf])
    assert np.array_equal(table.position_of(leaf[known], index[known], epoch[known]), child[known])
    if not known.all():
        with pytest.raises(ConfigError, match="with replacement"):
            table.position_of(leaf, index, epoch)


@pytest.mark.parametrize("orders", [ORDERS, AS_THEY_LIE], ids=["cut", "stored"])
def test_each_sample_of_each_pass_is_found_at_its_position(orders: list[tuple[LeafOrder, int]]) -> None:
    for order, lanes in orders:
        table = LeafTable([LeafOrder(n=4, key=1), order], lanes)
        index, epoch = np.divmod(np.arange(3 * order.passes * order.n), 3 * order.passes)
        child = table.position_of(1, index, epoch)
        assert np.array_equal(np.sort(child), np.arange(len(child))), order
        drawn = table.draw(1, child)
        assert np.array_equal(drawn[0], index)
        assert np.array_equal(drawn[1], epoch)


@pytest.mark.parametrize("block", [None, 1_000])
def test_positions_of_samples_are_exact_far_away(block: int | None) -> None:
    order = LeafOrder(n=10**9 + 7, key=5, block=block, window=3, passes=3)
    table = LeafTable([order, LeafOrder(n=3, key=4, block=2)], 48)
    child = np.random.default_rng(0).integers(0, 1 << 61, 1_000)
    leaf = (child % 2).astype(np.int32)
    assert np.array_equal(table.position_of(leaf, *table.draw(leaf, child)), child)
    for index, epoch in ((10**9 + 7, 0), (-1, 0), (0, -1)):
        with pytest.raises(IndexError, match="does not exist"):
            table.position_of(0, np.array([index]), np.array([epoch]))


def test_sequential_keeps_the_order() -> None:
    assert draws(LeafOrder(n=3, key=1, shuffle=False, block=2, passes=4), 2, 1, 5) == [(1, 0), (2, 0), (0, 1), (1, 1)]


def test_the_worked_example_has_the_right_shape() -> None:
    order = LeafOrder(n=10, key=1, block=4)
    places = block_order(order, 0)
    given_out = [index for index, _ in draws(order, 2, 0, 10)]
    assert sorted(given_out[0:8:2]) == sorted(places[0:4])
    assert given_out[8] == places[4]
    assert sorted(given_out[1:8:2]) == sorted(places[5:9])
    assert given_out[9] == places[9]


def test_a_lane_reads_runs_of_consecutive_samples() -> None:
    n, block, lanes = 100_000, 100, 48
    index = LeafTable([LeafOrder(n=n, key=3, block=block)], lanes).draw(0, np.arange(n))[0]
    runs = 0
    for lane in range(lanes):
        mine = index[lane::lanes]
        for begin in range(0, mine.size, block):
            window = np.sort(mine[begin : begin + block])
            runs += 1 + int((np.diff(window) != 1).sum())
    assert runs <= 2.1 * n / block
    assert np.abs(np.diff(index)).mean() > 0.3 * n  # neighbours in the stream are far apart: n / 3 if independent


def test_all_starts_and_sizes_of_the_short_block_come_up() -> None:
    slots: Counter[int] = Counter()
    for seed in range(1_000):
        places = block_order(LeafOrder(n=10, key=fold(seed), block=4), 0)
        slots[places.index(8)] += 1
    assert sorted(slots) == [0, 4, 8]
    assert all(270 < count < 400 for count in slots.values())


def test_each_sample_is_equally_likely_at_each_place() -> None:
    """Where windows and blocks divide each other; else the samples at the ends of blocks prefer some places."""
    for block, lanes in ((4, 1), (3, 4), (2, 2), (12, 1)):
        n, keys = 12, 6_000
        orders = [LeafOrder(n=n, key=fold("uniform", i), block=block) for i in range(keys)]
        leaf = np.repeat(np.arange(keys, dtype=np.int32), n)
        index, _ = LeafTable(orders, lanes).draw(leaf, np.tile(np.arange(n), keys))
        counts = np.zeros((n, n), dtype=np.int64)
        np.add.at(counts, (np.tile(np.arange(n), keys), index), 1)
        assert ((counts - keys / n) ** 2 / (keys / n)).sum() < 1.4 * n * n


def test_seed_and_epoch_are_not_added() -> None:
    for block in (None, 10):
        five = [i for i, _ in draws(LeafOrder(n=100, key=fold(5, "leaf"), block=block), 4, 100, 200)]
        six = [i for i, _ in draws(LeafOrder(n=100, key=fold(6, "leaf"), block=block), 4, 0, 100)]
        assert sum(a == b for a, b in zip(five, six, strict=True)) < 10
        assert five != [i for i, _ in draws(LeafOrder(n=100, key=fold(5, "leaf"), block=block), 4, 0, 100)]


@pytest.mark.parametrize("block", [None, 1, 8, 1_000])
@pytest.mark.parametrize("runs", [False, True])
def test_replacement_draws_each_sample_about_equally_often(block: int | None, runs: bool) -> None:
    n, laps = 50, 2_000
    order = LeafOrder(n=n, key=fold("with replacement"), block=block, replacement=True, runs=runs)
    index, epoch = LeafTable([order], 4).draw(0, np.arange(n * laps))
    assert np.array_equal(epoch, np.arange(n * laps) // n)
    counts = np.bincount(index, minlength=n)
    assert np.all(np.abs(counts - laps) < laps * (0.15 if block is None or block < n else 0.01))
    first = np.bincount(index[:n], minlength=n)
    if block is None or block < n:
        assert 20 < int((first > 0).sum()) < 45  # 32 of 50 if independent


def test_replacement_by_blocks_reads_runs() -> None:
    order = LeafOrder(n=1_000, key=1, block=10, replacement=True)
    index = LeafTable([order], 4).draw(0, np.arange(4_000))[0]
    for lane in range(4):
        for begin in range(0, 1_000, 10):
            window = index[lane::4][begin : begin + 10]
            assert any(sorted((window - low) % 1_000) == list(range(10)) for low in window.tolist())


def test_huge_leaves_do_not_overflow() -> None:
    for n, block, passes in ((2**61, 100, 1), (2**60 + 1, 2**40, 3), (2**62, None, 1), (2**62 - 1, 1, 1)):
        order = LeafOrder(n=n, key=7, block=block, passes=passes, window=2**30)
        child = np.concatenate([np.arange(2_000), n * passes - 1_000 + np.arange(2_000)])
        child = child[child < 2**62 + 2**61]
        index, epoch = LeafTable([order], 48).draw(0, child)
        assert np.all((index >= 0) & (index < n))
        assert len(set(zip(index.tolist(), epoch.tolist(), strict=True))) == child.size
        mixed = LeafTable([LeafOrder(n=1, key=0), order], 48)
        leaf = np.ones(child.size, dtype=np.int32)
        leaf[0] = 0
        assert np.array_equal(mixed.draw(leaf, child)[0][1:], index[1:])


def test_nothing_drawn_is_nothing() -> None:
    index, epoch = LeafTable([LeafOrder(n=3, key=1)], 2).draw(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64))
    assert index.size == epoch.size == 0


def test_windows_hold_a_shuffle_buffer() -> None:
    assert window_blocks(block=100, lanes=48, shuffle_buffer_size=100) == 1
    assert window_blocks(block=100, lanes=48, shuffle_buffer_size=4_801) == 2
    assert window_blocks(block=100, lanes=48, shuffle_buffer_size=None, at_least=16) == 16


def test_passes_that_have_no_permutation_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"passes over 3 samples shuffled as one: at most 2\*\*62"):
        LeafOrder(n=3, key=1, passes=2**62)


@dataclass(frozen=True)
class Passes:
    """Passes of a fixed (or fractional) number of positions."""

    samples: Fraction

    def start(self, epoch: int) -> int:
        return int(epoch * self.samples)

    def length(self, epoch: int) -> int:
        return self.start(epoch + 1) - self.start(epoch)

    def epoch_at(self, position: int) -> int:
        epoch = 0
        while self.start(epoch + 1) <= position:
            epoch += 1
        return epoch


def route(shuffle: WindowShuffle, positions: object) -> list[int]:
    child, below = shuffle.route(np.asarray(positions, np.int64))
    assert child.dtype == np.int32
    assert not child.any()
    return below.tolist()


@settings(max_examples=60)
@given(window=st.integers(1, 40), key=st.integers(0, 2**64 - 1), first=st.integers(0, 2**40))
def test_endless_windows_are_permuted_each(window: int, key: int, first: int) -> None:
    shuffle = WindowShuffle(window, key=key, passes=None)
    first = first // window * window
    below = route(shuffle, np.arange(first, first + 5 * window))
    for at in range(0, 5 * window, window):
        assert sorted(below[at : at + window]) == list(range(first + at, first + at + window))


@settings(max_examples=60)
@given(
    window=st.integers(1, 12),
    key=st.integers(0, 2**64 - 1),
    samples=st.fractions(min_value=Fraction(1, 3), max_value=30, max_denominator=7),
)
def test_a_pass_keeps_its_positions(window: int, key: int, samples: Fraction) -> None:
    """Windows begin with each pass, and the last one of a pass is shorter; passes may be empty."""
    passes = Passes(samples)
    shuffle = WindowShuffle(window, key=key, passes=passes)
    below = route(shuffle, np.arange(passes.start(6)))
    for epoch in range(6):
        start, stop = passes.start(epoch), passes.start(epoch + 1)
        for first in range(start, stop, window):
            last = min(first + window, stop)
            assert sorted(below[first:last]) == list(range(first, last))


@settings(max_examples=40)
@given(
    window=st.integers(1, 12),
    samples=st.none() | st.fractions(min_value=Fraction(1, 3), max_value=30, max_denominator=7),
    asked=st.lists(st.integers(0, 150), min_size=1, max_size=40),
)
def test_any_positions_in_any_order(window: int, samples: Fraction | None, asked: list[int]) -> None:
    passes = None if samples is None else Passes(samples)
    shuffle = WindowShuffle(window, key=7, passes=passes)
    whole = route(shuffle, np.arange(151))
    assert route(shuffle, asked) == [whole[position] for position in asked]
    assert [route(shuffle, [position])[0] for position in asked] == [whole[position] for position in asked]


def test_no_position_at_all() -> None:
    for passes in (None, Passes(Fraction(5))):
        assert route(WindowShuffle(4, key=1, passes=passes), []) == []


def test_short_passes_far_apart() -> None:
    """More passes between two positions than positions that are asked for."""
    shuffle = WindowShuffle(4, key=3, passes=Passes(Fraction(2)))
    below = route(shuffle, [0, 1, 900, 901, 902, 903])
    assert [sorted(below[at : at + 2]) for at in (0, 2, 4)] == [[0, 1], [900, 901], [902, 903]]


def test_windows_and_keys_have_orders_of_their_own() -> None:
    orders = {
        tuple(place - first for place in route(WindowShuffle(50, key=key, passes=None), np.arange(first, first + 50)))
        for key in range(10)
        for first in range(0, 500, 50)
    }
    assert len(orders) == 100


def test_every_order_of_a_window_is_as_likely() -> None:
    below = np.array(route(WindowShuffle(3, key=11, passes=None), np.arange(3 * 6000))).reshape(-1, 3)
    counts = Counter(map(tuple, (below % 3).tolist()))
    assert len(counts) == 6
    chi_squared = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert chi_squared < 20  # of 5 degrees of freedom: 1 in 800


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
