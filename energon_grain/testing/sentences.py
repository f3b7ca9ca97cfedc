"""Made-up sentences."""

from __future__ import annotations

import numpy as np

_VOCABULARY = (
    "a the one some every old new small bright quiet river mountain teacher garden window letter morning engine "
    "crosses finds follows opens paints carries remembers counts between under over beside without several stones "
    "birds houses questions answers größe façade naïve 東京 лес"
)
_WORDS = _VOCABULARY.split()


def make_sentence(rng: np.random.Generator, least: int = 4, most: int = 12) -> str:
    """Return a sentence of `least` to `most` words, some of them not ASCII."""
    count = int(rng.integers(least, most + 1))
    return " ".join(_WORDS[int(place)] for place in rng.integers(0, len(_WORDS), count)).capitalize() + "."


def make_text(rng: np.random.Generator, least_bytes: int) -> str:
    """Return sentences of at least `least_bytes` bytes together, UTF-8 encoded, and less than 120 bytes more."""
    sentences: list[str] = []
    size = 0
    while size < least_bytes or not sentences:
        sentences.append(make_sentence(rng))
        size += len(sentences[-1].encode()) + 1
    return " ".join(sentences)
