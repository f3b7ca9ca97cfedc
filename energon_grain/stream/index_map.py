"""From positions of a stream to draws: routers over leaves, and where passes begin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from energon_grain.samplers.leaf_order import LeafTable
from energon_grain.samplers.routing import RouteTree
from energon_grain.samplers.weights import epoch_lengths, period
from energon_grain.samplers.window_shuffle import Passes
from energon_grain.stream.draws import Draws

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EqualPasses:
    """Passes of one length."""

    samples: int

    def start(self, epoch: int) -> int:
        """First position of a pass."""
        return epoch * self.samples

    def length(self, epoch: int) -> int:
        """Positions of a pass."""
        del epoch
        return self.samples

    def epoch_at(self, position: int) -> int:
        """Pass of a position."""
        return position // self.samples

    @property
    def period(self) -> int:
        """1: passes are equal."""
        return 1

    def lengths(self, first: int, count: int) -> Int64Array:
        """Positions of each of `count` passes from `first` on."""
        del first
        return np.full(count, self.samples, np.int64)


@dataclass(frozen=True, slots=True)
class FractionalPasses:
    """Passes of a fractional number of samples: each goes on where the last ended, and they add up exactly."""

    samples: Fraction

    def start(self, epoch: int) -> int:
        """First position of a pass."""
        return math.floor(epoch * self.samples)

    def length(self, epoch: int) -> int:
        """Positions of a pass."""
        return self.start(epoch + 1) - self.start(epoch)

    def epoch_at(self, position: int) -> int:
        """Pass of a position."""
        return math.ceil((position + 1) / self.samples) - 1

    @property
    def period(self) -> int:
        """After so many passes their lengths are the same again."""
        return period((self.samples,))

    def lengths(self, first: int, count: int) -> Int64Array:
        """Positions of each of `count` passes from `first` on."""
        return epoch_lengths((self.samples,), first, count)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexMap:
    """The order of a stream, as arithmetic.

    Attributes:
        routes: From positions to leaves and their own positions; None: there is one leaf, whose positions they are.
        table: Draws of all leaves.
        passes: Of a finite stream; None: endless.
        same_pass: Every pass is the first again.
        samples: Positions of the first pass; endless: of one pass over what is repeated.
    """

    routes: RouteTree | None
    table: LeafTable
    passes: Passes | None
    same_pass: bool
    samples: int

    def length(self, pass_number: int) -> int | None:
        """Positions of a pass; None: endless."""
        return None if self.passes is None else self.passes.length(self._counted(pass_number))

    @property
    def period(self) -> int:
        """Of a finite stream: after so many passes their lengths are the same again."""
        assert self.passes is not None
        return 1 if self.same_pass else self.passes.period

    def lengths(self, first: int, count: int) -> Int64Array:
        """Positions of each of `count` passes of a finite stream, from `first` on."""
        assert self.passes is not None
        return np.full(count, self.passes.length(0)) if self.same_pass else self.passes.lengths(first, count)

    def start(self, pass_number: int) -> int:
        """First position of a pass among those of all; 0 where the stream is endless, or each pass is the first."""
        return 0 if self.passes is None else self.passes.start(self._counted(pass_number))

    def draw(self, positions: Int64Array, pass_number: int) -> Draws:
        """Draws of positions of one pass.

        Args:
            positions: (n,) in [0, length), or any from 0 on where the stream is endless.
            pass_number: Of no meaning where the stream is endless.
        """
        return self.draw_in_stream(positions + self.start(pass_number))

    def draw_in_stream(self, positions: Int64Array) -> Draws:
        """Draws of positions among those of all passes."""
        if self.routes is None:
            leaf, child = np.zeros(len(positions), np.int32), positions
        else:
            leaf, child = self.routes.route(positions)
        index, epoch = self.table.draw(leaf, child)
        return Draws(leaf=leaf, child=child, index=index, epoch=epoch)

    def _counted(self, pass_number: int) -> int:
        return 0 if self.same_pass else pass_number
