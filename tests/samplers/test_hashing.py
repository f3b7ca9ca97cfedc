"""Keys: the reference vectors of splitmix64, and that no two sets of words share a key."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from energon_grain.samplers.hashing import GAMMA, fold, fold_array, splitmix64, splitmix64_int

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
