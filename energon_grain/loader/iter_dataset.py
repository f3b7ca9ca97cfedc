"""The loader as the source of a Grain iteration pipeline."""

from __future__ import annotations

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.errors import ConfigError
from energon_grain.extras import needed_for
from energon_grain.loader.iterator import SavableDataLoader, get_savable_loader
from energon_grain.samples.subscripts import EncodedBatch
from energon_grain.stream.stream import config_to_run

with needed_for("BatchIterDataset"):
    import grain


class BatchIterDataset(grain.IterDataset[EncodedBatch]):
    """A `grain.IterDataset` of this host's batches: `.map(…)`, `ThreadPrefetch` and Grain's checkpoints work on top.

    Each `iter` makes a loader of its own, which begins at the start. Elements, state and exactness are those of
    `get_savable_loader`.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
    """

    def __init__(self, dataset: SavableDataset[EncodedBatch]) -> None:
        super().__init__()
        config_to_run(dataset, None)  # which refuses what is no dataset
        self._dataset = dataset

    def __iter__(self) -> SavableDataLoader[EncodedBatch]:
        return get_savable_loader(self._dataset)

    def __str__(self) -> str:
        return f"BatchIterDataset({self._dataset!r})"

    __repr__ = __str__

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Refuse to be cut up between worker processes: reading ahead is the loader's own work.

        Raises:
            ConfigError: Always, unless the slice is everything.
        """
        del sequential_slice
        if (sl.start or 0, sl.step or 1) != (0, 1) or sl.stop is not None:
            raise ConfigError(
                "mp_prefetch above a BatchIterDataset would make each process skip the batches of the others; use "
                "WorkerConfig(worker_type='process') below, or mp_prefetch above BatchMapDataset(…).to_iter_dataset()"
            )
