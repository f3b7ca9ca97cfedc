"""Keys by the reference vectors of splitmix64; exact products and weights; items divided by cost."""

from __future__ import annotations

import itertools
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from benchmarks.balance import LAWS, SHAPES, bound, loads
from energon_grain import Balance
from energon_grain.errors import ConfigError
from energon_grain.planning.balance import divide
from energon_grain.samplers.columns import divide_product, scaled
from energon_grain.samplers.hashing import GAMMA, fold, fold_array, splitmix64, splitmix64_int
from energon_grain.samplers.weights import MAX_TOTAL, Weight, exact, integer_weights

# First outputs of splitmix64.c for the state 1234567.
REFERENCE = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]


def test_splitmix64_gives_the_reference_sequence() -> None:
    states = [(1234567 + i * GAMMA) % 2**64 for i in range(5)]
    assert splitmix64(np.array(states, dtype=np.uint64)).tolist() == REFERENCE
    assert [splitmix64_int(state) for state in states] == REFERENCE


def test_keys_do_not_change_between_versions() -> None:
    assert fold(5, "data/train", "blocks", 1) == 0x255628E6CDA1376F
    assert fold(-1, b"x", 2**70) == 0x1FC3A7F1EDBCF5D5


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5))
def test_fold_array_goes_on_folding(words: list[int]) -> None:
    expected = fold(*words)
    for split in range(1, len(words) + 1):
        head, tail = fold(*words[:split]), words[split:]
        assert fold_array(head, *tail) == expected
        arrays = [np.array([word, word], dtype=np.uint64) for word in tail]
        assert np.all(np.asarray(fold_array(head, *arrays)) == np.uint64(expected))
        keys = np.array([head, head], dtype=np.uint64)
        assert np.all(np.asarray(fold_array(keys, *tail)) == np.uint64(expected))


def test_small_words_in_any_place_give_different_keys() -> None:
    words: list[int | str | bytes] = [*range(12), -1, 2**64, "", "a", "0", "1", b"", b"a", b"1"]
    folds = [w for length in (1, 2, 3) for w in itertools.product(words, repeat=length)]
    assert len({fold(*w) for w in folds}) == len(folds)


def test_the_next_epoch_is_not_the_next_seed() -> None:
    assert fold(5, "leaf", 1) != fold(6, "leaf", 0)
    assert fold("ab", "c") != fold("a", "bc")


@pytest.mark.parametrize("bit", range(0, 64, 7))
def test_each_bit_of_a_word_changes_half_the_bits_of_the_key(bit: int) -> None:
    words = np.arange(20_000, dtype=np.uint64)
    change = np.asarray(fold_array(fold("avalanche"), words)) ^ np.asarray(
        fold_array(fold("avalanche"), words ^ np.uint64(1 << bit))
    )
    share = np.array([((change >> np.uint64(i)) & np.uint64(1)).mean() for i in range(64)])
    assert np.all(np.abs(share - 0.5) < 0.02)  # standard deviation 0.0035


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**63))
def test_scaled_is_the_exact_high_word(x: int, n: int) -> None:
    array = np.array([x], dtype=np.uint64)
    assert int(scaled(array, n)[0]) == x * n >> 64
    assert int(scaled(x, np.array([n], dtype=np.uint64))[0]) == x * n >> 64


sizes = st.one_of(*(st.integers(0, 2**bits - 1) for bits in (8, 31, 40, 55, 61)))


@given(sizes, st.data(), sizes)
@example(2**61 - 1, None, 2**61 - 1)
def test_products_are_divided_exactly(a: int, data: st.DataObject | None, plus: int) -> None:
    divisor = max(a, 1) if data is None else data.draw(st.integers(max(a, 1), 2**61 - 1))  # so the quotient stays small
    b = 2**61 - 1 if data is None else data.draw(sizes)
    arrays = (np.array([x], dtype=np.uint64) for x in (a, b, divisor, plus))
    quotient, rest = divide_product(*arrays)
    assert (int(quotient[0]), int(rest[0])) == divmod(a * b + plus, divisor)


def test_exact_multiples_are_not_rounded() -> None:
    rng = np.random.default_rng(0)
    divisor = rng.integers(2**45, 2**55, 100_000).astype(np.uint64)
    b = rng.integers(2**40, 2**55, 100_000).astype(np.uint64)
    for plus in (0, 1):
        quotient, rest = divide_product(divisor, b, divisor, plus)
        assert np.array_equal(quotient, b)
        assert np.all(rest == np.uint64(plus))


