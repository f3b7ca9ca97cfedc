"""Routers that are arithmetic on positions: concatenations and limited passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.samplers.routing import Routes


class Concat:
    """Children one after the other; after the last the first goes on with its next pass.

    Position p is place `p mod N` of pass `p div N`, N the sum of the lengths; place q of child k is the child's
    position `pass * length_k + q`. With lengths 3 and 2: children 0 0 0 1 1 0 0 0 1 1, child positions 0 1 2 0 1 3 4 5
    2 3.

    Attributes:
        lengths: positions of each child in a pass.
        length: positions in a pass.
        hands_down_runs: False: lanes stay interleaved, though moved by an offset.
    """

    __slots__ = ("_starts", "length", "lengths")

    hands_down_runs = False

    def __init__(self, lengths: Sequence[int]) -> None:
        """Concatenate children of these lengths. Raises ConfigError if there is no child, or a length is below 1."""
        if not lengths or min(lengths) < 1:
            raise ConfigError(f"Concat(lengths={list(lengths)}): there must be children, each at least 1 long")
        self.lengths = tuple(lengths)
        self.length = sum(lengths)
        self._starts = np.cumsum([0, *lengths[:-1]], dtype=np.int64)

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Give the child and the child position at each position (at least 0, any order)."""
        turn = position // self.length
        place = position - turn * self.length
        child = np.searchsorted(self._starts, place, side="right") - 1
        below = place - self._starts[child] + turn * np.array(self.lengths, dtype=np.int64)[child]
        return child.astype(np.int32), below


class Limit:
    """The first `limit` positions of each pass of `length` over one child; the rest of a pass is left out.

    Position p is the child's position `(p div limit) * length + p mod limit`. With limit 2 and length 5: 0 1 5 6 10 11.

    Attributes:
        limit: positions in a limited pass; a limit above `length` is `length`.
        length: positions of the child in a pass.
        hands_down_runs: False: lanes stay interleaved, though moved by an offset.
    """

    __slots__ = ("length", "limit")

    hands_down_runs = False

    def __init__(self, limit: int, length: int) -> None:
        """Limit a child of `length` positions a pass. Raises ConfigError if the limit or the length is below 1."""
        if limit < 1 or length < 1:
            raise ConfigError(f"Limit(limit={limit}, length={length}): both must be at least 1")
        self.limit = min(limit, length)
        self.length = length

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Give child 0 and its position at each position (at least 0, any order)."""
        return np.zeros(position.size, dtype=np.int32), position + position // self.limit * (self.length - self.limit)
