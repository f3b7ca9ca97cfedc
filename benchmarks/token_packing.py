"""Text to tokens to packs of 4,096 (the same code for energon-grain and for Megatron-Energon), and lengths to pack.

Needs only numpy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.contents import prose, text

CAPACITY = 4096
BUFFER = 100  # samples that are candidates at a time
_SAMPLES = 6_000

Lengths = npt.NDArray[np.int64]  # (6,000,)


@cache
def _vocabulary() -> dict[str, int]:
    return {word: number for number, word in enumerate(sorted(set(prose().decode().split())), 1)}


def prepare_vocabulary() -> None:
    """Count the words before timing begins."""
    _vocabulary()


def tokenize(text: str) -> npt.NDArray[np.int32]:  # (words,)
    """Return the numbers of the words between white space; 0 for a word that was cut off."""
    number = _vocabulary().get
    return np.array([number(word, 0) for word in text.split()], np.int32)


def greedy_packs(samples: list[Any]) -> list[list[Any]]:
    """Fill pack after pack, each with the longest samples that still fit."""
    left = sorted(samples, key=lambda sample: len(sample.tokens))
    sizes = [len(sample.tokens) for sample in left]
    packs: list[list[Any]] = []
    while left:
        pack: list[Any] = []
        available, end = CAPACITY, len(left)
        while end:
            pack.append(left.pop(end - 1))
            available -= sizes.pop(end - 1)
            end = bisect_right(sizes, available, 0, end - 1)
        packs.append(pack)
    return packs


def join(arrays: list[npt.NDArray[np.int32]]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Concatenate the tokens, padded with zeros to `CAPACITY`; also return each token's sample number, from 1."""
    tokens = np.zeros(CAPACITY, np.int32)
    segments = np.zeros(CAPACITY, np.int32)
    sizes = [len(array) for array in arrays]
    filled = sum(sizes)
    np.concatenate(arrays, out=tokens[:filled])
    segments[:filled] = np.repeat(np.arange(1, len(sizes) + 1, dtype=np.int32), sizes)
    return tokens, segments


def _texts() -> Lengths:
    """lengths of the 1 KB texts in words (130 to 184)"""
    return np.array([len(parts["txt"].split()) for _, parts in text(0, _SAMPLES)], np.int64)


def _documents() -> Lengths:
    """log-normal lengths, as documents have them (median 521, 24 to 4,096)"""
    lengths = np.random.default_rng(6).lognormal(np.log(CAPACITY / 8), 0.9, _SAMPLES)
    return lengths.clip(1, CAPACITY).astype(np.int64)


def _uniform() -> Lengths:
    """uniform lengths from 1 to 4,096, the hardest to pack"""
    return np.random.default_rng(7).integers(1, CAPACITY + 1, _SAMPLES)


LENGTHS: dict[str, Callable[[], Lengths]] = {"texts": _texts, "documents": _documents, "uniform": _uniform}
"""The token lengths that packers are compared on; a name always gives the same numbers."""


def bins_of_buffer(lengths: Lengths) -> int:
    """Return the number of packs that hold as many tokens as a buffer of samples, rounded up."""
    return -(-BUFFER * int(lengths.sum()) // (len(lengths) * CAPACITY))


LAWS: dict[str, Callable[[np.random.Generator, int], Lengths]] = {
    "Zipf 1.2": lambda chance, n: np.minimum(chance.zipf(1.2, n), 1 << 15).astype(np.int64),
    "log-normal": lambda chance, n: np.clip(chance.lognormal(6.2, 1.1, n), 16, 8192).astype(np.int64),
    "uniform": lambda chance, n: chance.integers(1, CAPACITY + 1, n),
}
"""Distributions of sample costs for the benchmarks of plans: (n,) tokens."""
