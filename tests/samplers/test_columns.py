"""Exact integer arithmetic in 64 bits."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, strategies as st

from energon_grain.samplers.columns import divide_product, scaled


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
