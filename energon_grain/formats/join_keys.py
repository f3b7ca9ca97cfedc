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
    length = words.lengths(rows)
    hashed = splitmix64(length.astype(np.uint64) + np.uint64(seed * GAMMA % (1 << 64)))
    longest = int(length.max()) if len(length) else 0
    for depth in range(0, longest, _WORD_BYTES):
        going_on = length > depth
        if going_on.all():
            hashed = splitmix64(hashed ^ words.at(rows, depth))
        else:
            places = np.flatnonzero(going_on)
            hashed[places] = splitmix64(hashed[places] ^ words.at(rows[places], depth))
    if bits < 64:
        hashed &= np.uint64((1 << 64) - (1 << (64 - bits)))
    return hashed
