# SPDX-License-Identifier: Apache-2.0
"""Keys by hashing: every random choice has a 64-bit key derived from the words that name it.

A key is `fold(seed, leaf_key, "purpose", epoch, ...)`, never a sum: with `seed + epoch`, the second epoch of seed 5
would be the first of seed 6. `fold` uses one splitmix64 step per word, so for fixed other words, two different 64-bit
integers in one place never have the same key.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with the constants of
Stafford's variant 13, as in java.util.SplittableRandom and in the public-domain splitmix64.c of S. Vigna.
"""

from __future__ import annotations

import hashlib
import operator
from typing import SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from energon_grain.samplers.columns import Column

GAMMA = 0x9E3779B97F4A7C15
"""Step of the splitmix64 state: 2**64 over the golden ratio, odd."""
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB
MASK64 = 0xFFFF_FFFF_FFFF_FFFF

Word = SupportsIndex | str | bytes
_START = 0x656E_6572_676F_6E21


def splitmix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the splitmix64 output after state `x`, element by element: a bijection of the 64-bit integers.

    Returns:
        A new array of the shape of `x`. `splitmix64([1234567])` is `[6457827717110365317]`.
    """
    z = x + np.uint64(GAMMA)
    z ^= z >> np.uint64(30)
    z *= np.uint64(MULTIPLIER_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(MULTIPLIER_2)
    z ^= z >> np.uint64(31)
    return z


def splitmix64_int(x: int) -> int:
    """Return the splitmix64 output after state `x` (taken modulo 2**64), as a Python integer."""
    z = (x + GAMMA) & MASK64
    z = ((z ^ (z >> 30)) * MULTIPLIER_1) & MASK64
    z = ((z ^ (z >> 27)) * MULTIPLIER_2) & MASK64
    return z ^ (z >> 31)


def fold(*words: Word) -> int:
    """Hash words, in order, into one key in [0, 2**64).

    Integers in [0, 2**64) are used directly. Other integers, strings (UTF-8) and bytes are replaced by an 8-byte
    BLAKE2b digest tagged with their kind. `fold(fold(a), b)` differs from `fold(a, b)`. To continue from a key, use
    `fold_array(key, b)`, which equals `fold(a, b)` for `key = fold(a)`. The result is the same on every machine.
    """
    key = _START
    for word in words:
        key = splitmix64_int(key ^ word_value(word))
    return key


@overload
def fold_array(key: int, *words: int) -> int: ...
@overload
def fold_array(key: Column, *words: Column) -> Column: ...
def fold_array(key: Column, *words: Column) -> Column:
    """Continue folding integer words into `key`, element by element.

    Args:
        key: one key, or an array of keys.
        words: integers in [0, 2**64), or arrays of them; all arrays have the same shape.

    Returns:
        An integer if all arguments are integers, otherwise an array. Element i equals
        `fold(..., word_1[i], word_2[i], ...)` if `key` is the fold of the words before.
    """
    for word in words:
        if isinstance(key, int) and isinstance(word, int):
            key = splitmix64_int(key ^ word)
        elif isinstance(key, int):
            key = splitmix64(np.bitwise_xor(word, np.uint64(key)))
        else:
            key = splitmix64(key ^ np.asarray(word, dtype=np.uint64))
    return key


def word_value(word: Word) -> int:
    """Return the 64-bit integer that represents a word in `fold`."""
    if isinstance(word, str):
        return _digest(b"s", word.encode("utf-8", "surrogateescape"))
    if isinstance(word, bytes):
        return _digest(b"b", word)
    number = operator.index(word)
    if 0 <= number <= MASK64:
        return number
    return _digest(b"i", str(number).encode())


def _digest(kind: bytes, data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=b"energon-" + kind).digest(), "little")
