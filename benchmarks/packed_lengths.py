"""Lengths in tokens that packers are compared on; the same numbers for the same name. Only numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.contents import text
from benchmarks.token_packing import CAPACITY

BUFFER = 100  # samples that are candidates at once
_SAMPLES = 6_000

Lengths = npt.NDArray[np.int64]  # (6,000,)


def _texts() -> Lengths:
    """lengths of the 1 KB texts in words (130 to 184)"""
    return np.array([len(parts["txt"].split()) for _, parts in text(0, _SAMPLES)], np.int64)


def _documents() -> Lengths:
    """log-normal lengths as documents have them (median 521, 24 to 4,096)"""
    lengths = np.random.default_rng(6).lognormal(np.log(CAPACITY / 8), 0.9, _SAMPLES)
    return lengths.clip(1, CAPACITY).astype(np.int64)


def _uniform() -> Lengths:
    """uniform lengths from 1 to 4,096, the hardest to pack"""
    return np.random.default_rng(7).integers(1, CAPACITY + 1, _SAMPLES)


LENGTHS: dict[str, Callable[[], Lengths]] = {"texts": _texts, "documents": _documents, "uniform": _uniform}


def bins_of_a_buffer(lengths: Lengths) -> int:
    """The packs that hold as many tokens as a buffer of samples, rounded up."""
    return -(-BUFFER * int(lengths.sum()) // (len(lengths) * CAPACITY))
