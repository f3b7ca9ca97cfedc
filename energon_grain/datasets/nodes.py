"""How much of a dataset is seen, and when a pass over it ends: repeat, limit, epochs; and the shuffle buffer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from energon_grain.datasets.dataset import SavableDataset, check_size, describe
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import ConfigError


@dataclass(frozen=True, slots=True, init=False)
class RepeatDataset(SavableDataset):
    """The dataset over and over, each pass in an order of its own.

    Args:
        dataset: What is repeated.
        repeats: Passes that make one pass of the repeated dataset; None: endless. Fractions are exact and go on where
            the last pass ended: 0.7 repeats of 55 samples give 38 or 39 of them, and each was seen 7 times after ten
            passes. Decimal numbers count as they are written.
        restart: Only True: each `iter` after the end begins the next pass.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: `repeats` is not above 0, or `restart` is False.
    """

    dataset: SavableDataset
    repeats: int | float | Fraction | None

    def __init__(
        self,
        dataset: SavableDataset,
        *,
        repeats: int | float | Fraction | None = None,
        restart: bool = True,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        if repeats is not None and not (repeats > 0 and math.isfinite(repeats)):
            raise ConfigError(f"RepeatDataset: repeats={repeats}: a number above 0, or None for ever, is meant")
        if not restart:
            raise ConfigError(
                "RepeatDataset: restart=False is not supported: after its end, a new iteration is the next pass; stop "
                "iterating instead"
            )
        describe(self, dataset, worker_config, dataset=dataset, repeats=repeats)


@dataclass(frozen=True, slots=True, init=False)
class LimitDataset(SavableDataset):
    """The first `length` items of every pass: batches above a batch, samples or packs below one.

    Args:
        dataset: What is cut.
        length: Items per host.
        reset_after_epoch: Accepted for compatibility: every pass over a limited dataset begins at its start.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: `length` is not a positive number.
    """

    dataset: SavableDataset
    length: int

    def __init__(
        self,
        dataset: SavableDataset,
        length: int,
        *,
        reset_after_epoch: bool = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        del reset_after_epoch
        check_size(self, "length", length, "items")
        describe(self, dataset, worker_config, dataset=dataset, length=length)


@dataclass(frozen=True, slots=True, init=False)
class EpochizeDataset(SavableDataset):
    """An endless stream cut into virtual epochs; each goes on where the last ended.

    Args:
        dataset: What is cut; endless.
        length: Items (batches, above a batch) of one host in an epoch.
        worker_config: Default: that of the dataset.
        num_epochs: In place of `length`: the length in passes over the data; 0.5 is half a pass.

    Raises:
        ConfigError: Not exactly one of `length` and `num_epochs` is given, or it is not above 0.
    """

    dataset: SavableDataset
    length: int | None
    num_epochs: int | float | Fraction | None

    def __init__(
        self,
        dataset: SavableDataset,
        length: int | None = None,
        worker_config: WorkerConfig | None = None,
        *,
        num_epochs: int | float | Fraction | None = None,
    ) -> None:
        if (length is None) == (num_epochs is None):
            raise ConfigError(
                f"EpochizeDataset: length={length}, num_epochs={num_epochs}: give one of the two, a number of items or "
                f"of passes over the data"
            )
        if length is not None:
            check_size(self, "length", length, "items")
        elif num_epochs is not None and not (num_epochs > 0 and math.isfinite(num_epochs)):
            raise ConfigError(f"EpochizeDataset: num_epochs={num_epochs}: a number above 0 is meant")
        describe(self, dataset, worker_config, dataset=dataset, length=length, num_epochs=num_epochs)


@dataclass(frozen=True, slots=True, init=False)
class ShuffleBufferDataset(SavableDataset):
    """The samples of an endless or finite dataset, mixed over at least `size` neighbours.

    No buffer is held: the positions below are permuted, so the state of a shuffled stream is its position.

    Args:
        dataset: What is shuffled.
        size: Samples that mix at least; 1: none.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: `size` is not a positive number.
    """

    dataset: SavableDataset
    size: int

    def __init__(self, dataset: SavableDataset, size: int, *, worker_config: WorkerConfig | None = None) -> None:
        check_size(self, "size", size, "samples")
        describe(self, dataset, worker_config, dataset=dataset, size=size)
