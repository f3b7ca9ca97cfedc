"""Many epochs over a dataset as one long map-style dataset."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Any, Generic, SupportsIndex

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.multi_epoch import EpochIndex, MultiEpochDataset, SampleT_co
from energon_grain.errors import ConfigError, EmptyDatasetError
from energon_grain.samplers.columns import Column
from energon_grain.samplers.hashing import fold, fold_array
from energon_grain.samplers.permutation import MAX_SIZE, permute

_STRETCH = 512
"""Places of an epoch whose order is computed together when samples are asked for one by one: as fast as one place."""

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MultiEpochDatasetResampler(Generic[SampleT_co]):
    """Lays the epochs of a dataset out one after the other; each is a permutation of the samples of its own.

    Index i stands for place `i mod n` of epoch `i div n`, n the length of the dataset. With n = 3, 2 epochs and no
    shuffling: (0, 0) (0, 1) (0, 2) (1, 0) (1, 1) (1, 2). The order is a formula in (seed, epoch): memory does not grow
    with the number of samples or epochs, and equal indices give equal samples in every process.

    It is a map-style dataset for torch and a `grain.RandomAccessDataSource`. `__getitems__`, which torch and Grain use
    for batches, computes the order of a batch in one go (about 0.3 µs an index); `[i]` does in runs of consecutive
    indices, so that reading in order costs 3 µs an index and jumping about 250 µs.

    Attributes:
        dataset: Indexed by `EpochIndex`: a `MultiEpochDatasetWrapper`, `MultiEpochLeaf`, or anything that is.
        num_epochs: Whole epochs; or as many as `num_samples` begins. Without either: 1.
        num_samples: Length; the last epoch is cut short where it is no multiple of the dataset's.
        shuffle: Whether each epoch has an order of its own; False: that of the dataset.
        seed: Of the order: any integer.

    Raises:
        ConfigError: Both numbers are given, or one is below 1 or not whole, or there would be 2**63 samples or more.
        EmptyDatasetError: The dataset is empty.
    """

    dataset: MultiEpochDataset[SampleT_co]
    num_epochs: int | None = None
    num_samples: int | None = None
    shuffle: bool = True
    seed: int = 42
    _size: int = field(init=False)
    _key: int = field(init=False)

    def __post_init__(self) -> None:
        size = len(self.dataset)
        if size == 0:
            raise EmptyDatasetError(f"{type(self.dataset).__name__} has no samples, so there are none to draw")
        if self.num_epochs is not None and self.num_samples is not None:
            raise ConfigError(
                f"num_epochs={self.num_epochs} and num_samples={self.num_samples} both say how long the resampled "
                f"dataset is: give one of them"
            )
        if self.num_samples is None:
            epochs = _at_least_one("num_epochs", 1 if self.num_epochs is None else self.num_epochs)
            samples = size * epochs
        else:
            samples = _at_least_one("num_samples", self.num_samples)
            epochs = -(-samples // size)
        if samples > sys.maxsize or size > MAX_SIZE:
            raise ConfigError(
                f"{samples} samples of a dataset of {size}: a length below 2**63 of at most 2**62 samples an epoch is "
                f"meant; take fewer epochs"
            )
        for name, value in (
            ("num_epochs", epochs),
            ("num_samples", samples),
            ("seed", operator.index(self.seed)),
            ("_size", size),
            ("_key", fold(self.seed, "resampler")),
        ):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        # Grain compares this when it restores a state, in another process: no addresses.
        return (
            f"MultiEpochDatasetResampler({type(self.dataset).__name__} of {self._size}, "
            f"num_samples={self.num_samples}, shuffle={self.shuffle}, seed={self.seed})"
        )

    def __len__(self) -> int:
        assert self.num_samples is not None
        return self.num_samples

    def __getitem__(self, index: SupportsIndex) -> SampleT_co:
        """The sample at an index.

        Raises:
            IndexError: It is not in [0, len); there is no counting from the end.
        """
        return self.dataset[self.epoch_index(index)]

    def __getitems__(self, indices: Sequence[SupportsIndex] | npt.NDArray[np.integer[Any]]) -> list[SampleT_co]:
        """The samples at some indices, read together where the dataset has `__getitems__`.

        Raises:
            IndexError: An index is not in [0, len).
        """
        epoch, idx = self.draw(indices)
        # Half the time of `EpochIndex(...)`, which runs Python for each.
        drawn: list[EpochIndex] = list(
            map(tuple.__new__, repeat(EpochIndex), zip(epoch.tolist(), idx.tolist(), strict=True))
        )
        read_many = getattr(self.dataset, "__getitems__", None)
        if callable(read_many):
            return list(read_many(drawn))  # type: ignore[arg-type]
        return [self.dataset[each] for each in drawn]

    _getitems = __getitems__  # as Grain calls it

    def epoch_index(self, index: SupportsIndex) -> EpochIndex:
        """What stands at an index, without reading it. Raises IndexError as `[index]` does."""
        number = operator.index(index)
        if not 0 <= number < len(self):
            raise self._out_of_range(number)
        epoch, place = divmod(number, self._size)
        if not self.shuffle:
            return EpochIndex(epoch, place)
        key = fold_array(self._key, epoch)
        assert isinstance(key, int)
        stretch, offset = divmod(place, _STRETCH)
        return EpochIndex(epoch, int(_stretch_of_order(self._size, key, stretch)[offset]))

    def draw(self, indices: Sequence[SupportsIndex] | npt.NDArray[np.integer[Any]]) -> tuple[Int64Array, Int64Array]:
        """What stands at some indices, without reading it.

        Args:
            indices: (k,) in [0, len), in any order, repeated or not.

        Returns:
            epoch: (k,).
            idx: (k,) index in the dataset.

        Raises:
            IndexError: An index is not in [0, len).
            TypeError: An index is no integer.
        """
        number = self._checked(indices)
        if not len(number):
            return number, number.copy()
        epoch = number // self._size
        place = number - epoch * self._size
        if self.shuffle:
            first = int(epoch[0])
            words: Column = first if (epoch == first).all() else epoch.view(np.uint64)
            place = permute(place, self._size, fold_array(self._key, words))
        return epoch, place

    def _checked(self, indices: Sequence[SupportsIndex] | npt.NDArray[np.integer[Any]]) -> Int64Array:
        if isinstance(indices, np.ndarray):
            if indices.dtype.kind not in "iu":
                raise TypeError(f"indices of type {indices.dtype}: integers are meant")
            values: npt.NDArray[np.integer[Any]] = indices
        else:
            try:
                values = np.fromiter(map(operator.index, indices), np.int64, len(indices))
            except OverflowError as error:
                far = next(i for i in map(operator.index, indices) if not -sys.maxsize <= i <= sys.maxsize)
                raise self._out_of_range(far) from error
        if values.size:
            least, most = int(values.min()), int(values.max())
            if least < 0 or most >= len(self):
                raise self._out_of_range(least if least < 0 else most)
        return values.astype(np.int64, copy=False)

    def _out_of_range(self, number: int) -> IndexError:
        return IndexError(
            f"index {number}: the resampled dataset has {self.num_samples} samples ({self.num_epochs} epochs of "
            f"{self._size}), counted from 0; there is no counting from the end"
        )


def _at_least_one(name: str, value: SupportsIndex) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ConfigError(
            f"{name}={value!r}: a whole number is meant; for a part of an epoch give num_samples"
        ) from error
    if number < 1:
        raise ConfigError(f"{name}={number}: at least 1 is meant")
    return number


@lru_cache(maxsize=128)
def _stretch_of_order(size: int, key: int, stretch: int) -> Int64Array:
    """Images of `_STRETCH` consecutive places, or fewer at the end. 128 of them take 512 KiB a process."""
    start = stretch * _STRETCH
    return permute(np.arange(start, min(start + _STRETCH, size), dtype=np.int64), size, key)
