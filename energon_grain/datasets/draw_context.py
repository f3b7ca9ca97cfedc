"""What a hook may know about the sample (or batch) that it works on: its draw, and its own random numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from energon_grain.samplers.hashing import fold

if TYPE_CHECKING:
    import numpy as np


class Positions(Protocol):
    """A position at each place."""

    def __getitem__(self, place: int, /) -> int: ...


class Draw:
    """The draw behind the current call of a hook.

    The stream makes one for a whole chunk of samples and moves `place` along, which costs nothing that a hook does not
    ask for.
    """

    __slots__ = ("_batch", "_epochs", "_generator", "_generator_place", "_indices", "_key", "_positions", "place")

    def __init__(
        self,
        key: int,
        positions: Positions,
        indices: list[int],
        epochs: list[int],
        batch_index: int | Callable[[int], int] | None = None,
    ) -> None:
        self._key = key
        self._positions = positions
        self._indices = indices
        self._epochs = epochs
        self._batch = batch_index
        self.place = 0
        self._generator: np.random.Generator | None = None
        self._generator_place = -1

    @property
    def position(self) -> int:
        """Position in the leaf's own stream (sample hooks), or the number of the batch's first item (batch hooks)."""
        return self._positions[self.place]

    @property
    def index(self) -> int:
        """Index of the sample in its leaf; -1 in batch hooks."""
        return self._indices[self.place]

    @property
    def epoch(self) -> int:
        """Pass over the leaf (0, 1, …) that this sample belongs to; in batch hooks, the pass of a finite stream."""
        return self._epochs[self.place]

    @property
    def batch_index(self) -> int:
        """Number of the batch that is being made, on this host and in this pass (or in the endless stream).

        In hooks on samples: of the batch that the sample belongs to unless samples before it are dropped. In a
        generator hook: of the batch for which the value is made, asked anew for each value; a value that is made again
        for a saved state or a restore key gets the number that it got first.

        Raises:
            RuntimeError: The sample is read ahead of a generator, filter, packer or the like, so nobody can tell yet.
        """
        if self._batch is None:
            raise RuntimeError(
                "the number of the batch is not known in this hook: its samples go through generators, filters, groups "
                "or packs before they become batches. Use current_sample_index, or `rng` for random numbers"
            )
        return self._batch if isinstance(self._batch, int) else self._batch(self.place)

    @property
    def seed(self) -> int:
        """64-bit key of this draw's random numbers: a hash of (seed, leaf, position, hook)."""
        return fold(self._key, self.position)

    @property
    def rng(self) -> np.random.Generator:
        """The generator of this draw, made when first asked for. Equal draws give equal numbers, wherever they run."""
        if self._generator is None or self._generator_place != self.place:
            import numpy as np

            self._generator = np.random.Generator(np.random.Philox(key=self.seed))
            self._generator_place = self.place
        return self._generator


class _Current(threading.local):
    draw: Draw | None = None


current = _Current()
"""The running hook's draw, one a thread. The stream sets it; hooks read it through `current_draw`."""


def current_draw() -> Draw:
    """The draw that the running hook works on.

    Raises:
        RuntimeError: Called outside a hook.
    """
    if current.draw is None:
        raise RuntimeError("current_draw() tells about the sample of a running hook; no hook runs in this thread")
    return current.draw
