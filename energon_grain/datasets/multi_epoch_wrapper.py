"""A map-style dataset, with augmentations that are a function of epoch and index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from energon_grain.datasets.multi_epoch import EpochIndex, SizedDataset
from energon_grain.samplers.hashing import fold
from energon_grain.sources.source import Source

T = TypeVar("T")
U_co = TypeVar("U_co", covariant=True)


@dataclass
class MultiEpochDatasetWrapper(ABC, Generic[T, U_co]):
    """Makes a `MultiEpochDataset` of a map-style dataset: override `apply_transform`.

    `dataset[i]` must not depend on chance or on what was read before: whatever does belongs into `apply_transform`,
    with random numbers from `self.rng(index)`.

    Where the dataset has None (a sample of ours that does not decode), None is given on and `apply_transform` is not
    called; Grain leaves such elements out.

    Attributes:
        dataset: Anything with `len` and `[i]`, or a source with `read(indices)`, as `WebDatasetSource` is. Batches are
            read by `__getitems__` or `read` where there is one, else one by one.
        seed: Of the random numbers in `apply_transform`, not of the order.
    """

    dataset: SizedDataset[T] | Source
    seed: int = field(default=42, kw_only=True)

    @abstractmethod
    def apply_transform(self, sample: T, index: EpochIndex) -> U_co:
        """Make what the epoch trains on of a sample. Equal arguments must give equal results, in every process."""

    def random_seed(self, index: EpochIndex) -> int:
        """A number in [0, 2**63) that is a hash of (`seed`, epoch, idx), for generators of another framework."""
        return fold(self.seed, "apply_transform", index.epoch, index.idx) >> 1

    def rng(self, index: EpochIndex) -> np.random.Generator:
        """A new generator that depends on (`seed`, epoch, idx) alone."""
        return np.random.Generator(np.random.Philox(key=self.random_seed(index)))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: EpochIndex) -> U_co:
        """One sample, transformed. Raises as `__getitems__` does."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[EpochIndex]) -> list[U_co]:
        """Samples in the order asked for, transformed.

        Raises:
            TypeError: An index is not a pair of epoch and idx.
            IndexError: An epoch or an idx is negative; or the dataset has no such sample, as far as it says so.
        """
        pairs = [epoch_index(index) for index in indices]
        samples = _read(self.dataset, [pair.idx for pair in pairs])
        none: Any = None
        return [
            none if sample is None else self.apply_transform(sample, pair)
            for sample, pair in zip(samples, pairs, strict=True)
        ]


class IdentityMultiEpochDatasetWrapper(MultiEpochDatasetWrapper[T, T]):
    """Gives the samples of a dataset as they are, in every epoch."""

    def apply_transform(self, sample: T, index: EpochIndex) -> T:
        """The sample itself."""
        return sample


def epoch_index(index: Any) -> EpochIndex:
    """The index, checked.

    Raises:
        TypeError: It is not a pair.
        IndexError: A number in it is negative.
    """
    if not isinstance(index, tuple) or len(index) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise TypeError(
            f"index {index!r}: a multi-epoch dataset is indexed by EpochIndex(epoch, idx); for plain numbers put a "
            f"MultiEpochDatasetResampler around it"
        )
    pair = index if isinstance(index, EpochIndex) else EpochIndex(*index)
    if pair.epoch < 0 or pair.idx < 0:
        raise IndexError(f"{pair}: epochs and indices count from 0, there is no counting from the end")
    return pair


def _read(dataset: Any, indices: list[int]) -> Sequence[Any]:
    """Samples of a map-style dataset or of a source, in one call where it can."""
    read_many: Any = getattr(dataset, "__getitems__", None)
    if callable(read_many):
        return list(read_many(indices))  # type: ignore[arg-type]
    if not hasattr(dataset, "__getitem__") and hasattr(dataset, "read"):
        return dataset.read(np.array(indices, np.int64))
    return [dataset[index] for index in indices]
