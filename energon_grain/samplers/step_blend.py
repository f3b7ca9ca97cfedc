"""Blends whose choice holds for several consecutive items: those of all hosts in one step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.samplers.blend import Blend
from energon_grain.samplers.routing import Routes


class StepBlend:
    """A blend that gives `width` consecutive positions to one child.

    It is the blend of L div width lanes, each of which stands for `width` lanes: so any number of hosts that divides
    the width gets one child in each step, and every lane has its child's rounds 0, 1, 2, … without gaps.

    Attributes:
        lanes: L.
        width: positions that share a choice; it divides L.
        weights: integer weights of each segment.
        starts: first position of each segment.
        hands_down_runs: False: a child's positions come lane by lane.
    """

    __slots__ = ("_blend", "lanes", "starts", "weights", "width")

    hands_down_runs = False

    def __init__(self, blend: Blend, *, width: int) -> None:
        """Widen a blend.

        Args:
            blend: with L div width lanes; its schedule counts steps of `width` positions.
            width: at least 1.

        Raises:
            ConfigError: the width is below 1.
        """
        if width < 1:
            raise ConfigError(f"StepBlend(width={width}): at least 1 position")
        self._blend = blend
        self.width = width
        self.lanes = blend.lanes * width
        self.weights = blend.weights
        self.starts = tuple(start * width for start in blend.starts)

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Give the child and the child position at each position (at least 0, any order)."""
        child, step = self._blend.route(position // self.width)
        return child, step * self.width + position % self.width
