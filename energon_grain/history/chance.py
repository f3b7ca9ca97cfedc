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

For a sample that is used n times, in different steps, m is 1 and V is n, and the distribution of U is a convolution of
n equal ones. It is computed for n up to 64, tilted exponentially so that its far tail is exact too (Esscher, 1932). p
times the number of samples (of shards, of
datasets) is how many of them are expected to score that high by chance, at most. It holds whatever the dependence
between samples, since expectations add up: Bonferroni's correction, and the E-value of searches in sequences (Karlin
and Altschul, PNAS 87, 1990). Below 0.05 a suspect is called *sure*.

Losses of single items are no experiment: whatever they are, one of them is the largest. So `Tail` also compares the
largest residual of a sample with the tail of all residuals, a generalised Pareto distribution above their upper tenth
(Pickands, "Statistical Inference Using Extreme Order Statistics", Annals of Statistics 3, 1975). Its two parameters
come from quartiles, which a few outliers do not move.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.history.trend import expanded

FloatArray: TypeAlias = npt.NDArray[np.float64]
_GRID = np.geomspace(1e-6, 100, 240)
_DIGITS = 512
"""Residuals are rounded up to multiples of 1/512, so that a table of a few thousand values stands for all steps."""
_AT_ONCE = 1 << 14
_CONVOLVED, _LONGEST = 64, 1 << 21


class Chance:
    """The distribution of a residual that is drawn blindly.

    Args:
        residuals: (n,) residuals of all steps (or of all items), cut off.

    Attributes:
        mean: Their mean.
    """

    def __init__(self, residuals: FloatArray) -> None:
        rounded = np.ceil(residuals * _DIGITS).astype(np.int64)
        self._least = int(rounded.min())
        self._shares = np.bincount(rounded - self._least) / len(residuals)
        self.mean = float(residuals.mean())
        values = np.flatnonzero(self._shares)
        shares = self._shares[values]
        values = (values + self._least) / _DIGITS
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

    def exact_log_of(self, score: float, uses: int) -> float:
        """The log of p for U of a sample with a number of uses; above 64 uses, its upper bound."""
        bound = float(self.log_of(np.array([score]), np.array([float(uses)]))[0])
        if not 0 < uses <= _CONVOLVED or uses * len(self._shares) > _LONGEST or bound == 0:
            return bound
        values = (np.arange(len(self._shares)) + self._least) / _DIGITS
        tilt = self._tilt(values, score / uses + self.mean)
        weights = self._shares * np.exp(tilt * (values - values[-1]))
        total = float(weights.sum())
        size = uses * (len(values) - 1) + 1
        spectrum = np.fft.rfft(weights / total, 1 << (size - 1).bit_length())
        density = np.maximum(np.fft.irfft(spectrum**uses)[:size], 0)
        sums = (np.arange(size) + uses * self._least) / _DIGITS
        reached = sums >= score + uses * self.mean - 1e-6
        tail = (
            float((density[reached] * np.exp(-tilt * (sums[reached] - sums[reached][:1]))).sum())
            if reached.any()
            else 0
        )
        if not tail:
            return bound
        start = float(sums[reached][0])
        return min(bound, float(np.log(tail)) + uses * (np.log(total) + tilt * float(values[-1])) - tilt * start)

    def _tilt(self, values: FloatArray, mean: float) -> float:
        """The exponent with which the distribution has this mean, found by bisection."""
        low, high = 0.0, float(_GRID[-1])
        for _ in range(50):
            middle = (low + high) / 2
            weights = self._shares * np.exp(middle * (values - values[-1]))
            low, high = (middle, high) if float(weights @ values) < mean * float(weights.sum()) else (low, middle)
        return low


class Tail:
    """The tail of the residuals of items.

    Args:
        residuals: (n,) residuals, `compressed`, at least 40.
    """

    def __init__(self, residuals: FloatArray) -> None:
        residuals = np.array([expanded(each) for each in residuals.tolist()])
        self._count = len(residuals)
        self._threshold = float(np.quantile(residuals, 0.9))
        excess = residuals[residuals > self._threshold] - self._threshold
        half, most = (float(np.quantile(excess, part)) for part in (0.5, 0.75))
        # The excess with a quarter of the items above it is x (2^s + 1) for the shape s and the median x.
        self._shape = max(0.0, float(np.log2(max(most - half, 1e-9) / half)))
        self._scale = half / np.log(2) if self._shape < 1e-3 else self._shape * half / (2**self._shape - 1)

    def expected(self, residual: float) -> float:
        """Number of items that are expected to have a residual, `compressed`, of at least this by chance."""
        excess = max(0.0, expanded(residual) - self._threshold) / self._scale
        log = -excess if self._shape < 1e-3 else -np.log1p(self._shape * excess) / self._shape
        return float(0.1 * self._count * np.exp(log))


def _ratios(y: FloatArray, values: FloatArray, shares: FloatArray, variance: float, third: float) -> FloatArray:
    """K(y) / y² of a distribution with mean 0. Near 0 by its Taylor series, where sums would cancel."""
    highest = np.maximum(y * values[-1], y * values[0])
    sums = np.exp(y[:, None] * values - highest[:, None]) @ shares
    return np.where(np.abs(y) < 1e-2, variance / 2 + y * third / 6, (highest + np.log(sums)) / y**2)
