# SPDX-License-Identifier: Apache-2.0
"""Adaptive Data Optimization: weights from a power law that is fitted to the losses of each dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from energon_grain.policies.policy import Float64Array, losses_of, shares_of

_ALPHA = np.arange(0.05, 0.805, 0.01)
"""Exponents that are tried. The paper limits them to about 0.8, and to 0.05 where they are used."""
_POINTS = 64
"""Losses of each dataset that are kept. If there are more, pairs of neighbours are averaged."""


class ADO:
    """Prefers datasets whose loss falls fastest for each sample, by fitted power laws.

        loss_k(n) = e_k + b_k * n ** -alpha_k          fitted to the losses so far; n: training steps
        speed_k   = alpha_k * (loss_k(n) - e_k) / n    its slope
        rho_k     ~ prior_k * h_k ** 0.5 * speed_k     h: moving average of past weights, factor `memory`
        rho       = at least `least` each, with the sum 1
        weights   = blend * rho + (1 - blend) * mean   mean: of all earlier rho, and the prior

    Until `warmup` updates the weights are the prior.

    Source: Jiang et al., "Adaptive Data Optimization: Dynamic Sample Selection with Scaling Laws", 2024,
    arXiv 2410.11820, with its constants. The paper fits by L-BFGS on a Huber loss of logarithms. Here the squared error
    is minimised: exactly in e and b, over exponents 0.05, 0.06, …, 0.8.

    Args:
        prior: Natural weight of each dataset, for example its number of tokens; above 0.
        warmup: Updates before the first fit, at least 3.
        blend: Share of the newest preference.
        memory: Factor of the past in the moving average of weights.
        least: Minimum weight of a dataset.

    Raises:
        ConfigError: The prior is empty, or not above 0.
    """

    def __init__(
        self,
        prior: Mapping[str, float],
        *,
        warmup: int = 8,
        blend: float = 0.1,
        memory: float = 0.9,
        least: float = 0.01,
    ) -> None:
        self._names, self._prior = tuple(prior), shares_of(prior)
        self._warmup, self._blend, self._memory, self._least = max(3, warmup), blend, memory, least
        self._weights, self._mean, self._history = self._prior, self._prior, self._prior
        self._updates, self._width = 0, 1
        self._points: list[list[float]] = []  # [updates, mean step, mean losses ...]

    def update(self, step: int, losses_by_dataset: Mapping[str, float]) -> dict[str, float]:
        """Return the next weights. See `MixturePolicy.update`."""
        losses = losses_of(self._names, losses_by_dataset)
        self._add(float(step), self._without_gaps(losses))
        self._history = self._memory * self._history + (1 - self._memory) * self._weights
        self._updates += 1
        if self._updates >= self._warmup:
            _, steps, *columns = np.array(self._points).T
            speed = np.array([_speed(steps, column, float(step)) for column in columns])
            wanted = self._prior * self._history**0.5 * speed
            if wanted.sum() > 0:  # otherwise no loss falls any more
                rho = _at_least(wanted / wanted.sum(), self._least)
                self._weights = self._blend * rho + (1 - self._blend) * self._mean
                self._mean = self._mean + (rho - self._mean) / (self._updates + 1)
        return dict(zip(self._names, self._weights.tolist(), strict=True))

    def _without_gaps(self, losses: Float64Array) -> Float64Array:
        """Losses in which a missing one is the last known of its dataset, or the mean of the others."""
        missing = np.isnan(losses)
        if missing.all() and not self._points:
            return np.zeros_like(losses)
        known = np.array(self._points[-1][2:]) if self._points else np.full_like(losses, losses[~missing].mean())
        return np.where(missing, known, losses)

    def _add(self, step: float, losses: Float64Array) -> None:
        """Append losses to the last point until it has as many updates as the others."""
        if self._points and self._points[-1][0] < self._width:
            count, *means = self._points[-1]
            new = np.array([step, *losses])
            self._points[-1] = [count + 1, *(np.array(means) + (new - means) / (count + 1)).tolist()]
        else:
            self._points.append([1.0, step, *losses.tolist()])
        if len(self._points) > _POINTS:
            pairs = zip(self._points[0:-1:2], self._points[1::2], strict=False)
            merged = [[2.0 * self._width, *((np.array(a[1:]) + b[1:]) / 2).tolist()] for a, b in pairs]
            self._points = [*merged, *self._points[2 * len(merged) :]]
            self._width *= 2

    def state(self) -> dict[str, Any]:
        """Return the state as JSON-native values; at most 64 losses of each dataset."""
        return {
            "updates": self._updates,
            "width": self._width,
            "points": [[*point] for point in self._points],
            **{name: getattr(self, f"_{name}").tolist() for name in ("weights", "mean", "history")},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state`."""
        self._updates, self._width = int(state["updates"]), int(state["width"])
        self._points = [[*map(float, point)] for point in state["points"]]
        self._weights, self._mean, self._history = (np.array(state[name]) for name in ("weights", "mean", "history"))


def fit(steps: Float64Array, losses: Float64Array) -> tuple[float, float, float]:
    """The power law e + b * n ** -alpha with the least squared error: (e, b, alpha), e and b at least 0.

    Args:
        steps: (n,) above 0.
        losses: (n,).
    """
    x = steps[None] ** -_ALPHA[:, None]  # (exponents, n)
    offset = x - x.mean(axis=1, keepdims=True)
    variance = np.maximum((offset**2).sum(axis=1), np.finfo(np.float64).tiny)
    slope = np.maximum((offset * (losses - losses.mean())).sum(axis=1) / variance, 0.0)
    floor = losses.mean() - slope * x.mean(axis=1)
    through = (x * losses).sum(axis=1) / (x**2).sum(axis=1)  # the slope of the best law without e
    slope, floor = np.where(floor < 0, through, slope), np.maximum(floor, 0.0)
    errors = ((floor[:, None] + slope[:, None] * x - losses) ** 2).sum(axis=1)
    best = int(errors.argmin())
    return float(floor[best]), float(slope[best]), float(_ALPHA[best])


def _speed(steps: Float64Array, losses: Float64Array, step: float) -> float:
    _, b, alpha = fit(steps, losses)
    return alpha * b * step**-alpha / step


def _at_least(shares: Float64Array, least: float) -> Float64Array:
    """Shares of at least `least` each (or equal ones), with the sum 1; the others keep their ratios."""
    if least * len(shares) >= 1:
        return np.full_like(shares, 1 / len(shares))
    low = np.zeros(len(shares), bool)
    while True:
        rest = np.where(low, 0.0, shares)
        found = np.where(low, least, rest / rest.sum() * (1 - least * low.sum()))
        if (found >= least * (1 - 1e-12)).all():
            return found
        low |= found < least
