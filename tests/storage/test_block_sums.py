"""Check sums of blocks: what they find, and that the last block may be short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from energon_grain.storage.block_sums import PAGE_BYTES, block_sums

BLOCK = 4 * PAGE_BYTES
DATA = np.random.default_rng(1).bytes(3 * BLOCK)


def test_each_block_has_its_own_sum_wherever_it_lies() -> None:
    sums = block_sums(DATA, BLOCK)
    assert sums.tolist() == [int(block_sums(DATA[at : at + BLOCK], BLOCK)[0]) for at in range(0, len(DATA), BLOCK)]
    assert len(set(sums.tolist())) == 3


@pytest.mark.parametrize("size", [0, 1, 7, 8, PAGE_BYTES, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
def test_a_short_block_is_summed_as_if_zeros_followed(size: int) -> None:
    sums = block_sums(memoryview(DATA)[:size], BLOCK)
    padded = DATA[:size].ljust(-(-size // BLOCK) * BLOCK, b"\0")
    assert sums.tolist() == block_sums(padded, BLOCK).tolist()


def test_no_sum_is_the_mark_of_an_absent_block() -> None:
    assert block_sums(bytes(2 * BLOCK), BLOCK).all()


@pytest.mark.parametrize("page", range(4))
def test_zeroed_and_old_pages_are_found(page: int) -> None:
    block, other = DATA[:BLOCK], DATA[BLOCK : 2 * BLOCK]
    start, stop = page * PAGE_BYTES, (page + 1) * PAGE_BYTES
    for wrong in (bytes(PAGE_BYTES), other[start:stop]):
        damaged = block[:start] + wrong + block[stop:]
        assert block_sums(damaged, BLOCK) != block_sums(block, BLOCK)


def test_pages_that_change_places_are_found() -> None:
    block = DATA[:BLOCK]
    assert block_sums(block[PAGE_BYTES:] + block[:PAGE_BYTES], BLOCK) != block_sums(block, BLOCK)


@given(st.integers(0, BLOCK - 1), st.integers(1, 255))
def test_any_wrong_byte_is_found(at: int, flip: int) -> None:
    damaged = bytearray(DATA[:BLOCK])
    damaged[at] ^= flip
    assert block_sums(damaged, BLOCK) != block_sums(DATA[:BLOCK], BLOCK)
