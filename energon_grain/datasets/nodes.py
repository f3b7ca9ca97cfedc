"""What is done to a leaf's samples: repeat, map, batch, limit, epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.task_encoder import TaskEncoder
from energon_grain.errors import ConfigError

LastBatch = Literal["keep", "drop", "pad"]


def check_last_batch(last_batch: LastBatch, hosts: int) -> None:
    """Check that a last batch can be treated in this way on this number of hosts.

    Raises:
        ConfigError: It cannot.
    """
    if last_batch == "keep" and hosts > 1:
        raise ConfigError(
            f"last_batch='keep' with {hosts} hosts: the last batches would have different sizes, and a host could be "
            f"left without one; use 'drop' or 'pad'"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatDataset(SavableDataset):
    """The dataset over and over, each pass in an order of its own. Endless."""

    dataset: SavableDataset


@dataclass(frozen=True, kw_only=True, slots=True)
class MapDataset(SavableDataset):
    """A function of each sample (below a `BatchDataset`) or of each batch (above one).

    Attributes:
        map_fn: Called with the sample or batch.
        hook: Name of the function in random keys, failure budgets and statistics.
        task_encoder: Owner of the function, whose `thread_safe` and failure tolerance count.
    """

    dataset: SavableDataset
    map_fn: Callable[[Any], Any]
    hook: str = "map"
    task_encoder: TaskEncoder | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchDataset(SavableDataset):
    """Consecutive samples, batch by batch.

    Attributes:
        batch_size: Samples of one host's batch.
        batcher: Makes the batch of a list of samples.
        last_batch: At the end of a finite pass: "drop" an incomplete global batch, "pad" it to its full size (with a
            validity mask in `__valid__`), or, on one host only, "keep" it short. Where samples were dropped, lanes end
            early; "pad" and "drop" fill their places with samples from the beginning of the pass, so that hosts have
            equal numbers of steps ("drop" without a mask).
        task_encoder: As in `MapDataset`.
    """

    dataset: SavableDataset
    batch_size: int
    batcher: Callable[[list[Any]], Any]
    last_batch: LastBatch = "keep"
    task_encoder: TaskEncoder | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size={self.batch_size}: a positive number of samples is meant")
        if self.last_batch not in ("keep", "drop", "pad"):
            raise ConfigError(f"last_batch={self.last_batch!r}: 'keep', 'drop' or 'pad' is meant")
        check_last_batch(self.last_batch, self.worker_config.world_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitDataset(SavableDataset):
    """The first `length` batches of every pass."""

    dataset: SavableDataset
    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(f"limit={self.length}: a positive number of batches, or None for all, is meant")


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochizeDataset(SavableDataset):
    """An endless stream cut into virtual epochs of `length` batches per host; each goes on where the last ended."""

    dataset: SavableDataset
    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(f"virtual_epoch_length={self.length}: a positive number of batches, or 0, is meant")
