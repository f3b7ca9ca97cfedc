"""A leaf of a dataset, indexed by epoch and sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.multi_epoch import EpochIndex
from energon_grain.datasets.multi_epoch_wrapper import epoch_index
from energon_grain.errors import ConfigError
from energon_grain.stream.chunk import Chunk
from energon_grain.stream.compile import compile_dataset
from energon_grain.stream.draws import Draws
from energon_grain.stream.dropped import Dropped
from energon_grain.stream.stage import PureStage
from energon_grain.stream.statistics import Statistics


class MultiEpochLeaf:
    """A `MultiEpochDataset` of one leaf of a dataset or metadataset, decoded, cooked and encoded.

    The task encoder's hooks on single samples run, with their random numbers: `self.rng` depends on (seed of the
    dataset, leaf, epoch, idx) alone, `current_draw().epoch` is the epoch. So no wrapper is needed around it; a
    `MultiEpochDatasetResampler` lays its epochs out. Order, weights, repetitions and limits of the dataset mean nothing
    here; subsets and excludes do.

    Thread-safe; pickles as its arguments. A sample that is dropped is None, is counted, and goes to the error handler.
    Batched reads (`__getitems__`) coalesce.

    Args:
        dataset: What `get_train_dataset` or `get_val_datasets` returned, with `batch_size=None`.
        leaf: Number of the leaf, in document order; may be left out where there is one.

    Raises:
        ConfigError: The dataset batches, packs or groups, or has no such leaf, or several and none is named.
    """

    def __init__(self, dataset: SavableDataset, leaf: int | None = None) -> None:
        self._dataset = dataset
        self._leaf = leaf
        self._open()

    def _open(self) -> None:
        spec = compile_dataset(self._dataset)
        names = ["/".join(leaf.key) for leaf in spec.leaves]
        if spec.batch is not None or spec.index_map is None:
            raise ConfigError(
                "a MultiEpochLeaf has single samples, and this dataset makes batches, packs or groups of them, or "
                "samples of others: use batch_size=None, and leave out what works on more than one sample"
            )
        known = len(names) == 1 if self._leaf is None else 0 <= self._leaf < len(names)
        if not known:
            told = ", ".join(f"{number}: {name}" for number, name in enumerate(names[:20]))
            raise ConfigError(
                f"MultiEpochLeaf(leaf={self._leaf}): the dataset has {len(names)} leaves ({told}"
                f"{', …' if len(names) > 20 else ''}); give the number of one"
            )
        self._number = self._leaf or 0
        self._stage = PureStage(spec)
        self._source = self._stage.sources[self._number]
        self._statistics = Statistics(names, self._dataset.worker_config.global_error_handler)
        self._name = names[self._number]

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self._dataset, "leaf": self._leaf}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._dataset, self._leaf = state["dataset"], state["leaf"]
        self._open()

    def __repr__(self) -> str:
        return f"MultiEpochLeaf({self._name!r}, samples={len(self)}, content={self._source.content_id})"

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: EpochIndex) -> Any:
        """One sample; None if it was dropped. Raises as `__getitems__` does."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[EpochIndex]) -> list[Any]:
        """Samples in the order asked for; None for those that were dropped.

        Raises:
            TypeError: An index is not a pair of epoch and idx.
            IndexError: An epoch is negative, or an idx is not in [0, len).
            ReadError: Bytes could not be read after retries.
            FatalSampleError: Too many samples in a row were dropped, or a hook raised what no policy may skip.
        """
        if not indices:
            return []
        pairs = [epoch_index(index) for index in indices]
        epoch, idx = np.array(pairs, np.int64).T.copy()
        leaf = np.full(len(pairs), self._number, np.int32)
        draws = Draws(leaf=leaf, child=epoch * len(self) + idx, index=idx, epoch=epoch)
        encoded = self._stage.run(Chunk(number=0, draws=draws, size_bytes=0))
        if not encoded.drops:
            self._statistics.succeeded()
            return encoded.outcomes
        for outcome in encoded.outcomes:
            if type(outcome) is Dropped:
                self._statistics.drop(outcome)
            else:
                self._statistics.succeeded()
        self._statistics.settle()
        return [None if type(outcome) is Dropped else outcome for outcome in encoded.outcomes]

    def stats(self) -> dict[str, Any]:
        """What was dropped and why, in this process."""
        return self._statistics.report()
