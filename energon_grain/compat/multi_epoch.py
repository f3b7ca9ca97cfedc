# SPDX-License-Identifier: Apache-2.0
"""Datasets that know which epoch they are asked for: what they are indexed with, and what they promise.

The names are those of BioNeMo's `bionemo.core.data.multi_epoch_dataset`. A `SizedDataset` is any map-style dataset; a
`MultiEpochDatasetWrapper` makes a `MultiEpochDataset` of it, with augmentations that differ from epoch to epoch; a
`MultiEpochLeaf` is one of a leaf of ours; a
`MultiEpochDatasetResampler` lays many epochs out as one long map-style dataset, each epoch in an order of its own.
"""

from __future__ import annotations

import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Any, Generic, NamedTuple, Protocol, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.dataset import SavableDataset, put
from energon_grain.errors import ConfigError, EmptyDatasetError
from energon_grain.samplers.columns import Column
from energon_grain.samplers.hashing import fold, fold_array
from energon_grain.samplers.permutation import MAX_SIZE, permute
from energon_grain.sources.source import Source
from energon_grain.stream.chunks import Chunk
from energon_grain.stream.drops import DropBudget, Dropped
from energon_grain.stream.index_map import Draws
from energon_grain.stream.observer import Outlet
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.watch.loader_stats import LoaderStats
from energon_grain.watch.statistics import Statistics

T = TypeVar("T")
U_co = TypeVar("U_co", covariant=True)
SampleT_co = TypeVar("SampleT_co", covariant=True)
_STRETCH = 512
"""Places of an epoch whose order is computed together when samples are asked for one by one: as fast as one place."""

Int64Array = npt.NDArray[np.int64]


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
    """The index, checked. Raises TypeError if it is not a pair, and IndexError if a number in it is negative."""
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


class LeafSamples:
    """Samples of one leaf by their numbers, made when they are asked for. Thread-safe."""

    def _open_leaf(self, dataset: SavableDataset, spec: StreamSpec, number: int) -> None:
        self._number = number
        self._stage = PureStage(spec)
        self._source = self._stage.sources[number]
        names = ["/".join(leaf.key) for leaf in spec.leaves]
        self._statistics = Statistics(names)
        self._drops = DropBudget(dataset.worker_config.global_error_handler, Outlet(self._statistics))

    def __len__(self) -> int:
        return len(self._source)

    def _read(self, index: Int64Array, epoch: Int64Array) -> list[Any]:
        """(n,) samples; None for those that were dropped."""
        leaf = np.full(len(index), self._number, np.int32)
        draws = Draws(leaf=leaf, child=epoch * len(self) + index, index=index, epoch=epoch)
        encoded = self._stage.run(Chunk(number=0, draws=draws, size_bytes=0))
        self._statistics.planned(draws, int(self._source.sizes(index).sum()))
        if encoded.work is not None:
            self._statistics.spans(encoded.work)
        if not encoded.drops:
            self._drops.succeeded()
            return encoded.outcomes
        for outcome in encoded.outcomes:
            if type(outcome) is Dropped:
                self._drops.drop(outcome)
            else:
                self._drops.succeeded()
        self._statistics.settle()
        return [None if type(outcome) is Dropped else outcome for outcome in encoded.outcomes]

    def stats(self) -> LoaderStats:
        """What was read, what took time, and what was dropped and why, in this process."""
        return self._statistics.report()


class MultiEpochLeaf(LeafSamples):
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
        spec = self._dataset.compiled()
        names = ["/".join(leaf.key) for leaf in spec.leaves]
        if spec.batch is not None or spec.index_map is None or spec.makers:
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
        self._open_leaf(self._dataset, spec, self._leaf or 0)
        self._name = names[self._number]

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self._dataset, "leaf": self._leaf}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._dataset, self._leaf = state["dataset"], state["leaf"]
        self._open()

    def __repr__(self) -> str:
        return f"MultiEpochLeaf({self._name!r}, samples={len(self)}, content={self._source.content_id})"

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
        return self._read(idx, epoch)


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
        put(self, num_epochs=epochs, num_samples=samples, seed=operator.index(self.seed))
        put(self, _size=size, _key=fold(self.seed, "resampler"))

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
                raise TypeError(f"indices of type {indices.dtype}: expected integers")
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
            f"{name}={value!r}: expected a whole number; for a part of an epoch give num_samples"
        ) from error
    if number < 1:
        raise ConfigError(f"{name}={number}: expected at least 1")
    return number


@lru_cache(maxsize=128)
def _stretch_of_order(size: int, key: int, stretch: int) -> Int64Array:
    """Images of `_STRETCH` consecutive places, or fewer at the end. 128 of them take 512 KiB a process."""
    start = stretch * _STRETCH
    return permute(np.arange(start, min(start + _STRETCH, size), dtype=np.int64), size, key)
