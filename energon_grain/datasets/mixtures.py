"""Several datasets in one stream: blend by weights, blend by repetitions, one after the other."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from numbers import Real
from typing import Any

from energon_grain.datasets.dataset import SavableDataset, check_dataset
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import ConfigError

Weight = int | float | Fraction
Weighted = tuple[SavableDataset, Weight] | SavableDataset


@dataclass(frozen=True, slots=True, init=False)
class BlendDataset(SavableDataset):
    """An endless mixture: each child gets its share of positions, exactly, and is repeated for ever.

    A weight counts positions that are attempted, not samples that are accepted: samples that are dropped lower the
    share of their dataset.

    Args:
        *dataset_weights: (dataset, weight) for each child, or one iterable of them; weights above 0, of any sum.
        schedule: In place of the weights: `[(from_position, weights), …]`, beginning at position 0 of this blend. A
            weight of 0 pauses a child.
        per_step: Choose the child once for a whole global step in place of once for each item, so that all hosts' items
            of a step are of one child and their shapes agree; a number above 1 is that many consecutive items, in
            place of a step's.
        worker_config: Default: that of the first child.

    Raises:
        ConfigError: There is no child, one is not a dataset, or weights are not as described.
    """

    datasets: tuple[SavableDataset, ...]
    schedule: tuple[tuple[int, tuple[Weight, ...]], ...]
    per_step: bool | int

    def __init__(
        self,
        *dataset_weights: Weighted | Iterable[Weighted],
        schedule: Sequence[tuple[int, Sequence[Weight]]] | None = None,
        per_step: bool | int = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        datasets, weights = _pairs(self, "weight", dataset_weights)
        if per_step < 0:
            raise ConfigError(f"BlendDataset: per_step={per_step}: True, False or a number of items is meant")
        if schedule is None:
            _check_numbers(self, "weight", weights)
            steps = ((0, weights),)
        else:
            steps = tuple((_position(start), tuple(weights)) for start, weights in schedule)
            _check_schedule(steps, len(datasets))
        object.__setattr__(self, "worker_config", worker_config or datasets[0].worker_config)
        object.__setattr__(self, "datasets", datasets)
        object.__setattr__(self, "schedule", steps)
        object.__setattr__(self, "per_step", per_step)


@dataclass(frozen=True, slots=True, init=False)
class BlendEpochizedDataset(SavableDataset):
    """A finite mixture: an epoch has every sample of each child as often as its repetitions say, exactly.

    Fractions go on where the last epoch ended: with 0.7 repetitions of 55 samples an epoch has 38 or 39 of them, and
    after ten epochs each was seen 7 times.

    Args:
        *dataset_repetitions: (dataset, repetitions) for each child, or one iterable of them; above 0. Give fractions
            as `fractions.Fraction` or decimal numbers, which count as they are written.
        worker_config: Default: that of the first child.

    Raises:
        ConfigError: There is no child, one is not a dataset, or a number is not above 0.
    """

    datasets: tuple[SavableDataset, ...]
    repetitions: tuple[Weight, ...]

    def __init__(
        self,
        *dataset_repetitions: Weighted | Iterable[Weighted],
        worker_config: WorkerConfig | None = None,
    ) -> None:
        datasets, repetitions = _pairs(self, "repetitions", dataset_repetitions)
        _check_numbers(self, "repetitions", repetitions)
        object.__setattr__(self, "worker_config", worker_config or datasets[0].worker_config)
        object.__setattr__(self, "datasets", datasets)
        object.__setattr__(self, "repetitions", repetitions)


@dataclass(frozen=True, slots=True, init=False)
class ConcatDataset(SavableDataset):
    """Finite datasets one after the other.

    Args:
        *datasets: In order, or one iterable of them; of a (dataset, weight) pair, as `build_val_datasets` gets them,
            the dataset.
        worker_config: Default: that of the first one.

    Raises:
        ConfigError: There is no dataset, or one is something else.
    """

    datasets: tuple[SavableDataset, ...]

    def __init__(self, *datasets: Weighted | Iterable[Weighted], worker_config: WorkerConfig | None = None) -> None:
        parts, _ = _pairs(self, "weight", datasets)
        object.__setattr__(self, "worker_config", worker_config or parts[0].worker_config)
        object.__setattr__(self, "datasets", parts)


def _pairs(
    node: SavableDataset, second: str, entries: tuple[Any, ...]
) -> tuple[tuple[SavableDataset, ...], tuple[Weight, ...]]:
    """The datasets, and the number of each; 1 where there is none."""
    if len(entries) == 1 and isinstance(entries[0], Iterable) and not isinstance(entries[0], SavableDataset):
        inside: tuple[Any, ...] = tuple(entries[0])
        if all(isinstance(each, SavableDataset | tuple) for each in inside):
            entries = inside
    if not entries:
        raise ConfigError(
            f"{type(node).__name__}: there is nothing to combine; pass datasets, or (dataset, {second}) pairs"
        )
    datasets: list[SavableDataset] = []
    numbers: list[Weight] = []
    for entry in entries:
        dataset, number = _pair(node, second, entry)
        check_dataset(node, dataset)
        datasets.append(dataset)
        numbers.append(number)
    return tuple(datasets), tuple(numbers)


def _pair(node: SavableDataset, second: str, entry: Any) -> tuple[Any, Any]:
    if not isinstance(entry, tuple):
        return entry, 1
    if len(entry) != 2:  # type: ignore[arg-type]
        raise ConfigError(f"{type(node).__name__}: {entry!r}: a dataset, or a (dataset, {second}) pair, is meant")
    return entry[0], entry[1]  # type: ignore[return-value]


def _check_numbers(node: SavableDataset, name: str, numbers: Sequence[Weight]) -> None:
    for place, number in enumerate(numbers):
        if not _is_number(number) or number <= 0:
            raise ConfigError(
                f"{type(node).__name__}: {name} of dataset {place} is {number!r}: a number above 0 is meant"
            )


def _position(start: int) -> int:
    try:
        return operator.index(start)
    except TypeError:
        raise ConfigError(
            f"BlendDataset: a schedule's segments begin at positions, but one of this begins at {start!r}: a whole "
            f"number is meant, such as 1_000_000 for 1e6"
        ) from None


def _check_schedule(steps: Sequence[tuple[int, tuple[Weight, ...]]], children: int) -> None:
    starts = [start for start, _ in steps]
    if not starts or starts[0] != 0 or any(late <= early for early, late in pairwise(starts)):
        raise ConfigError(f"BlendDataset: a schedule begins at position 0 and ascends, but this one is from {starts}")
    for start, weights in steps:
        if len(weights) != children:
            raise ConfigError(f"BlendDataset: {children} datasets and {len(weights)} weights from {start} on")
        if not all(_is_number(weight) and weight >= 0 for weight in weights):
            raise ConfigError(f"BlendDataset: weights {list(weights)} from {start} on: 0 or more is meant for each")
        if not any(weights):
            raise ConfigError(f"BlendDataset: all weights from {start} on are 0; give one dataset a weight above 0")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)
