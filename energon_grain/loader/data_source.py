# SPDX-License-Identifier: Apache-2.0
"""Single samples by index, for custom Grain pipelines."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, SupportsIndex

import numpy as np

from energon_grain.compat.multi_epoch import LeafSamples
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.datasets.seeded import SeededDataset
from energon_grain.errors import public
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.subset import Subset
from energon_grain.samples.registration import register_value
from energon_grain.samples.sample import Sample
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.task_encoder import DefaultTaskEncoder, TaskEncoder


@public
class EnergonDataSource(LeafSamples):
    """A `grain.sources.RandomAccessDataSource` of the decoded samples of one split part, in the order of the shards.

    Thread-safe; pickles as its arguments. Batched reads (`__getitems__`) are coalesced, single reads are not. For
    speed, pass whole batches to Grain (`BatchMapDataset`, `get_loader`).

    Supports list indexing: `source[-1]` is the last sample, `source[10:20]` a list of ten.

    Grain's pipelines are made for dictionaries: with `as_dict=True`, a sample is a dictionary of its fields without
    metadata. To batch other samples in Grain, pass `batch_fn=energon_grain.generic_batch`: otherwise Grain stacks the
    arrays of samples and keeps only the texts of the first sample.

    Samples that cannot be decoded are None, which Grain skips; they are counted and passed to the error handler.

    Args:
        path: Folder of a prepared dataset.
        split_part: Part of the split.
        subset: Range of samples, `[start, end]`, in numbers or percent.
        where: Condition on columns, see `get_train_dataset`.
        task_encoder: Provides the decoder and the cookers. Default: `DefaultTaskEncoder()`.
        part_filter: Parts to read from a crude dataset.
        dataset_config: File name of the dataset configuration in `.nv-meta`.
        split_config: File name of the split configuration.
        as_dict: Whether samples are dictionaries.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str = "train",
        subset: Any = None,
        where: str | None = None,
        task_encoder: TaskEncoder | None = None,
        part_filter: Callable[[str], bool] | Collection[str] | None = None,
        dataset_config: str = "dataset.yaml",
        split_config: str | None = None,
        as_dict: bool = False,
    ) -> None:
        self._as_dict = as_dict
        self._leaf = LeafDataset(
            worker_config=WorkerConfig(rank=0, world_size=1),
            path=os.fspath(path),
            split_part=split_part,
            split_config=split_config,
            dataset_config=dataset_config,
            subset=None if subset is None else Subset.parse(subset),
            where=None if where is None else Expression.parse(where, where="where"),
            training=False,
            shuffle_over_epochs_multiplier=None,
            task_encoder=task_encoder or DefaultTaskEncoder(),
            part_filter=part_filter,
        )
        self._open()

    def _open(self) -> None:
        spec = compile_dataset(SeededDataset(worker_config=self._leaf.worker_config, dataset=self._leaf))
        self._open_leaf(self._leaf, spec, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {"leaf": self._leaf, "as_dict": self._as_dict}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._leaf, self._as_dict = state["leaf"], state["as_dict"]
        self._open()

    def __repr__(self) -> str:
        return f"EnergonDataSource({self._leaf.path!r}, {self._leaf.split_part!r}, content={self._source.content_id})"

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, slice):
            return self.__getitems__(range(len(self))[index])
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """Return the samples at the indices, in order.

        Raises:
            IndexError: An index is not in [-len, len).
        """
        index = np.fromiter(map(operator.index, indices), np.int64, len(indices))
        outside = index[(index < -len(self)) | (index >= len(self))]
        if len(outside):
            raise IndexError(f"sample {outside[0]} of {self!r}: it has {len(self)} samples")
        index = np.where(index < 0, index + len(self), index)
        samples = self._read(index, np.zeros_like(index))
        register_value(samples)
        if self._as_dict:
            return [sample.as_dict() if isinstance(sample, Sample) else sample for sample in samples]
        return samples

    _getitems = __getitems__

    @property
    def paths(self) -> str:
        """The dataset's folder."""
        return self._leaf.path
