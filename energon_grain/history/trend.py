# SPDX-License-Identifier: Apache-2.0
"""How unusual each loss of a run is, compared with the run's own trend at that time. NumPy alone.

The residual of step t is

    u(t) = (y(t) - median of y around t) / (1.4826 · median of |y - its trend| in a wider range around t)
    z(t) = (u(t) - r · u(t - 1)) / sqrt(1 - r²)

Medians ignore spikes, and 1.4826 makes the scale that of a normal distribution (Rousseeuw and Croux, "Alternatives to
the Median Absolute Deviation", JASA 1993). r is the correlation of consecutive residuals, of which values beyond 3 are
cut off; it is used only if it differs from 0 by more than chance explains. The second line is the residual of an
autoregression of order 1: if a spike fades over several steps, the first of them keeps its size, and the innocent
steps behind it lose theirs.

Both ends are continued by reflection at a point, which keeps a linear trend. A loss that is NaN or infinite is as
unusual as `CAP`; of several in a row only the first one is, because the later ones follow from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError

FloatArray: TypeAlias = npt.NDArray[np.float64]
LEAST_STEPS = 16
"""Fewer steps have no trend."""
CAP = 5.0
"""Larger residuals count as this one: a single huge spike then does not hide a smaller, repeated one."""
_WINDOW, _WIDER = 101, 5
_AT_ONCE = 1 << 21
_MOST_EXACT = 1 << 24
"""Steps times window from which on medians are taken at some steps only, and interpolated."""
_TO_NORMAL = 1.4826
_ENOUGH, _LINEAR = 8, 10.0


def residuals(values: FloatArray, steps: npt.NDArray[np.int64], window: int | None = None) -> FloatArray:
    """(n,) z(t) as in the module docstring, not cut off at `CAP`; infinite where the loss is not finite.

    Args:
        values: (n,) losses.
        steps: (n,) their steps, ascending. Consecutive losses are correlated only without a gap between their steps.
        window: Number of losses in a median; default: 101, or a tenth of them if there are few.

    Raises:
        ConfigError: There are fewer than `LEAST_STEPS` finite losses, or they are all equal.
    """
    finite = np.isfinite(values)
    count = int(finite.sum())
    if count < LEAST_STEPS:
        raise ConfigError(f"{count} steps have a finite loss: a trend needs at least {LEAST_STEPS}; give a longer log")
    found = np.zeros(len(values))
    u = _standardised(values[finite], window)
    found[finite] = _innovations(u, steps[finite])
    first = ~finite & np.append(True, finite[:-1])
    found[first] = np.inf
    return found


def residuals_of_items(items: Sequence[FloatArray], mean: FloatArray) -> list[FloatArray]:
    """The residuals of the losses of single items, for each step, (items,) each; infinite where one is not finite.

    In a step with at least 8 items they are compared with the median of the step, so that items of a step after which
    all losses are high are no more unusual than before. The scale is that of all items or of the step, whichever is
    larger.

    Args:
        items: For each step, the losses of its items.
        mean: (steps,) losses of the steps.

    Raises:
        ConfigError: More than half of the losses are equal.
    """
    finite = np.isfinite(mean)
    trend = np.zeros(len(mean))
    if finite.any():
        known = _rolling_median(mean[finite], _window_of(int(finite.sum()), None))
        trend = np.interp(np.arange(len(mean)), np.flatnonzero(finite), known)
    centred = [_centred(own, float(at)) for own, at in zip(items, trend, strict=True)]
    together = np.concatenate(centred)
    overall = _TO_NORMAL * float(np.median(np.abs(together[np.isfinite(together)])))
    if not overall:
        raise ConfigError("more than half of the losses of samples are equal: nothing differs from them")
    return [own / max(overall, _scale_of(own)) for own in centred]


def compressed(values: FloatArray) -> FloatArray:
    """Residuals of items, of which large ones grow with their logarithm: they hide no others, and stay in order."""
    large = np.clip(values, _LINEAR, 1e9)
    return np.where(values > _LINEAR, _LINEAR * (1 + np.log(large / _LINEAR)), values)


def expanded(value: float) -> float:
    """The inverse of `compressed`."""
    return value if value <= _LINEAR else _LINEAR * float(np.exp(value / _LINEAR - 1))


def _centred(losses: FloatArray, trend: float) -> FloatArray:
    """The losses of a step's items, less their median, or less the trend if they are few."""
    own = losses[np.isfinite(losses)]
    found = losses - (float(np.median(own)) if len(own) >= _ENOUGH else trend)
    found[~np.isfinite(losses)] = np.inf
    return found


def _scale_of(centred: FloatArray) -> float:
    own = centred[np.isfinite(centred)]
    return _TO_NORMAL * float(np.median(np.abs(own))) if len(own) >= _ENOUGH else 0.0


def _window_of(count: int, window: int | None) -> int:
    wanted = min(_WINDOW, max(7, count // 10)) if window is None else min(window, count)
    return wanted | 1


def _standardised(values: FloatArray, window: int | None) -> FloatArray:
    """u(t) of finite losses."""
    width = _window_of(len(values), window)
    residual = values - _rolling_median(values, width)
    size = np.abs(residual)
    overall = _TO_NORMAL * float(np.median(size)) or float(np.mean(size))
    if not overall:
        raise ConfigError("the losses do not differ from their trend at any step: nothing is to be explained")
    scale = _TO_NORMAL * _rolling_median(size, min(_WIDER * width, len(values) - 1 | 1), of_scale=True)
    return residual / np.maximum(scale, overall / 10)


def _rolling_median(values: FloatArray, width: int, *, of_scale: bool = False) -> FloatArray:
    """(n,) medians of `width` values around each; of long series and of scales at every k-th, interpolated."""
    half = min(width // 2, len(values) - 1)
    windows = np.lib.stride_tricks.sliding_window_view(_continued(values, half, odd=not of_scale), 2 * half + 1)
    stride = max(width // 32 if of_scale else 1, len(values) * (2 * half + 1) // _MOST_EXACT)
    stride = min(stride, max(1, half // 4))
    at = np.unique(np.append(np.arange(0, len(values), stride), len(values) - 1))
    rows = max(1, _AT_ONCE // (2 * half + 1))
    medians = [np.median(windows[at[begin : begin + rows]], axis=1) for begin in range(0, len(at), rows)]
    return np.interp(np.arange(len(values)), at, np.concatenate(medians))


def _continued(values: FloatArray, half: int, *, odd: bool) -> FloatArray:
    """A series, reflected at both ends; `odd`: at a point, the median of its first and last few values."""
    before, behind = values[1 : half + 1][::-1], values[len(values) - 1 - half : len(values) - 1][::-1]
    if odd:
        few = min(max(5, half // 5), len(values))
        before = 2 * float(np.median(values[:few])) - before
        behind = 2 * float(np.median(values[-few:])) - behind
    return np.concatenate([before, values, behind])


def _innovations(u: FloatArray, steps: npt.NDArray[np.int64]) -> FloatArray:
    """z(t) of u(t)."""
    apart = np.diff(steps)
    follows = apart == apart.min()
    cut = np.clip(u, -3, 3)
    before, behind = cut[:-1][follows], cut[1:][follows]
    spread = float(np.mean(cut * cut))
    r = float(np.mean(before * behind)) / spread if len(before) and spread else 0.0
    if r * np.sqrt(max(1, len(before))) < 3:
        return u
    r = min(r, 0.95)
    found = u.copy()
    found[1:][follows] -= r * u[:-1][follows]
    found[1:][follows] /= np.sqrt(1 - r * r)
    return found
