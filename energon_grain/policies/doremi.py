# SPDX-License-Identifier: Apache-2.0
"""The multiplicative update of DoReMi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from energon_grain.policies.policy import losses_of, shares_of


class DoReMi:
    """Raises the weight of datasets whose loss is above that of a reference model.

        excess_k = max(loss_k - reference_k, 0)
        a'_k     = a_k * exp(step_size * excess_k)
        a_k      = (1 - smoothing) * a'_k / sum(a') + smoothing / K

    A dataset without a loss has the excess 0. The paper computes the excess of each token before it averages; here it
    is that of a dataset's mean loss.

    Source: Xie et al., "DoReMi: Optimizing Data Mixtures Speeds Up Language Model Pretraining", 2023, arXiv 2305.10429,
    algorithm 1, with its step size 1 and smoothing 1e-3.

    Args:
        reference: Loss of the reference model on each dataset.
        weights: First weights, above 0. Default: equal.
        step_size: Step size of the exponentiated gradient.
        smoothing: Share of the uniform distribution.

    Raises:
        ConfigError: The weights are not of the datasets of `reference`, or not above 0.
    """

    def __init__(
        self,
        reference: Mapping[str, float],
        *,
        weights: Mapping[str, float] | None = None,
        step_size: float = 1.0,
        smoothing: float = 1e-3,
    ) -> None:
        self._names = tuple(reference)
        self._reference = losses_of(self._names, reference)
        given = dict.fromkeys(self._names, 1.0) if weights is None else {name: weights[name] for name in self._names}
        self._weights = shares_of(given)
        self._sum, self._updates = np.zeros(len(self._names)), 0
        self._step_size, self._smoothing = step_size, smoothing

    def update(self, step: int, losses_by_dataset: Mapping[str, float]) -> dict[str, float]:
        """Return the next weights. See `MixturePolicy.update`."""
        del step
        excess = np.nan_to_num(np.maximum(losses_of(self._names, losses_by_dataset) - self._reference, 0.0))
        raised = self._weights * np.exp(self._step_size * (excess - excess.max()))  # the same ratios, no overflow
        self._weights = (1 - self._smoothing) * raised / raised.sum() + self._smoothing / len(raised)
        self._sum, self._updates = self._sum + self._weights, self._updates + 1
        return dict(zip(self._names, self._weights.tolist(), strict=True))

    @property
    def average(self) -> dict[str, float]:
        """Mean weights over all updates: the paper's result, to train the final model with."""
        mean = self._weights if not self._updates else self._sum / self._updates
        return dict(zip(self._names, mean.tolist(), strict=True))

    def state(self) -> dict[str, Any]:
        """Return the state as JSON-native values."""
        return {"weights": self._weights.tolist(), "sum": self._sum.tolist(), "updates": self._updates}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state`."""
        self._weights, self._sum = np.array(state["weights"]), np.array(state["sum"])
        self._updates = int(state["updates"])
