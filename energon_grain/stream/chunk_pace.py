"""How many samples make a chunk, so that none takes long: `close`, Ctrl-C and the first batch wait for whole chunks."""

from __future__ import annotations

import time
from collections.abc import Callable

from energon_grain.stream.chunk import Chunk, Encoded

MAX_CHUNK = 8_192
"""Samples that are read at once, of few leaves."""
SAMPLES_OF_A_LEAF = 16
"""Samples that are read at once, of many leaves for each of them: a call for each costs as much as these take."""
CHUNK_SECONDS = 0.1
"""A chunk is cut so that it takes about this long at most (slow hooks, large pictures)."""
LEAF_SECONDS = 1e-4
"""So much longer for each leaf: with fewer samples of each a chunk of many leaves hardly ends sooner."""
CHUNK_BYTES = 16 << 20
"""A chunk is cut so that its samples hold about this much memory: smaller ones cost numpy calls, larger ones caches."""


class ChunkPace:
    """Learns the size of chunks from the time that the last one took. It changes speed alone, never what is made.

    Args:
        first: Size of the first chunks; small, so that the first batch does not wait for more than itself.
        leaves: How many the samples are of.

    Attributes:
        samples: What a chunk may hold at most now.
        size_bytes: What it may take to read at most now, so that it holds `CHUNK_BYTES` once it is decoded.
    """

    def __init__(self, first: int, leaves: int = 1) -> None:
        self._most = max(MAX_CHUNK, SAMPLES_OF_A_LEAF * leaves)
        self._seconds = CHUNK_SECONDS + LEAF_SECONDS * (leaves - 1)
        self.samples = min(first, self._most)
        self.size_bytes = CHUNK_BYTES

    def timed(self, run: Callable[[Chunk], Encoded]) -> Callable[[Chunk], Encoded]:
        """`run`, with each call's time learnt from. It begins when what is fetched ahead is there."""

        def measure(chunk: Chunk) -> Encoded:
            if chunk.arrival is not None:
                chunk.arrival.wait()
            start = time.perf_counter()
            encoded = run(chunk)
            self.learn(chunk, encoded, time.perf_counter() - start)
            return encoded

        return measure

    def learn(self, chunk: Chunk, encoded: Encoded, seconds: float) -> None:
        """Take in that encoding a chunk took so long."""
        fitting = len(chunk.draws) * self._seconds / max(seconds, 1e-6)
        self.samples = max(1, min(self._most, 2 * self.samples, int(fitting)))
        self.size_bytes = CHUNK_BYTES * max(1, chunk.size_bytes) // max(1, encoded.size_bytes, chunk.size_bytes)
