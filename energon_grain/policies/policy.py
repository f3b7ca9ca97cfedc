# SPDX-License-Identifier: Apache-2.0
"""The interface of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError

Float64Array = npt.NDArray[np.float64]


@runtime_checkable
class MixturePolicy(Protocol):
    """Chooses weights from losses.

    A policy is deterministic: from equal losses it computes equal weights. Losses differ between hosts, so either
    average them over all hosts before `update`, or update on one host and broadcast the weights.
    """

    def update(self, step: int, losses_by_dataset: Mapping[str, float]) -> dict[str, float]:
        """Return the next weight of every dataset, with the sum 1.

        Args:
            step: Number of the training step, from 1 on, ascending.
            losses_by_dataset: Mean loss of each dataset since the last update. Datasets may be missing.

        Raises:
            ConfigError: A name is unknown, or a loss is not finite.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Return the state as JSON-native values, to save with the model."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state`."""
        ...


def losses_of(names: tuple[str, ...], losses: Mapping[str, float]) -> Float64Array:
    """Losses in the order of names, NaN where one is missing, (K,). Raises ConfigError as `MixturePolicy.update`."""
    unknown = [name for name in losses if name not in names]
    if unknown:
        raise ConfigError(f"loss of {unknown[0]!r}: expected losses of {', '.join(names)}")
    for name, loss in losses.items():
        if not np.isfinite(loss):
            raise ConfigError(f"loss of {name!r} is {loss}: expected a finite number")
    return np.array([losses.get(name, np.nan) for name in names], np.float64)


def shares_of(weights: Mapping[str, float]) -> Float64Array:
    """Weights with the sum 1, (K,). Raises ConfigError if there are none, or they are not positive and finite."""
    found = np.array(list(weights.values()), np.float64)
    if not found.size or not np.isfinite(found).all() or (found <= 0).any():
        raise ConfigError(f"weights are {dict(weights)}: expected at least one, all finite and above 0")
    return found / found.sum()
