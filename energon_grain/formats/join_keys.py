"""Hashes of keys in numpy: what a join by key looks at first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from energon_grain.formats.key_order import KeyWords
from energon_grain.samplers.hashing import GAMMA, splitmix64

_WORD_BYTES = 8


def hash_keys(words: KeyWords, rows: npt.NDArray[np.int64], *, seed: int = 0, bits: int = 64) -> npt.NDArray[np.uint64]:
    """Hash the keys of `rows`: equal keys have equal hashes, others almost never.

    Some two of 100 million keys have the same hash with a chance of 1 in 3,700.

    Args:
        words: The keys.
        rows: (n,) their numbers.
        seed: Another seed gives other hashes.
        bits: Upper bits that are kept, the others are 0.

    Returns:
        (n,) hashes.
    """
    begin, length = words.spans(rows)
    hashed = splitmix64(length.astype(np.uint64) + np.uint64(seed * GAMMA % (1 << 64)))
    longest, shortest = (int(length.max()), int(length.min())) if len(length) else (0, 0)
    for depth in range(0, longest, _WORD_BYTES):
        if depth < shortest:
            hashed = splitmix64(hashed ^ words.word(begin + depth, length - depth))
        else:
            places = np.flatnonzero(length > depth)
            word = words.word(begin[places] + depth, length[places] - depth)
            hashed[places] = splitmix64(hashed[places] ^ word)
    if bits < 64:
        hashed &= np.uint64((1 << 64) - (1 << (64 - bits)))
    return hashed