@pytest.mark.parametrize(
    ("weights", "integers"),
    [
        ([1], (1,)),
        ([0.7, "0.2", Decimal("0.1")], (7, 2, 1)),
        ([np.float64(0.1), 0.3], (1, 3)),
        ([np.float32(0.1), np.float16(0.3)], (1, 3)),
        ([Fraction(1, 3), 1, np.int64(2)], (1, 3, 6)),
        ([1e-3, "1/8"], (1, 125)),
        ([100, 200.0], (1, 2)),
    ],
)
def test_decimal_text_counts_as_written(weights: list[Weight], integers: tuple[int, ...]) -> None:
    assert integer_weights(weights) == integers


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_totals_are_bounded_and_shares_close(weights: list[float]) -> None:
    try:
        integers = integer_weights(weights)
    except ConfigError:
        assert min(weights) / sum(weights) < 1 / MAX_TOTAL
        return
    total = sum(integers)
    assert total <= MAX_TOTAL
    for weight, integer in zip(weights, integers, strict=True):
        assert abs(integer / total - weight / sum(weights)) < 1e-8


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -1], "negative"),
        ([1, float("nan")], "not a finite"),
        (["inf"], "not a finite"),
        (["many"], "not a finite"),
        ([None], "not a finite"),
        ([1, 1e-12], "weight 1 of 2, 1e-12, .* rounds to zero"),
    ],
)
def test_impossible_weights_are_refused(weights: list[Weight], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        integer_weights(weights)


def test_a_schedule_may_pause_a_child() -> None:
    assert integer_weights([0, 0.5]) == (0, 1)
    assert exact("0.10") == Fraction(1, 10)
    with pytest.raises(ConfigError, match="repetitions 'x'"):
        exact("x", "repetitions")


@given(
    costs=st.integers(1, 7).flatmap(
        lambda parts: st.tuples(
            st.just(parts),
            st.integers(1, 12).flatmap(
                lambda size: st.lists(
                    st.lists(st.integers(0, 1 << 52), min_size=parts * size, max_size=parts * size),
                    min_size=1,
                    max_size=3,
                )
            ),
        )
    )
)
def test_each_item_once_and_as_many_in_each_part(costs: tuple[int, list[list[int]]]) -> None:
    parts, rows = costs
    found = divide(np.array(rows), parts)
    size = len(rows[0]) // parts
    assert found.shape == (len(rows), parts, size)
    assert (np.sort(found.reshape(len(rows), -1), axis=1) == np.arange(parts * size)).all()
    assert (np.diff(found, axis=2) > 0).all()
    # A step by itself, and beside others.
    assert (np.concatenate([divide(np.array([row]), parts) for row in rows]) == found).all()


@given(st.lists(st.integers(1, 40), min_size=8, max_size=8), st.sampled_from([2, 4]))
def test_hardly_worse_than_the_best_of_all_divisions(costs: list[int], parts: int) -> None:
    size = len(costs) // parts

    def best(left: frozenset[int]) -> int:
        if not left:
            return 0
        first, *others = sorted(left)
        return min(
            max(costs[first] + sum(costs[each] for each in chosen), best(left - {first, *chosen}))
            for chosen in itertools.combinations(others, size - 1)
        )

    found = loads(np.array([costs]), divide(np.array([costs]), parts)).max()
    least = best(frozenset(range(len(costs))))
    assert bound(np.array([costs]), parts)[0] <= least <= found <= least * 1.2 + 2


@pytest.mark.parametrize(("parts", "size"), SHAPES)
@pytest.mark.parametrize("law", LAWS)
def test_the_largest_part_is_within_three_hundredths_of_what_is_possible(law: str, parts: int, size: int) -> None:
    costs = LAWS[law](20 * parts * size).reshape(20, -1)
    largest = loads(costs, divide(costs, parts)).max(axis=1)
    assert (largest / bound(costs, parts)).mean() < 1.03


def test_equal_costs_leave_items_where_they_are() -> None:
    assert (divide(np.full((2, 12), 5), 4) == np.arange(12).reshape(3, 4).T).all()
    assert (divide(np.zeros((1, 12), np.int64), 1) == np.arange(12)).all()


def test_costs_that_hardly_fit_into_64_bits() -> None:
    costs = np.array([[1 << 62, 3, (1 << 62) - 1, 5]])
    assert divide(costs, 2).tolist() in ([[[0, 3], [1, 2]]], [[[0, 1], [2, 3]]], [[[1, 2], [0, 3]]])


def test_what_is_no_balance_is_refused() -> None:
    assert Balance("( tokens )+bytes").by == "tokens + bytes"
    for micro_batches in (0, -1, 1.5, True, "2"):
        with pytest.raises(ConfigError, match=r"micro_batches=.*expected a positive number of parts"):
            Balance("tokens", micro_batches=micro_batches)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="balance"):
        Balance("tokens +")
