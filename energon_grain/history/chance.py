# SPDX-License-Identifier: Apache-2.0
"""How often chance gives a sample, a shard or a dataset such a score: the shuffle of the run is the experiment.

The order of a run is random and does not depend on losses. So if samples had nothing to do with the losses, the steps
that use a sample would be drawn blindly: a randomisation test (Fisher, "The Design of Experiments", 1935), which
assumes nothing about the distribution of the noise. With f(t) the residual of step t less the mean of all residuals,
c(t) the number of times that step t uses the sample (the shard, the dataset), c the mean of c(t), and

    U = sum of (c(t) - c) · f(t)        V = sum of (c(t) - c)²        m = max of |c(t) - c|

Chernoff's bound (Annals of Mathematical Statistics 23, 1952) gives the probability of a score of at least U:

    log p <= min over x > 0 of  V/m² · k(x) - x · U/m        k(x) = x² · max of K(y)/y² over |y| <= x
    K(y) = log of the mean of exp(y · f(t)) over all steps

For a sample that is used n times, in different steps, m is 1 and V is n. p times the number of samples (of shards, of
datasets) is how many of them are expected to score that high by chance, at most. It holds whatever the dependence
between samples, since expectations add up: Bonferroni's correction, and the E-value of searches in sequences (Karlin
and Altschul, PNAS 87, 1990). Below 0.05 a suspect is called *sure*.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
_GRID = np.geomspace(1e-6, 100, 240)
_DIGITS = 512
"""Residuals are rounded up to multiples of 1/512, so that a table of a few thousand values stands for all steps."""
_AT_ONCE = 1 << 14


class Chance:
    """The distribution of a residual that is drawn blindly.

    Args:
        residuals: (n,) residuals of all steps (or of all samples), cut off.
        weights: (n,) number of samples of each; default: equal.

    Attributes:
        mean: Their mean.
    """

    def __init__(self, residuals: FloatArray, weights: npt.NDArray[Any] | None = None) -> None:
        values, place = np.unique(np.ceil(residuals * _DIGITS) / _DIGITS, return_inverse=True)
        shares = np.bincount(place, weights) / (len(residuals) if weights is None else weights.sum())
        self.mean = float(residuals.mean() if weights is None else np.average(residuals, weights=weights))
        values = values - float(values @ shares)
        variance, third = float(values**2 @ shares), float(values**3 @ shares)
        ratios = np.maximum(*(_ratios(sign * _GRID, values, shares, variance, third) for sign in (1, -1)))
        self._bound = np.maximum.accumulate(ratios) * _GRID**2

    def log_of(self, score: FloatArray, variance: FloatArray, largest: FloatArray | float = 1.0) -> FloatArray:
        """(n,) upper bounds of log p for U, V and m, each (n,)."""
        score, variance, largest = np.broadcast_arrays(score, variance, largest)
        found = np.zeros(len(score))
        for begin in range(0, len(score), _AT_ONCE):
            own = slice(begin, begin + _AT_ONCE)
            size = np.maximum(largest[own], 1e-12)[:, None]
            exponents = variance[own, None] / size**2 * self._bound - _GRID * score[own, None] / size
            found[own] = np.minimum(exponents.min(axis=1), 0)
        return found


def _ratios(y: FloatArray, values: FloatArray, shares: FloatArray, variance: float, third: float) -> FloatArray:
    """K(y) / y² of a distribution with mean 0. Near 0 by its Taylor series, where sums would cancel."""
    highest = np.maximum(y * values[-1], y * values[0])
    sums = np.exp(y[:, None] * values - highest[:, None]) @ shares
    return np.where(np.abs(y) < 1e-2, variance / 2 + y * third / 6, (highest + np.log(sums)) / y**2)
