"""Several datasets in one stream: blend by weights, blend by repetitions, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import ConfigError

Weight = int | float | Fraction


@dataclass(frozen=True, slots=True, init=False)
class BlendDataset(SavableDataset):
    """An endless mixture: each child gets its share of positions, exactly, and is repeated for ever.

    A weight counts positions that are attempted, not samples that are accepted: samples that are dropped lower the
    share of their dataset.

    Args:
        *dataset_weights: (dataset, weight) for each child; weights above 0, of any sum.
        schedule: In place of the weights: `[(from_position, weights), …]`, beginning at position 0 of this blend. A
            weight of 0 pauses a child.
        worker_config: Default: that of the first child.
    """

    datasets: tuple[SavableDataset, ...]
    schedule: tuple[tuple[int, tuple[Weight, ...]], ...]

    def __init__(
        self,
        *dataset_weights: tuple[SavableDataset, Weight] | SavableDataset,
        schedule: Sequence[tuple[int, Sequence[Weight]]] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        pairs: list[Any] = [entry if isinstance(entry, tuple) else (entry, 1) for entry in dataset_weights]
        if not pairs:
            raise ConfigError("BlendDataset: there is nothing to blend; pass (dataset, weight) pairs")
        datasets = tuple(dataset for dataset, _ in pairs)
        steps = schedule if schedule is not None else [(0, [weight for _, weight in pairs])]
        for start, weights in steps:
            if len(weights) != len(datasets):
                raise ConfigError(f"BlendDataset: {len(datasets)} datasets and {len(weights)} weights from {start} on")
        object.__setattr__(self, "worker_config", worker_config or datasets[0].worker_config)
        object.__setattr__(self, "datasets", datasets)
        object.__setattr__(self, "schedule", tuple((start, tuple(weights)) for start, weights in steps))


@dataclass(frozen=True, slots=True, init=False)
class BlendEpochizedDataset(SavableDataset):
    """A finite mixture: an epoch has every sample of each child as often as its repetitions say, exactly.

    Fractions go on where the last epoch ended: with 0.7 repetitions of 55 samples an epoch has 38 or 39 of them, and
    after ten epochs each was seen 7 times.

    Args:
        *dataset_repetitions: (dataset, repetitions) for each child; above 0. Give fractions as `fractions.Fraction` or
            decimal numbers, which count as they are written.
        worker_config: Default: that of the first child.
    """

    datasets: tuple[SavableDataset, ...]
    repetitions: tuple[Weight, ...]

    def __init__(
        self, *dataset_repetitions: tuple[SavableDataset, Weight], worker_config: WorkerConfig | None = None
    ) -> None:
        if not dataset_repetitions:
            raise ConfigError("BlendEpochizedDataset: there is nothing to blend; pass (dataset, repetitions) pairs")
        datasets = tuple(dataset for dataset, _ in dataset_repetitions)
        object.__setattr__(self, "worker_config", worker_config or datasets[0].worker_config)
        object.__setattr__(self, "datasets", datasets)
        object.__setattr__(self, "repetitions", tuple(number for _, number in dataset_repetitions))


@dataclass(frozen=True, slots=True, init=False)
class ConcatDataset(SavableDataset):
    """Finite datasets one after the other.

    Args:
        *datasets: In order.
        worker_config: Default: that of the first one.
    """

    datasets: tuple[SavableDataset, ...]

    def __init__(self, *datasets: SavableDataset, worker_config: WorkerConfig | None = None) -> None:
        if not datasets:
            raise ConfigError("ConcatDataset: there is nothing to concatenate; pass datasets")
        object.__setattr__(self, "worker_config", worker_config or datasets[0].worker_config)
        object.__setattr__(self, "datasets", datasets)
