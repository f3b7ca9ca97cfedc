"""Plans of packs and batches, made before samples are read: what task encoders ask of `packing=` and `batch_size=`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.stream.spec import LastBatch
from energon_grain.stream.worker_config import WorkerConfig

if TYPE_CHECKING:
    from energon_grain.datasets.task_encoder import TaskEncoder


@runtime_checkable
class PackPlan(Protocol):
    """Plans which samples make a pack."""

    def packed(self, encoder: TaskEncoder, dataset: SavableDataset, worker_config: WorkerConfig) -> SavableDataset:
        """The packs of a dataset, made by a hook of the encoder. Raises ConfigError where it has none."""
        ...


@runtime_checkable
class BatchPlan(Protocol):
    """Plans which samples make a batch, in place of a number of samples."""

    def batched(
        self, encoder: TaskEncoder, dataset: SavableDataset, last_batch: LastBatch | None, worker_config: WorkerConfig
    ) -> SavableDataset:
        """The batches of a dataset, made by the encoder's `batch`. Raises ConfigError where that does not fit."""
        ...
