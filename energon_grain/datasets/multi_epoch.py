"""Datasets that know which epoch they are asked for: what they are indexed with, and what they promise.

The names are those of BioNeMo's `bionemo.core.data.multi_epoch_dataset`. A `SizedDataset` is any map-style dataset; a
`MultiEpochDatasetWrapper` makes a `MultiEpochDataset` of it, with augmentations that differ from epoch to epoch; a
`MultiEpochDatasetResampler` lays many epochs out as one long map-style dataset, each epoch in an order of its own.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

SampleT_co = TypeVar("SampleT_co", covariant=True)


class EpochIndex(NamedTuple):
    """Which sample of a dataset, and in which epoch; both count from 0."""

    epoch: int
    """Pass over the dataset."""
    idx: int
    """Index in the dataset, whatever the order of the epoch."""


class SizedDataset(Protocol[SampleT_co]):
    """A map-style dataset: a length, and equal samples for equal indices.

    If it has `__getitems__(list of indices)` too, batches are read with it.
    """

    def __getitem__(self, index: int, /) -> SampleT_co: ...

    def __len__(self) -> int: ...


class MultiEpochDataset(Protocol[SampleT_co]):
    """A dataset of `len` samples that is indexed by (epoch, idx). Equal indices give equal samples, in every process.

    If it has `__getitems__(list of EpochIndex)` too, batches are read with it.
    """

    def __getitem__(self, index: EpochIndex, /) -> SampleT_co: ...

    def __len__(self) -> int: ...
