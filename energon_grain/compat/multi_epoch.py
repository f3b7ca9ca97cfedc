# SPDX-License-Identifier: Apache-2.0
"""Map-style datasets that are indexed by epoch and sample.

The names are those of BioNeMo's `bionemo.core.data.multi_epoch_dataset`. A `SizedDataset` is any map-style dataset. A
`MultiEpochDatasetWrapper` turns it into a `MultiEpochDataset`, with augmentations that differ by epoch. A
`MultiEpochLeaf` is the `MultiEpochDataset` of a leaf. A `MultiEpochDatasetResampler` concatenates many epochs into one
long map-style dataset, where each epoch has its own order.
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
_RUN = 512
"""Positions of an epoch whose order is computed together when samples are read one by one, at the cost of one."""

Int64Array = npt.NDArray[np.int64]


class EpochIndex(NamedTuple):
    """A sample of a dataset, and its epoch; both count from 0."""

    epoch: int
    """Pass over the dataset."""
    idx: int
    """Index in the dataset, regardless of the order of the epoch."""


class SizedDataset(Protocol[SampleT_co]):
    """A map-style dataset: a length, and equal samples for equal indices.

    If it also has `__getitems__(list of indices)`, batches are read with it.
    """

    def __getitem__(self, index: int, /) -> SampleT_co: ...

    def __len__(self) -> int: ...


class MultiEpochDataset(Protocol[SampleT_co]):
    """A dataset of `len` samples, indexed by (epoch, idx). Equal indices return equal samples in every process.

    If it also has `__getitems__(list of EpochIndex)`, batches are read with it.
    """

    def __getitem__(self, index: EpochIndex, /) -> SampleT_co: ...

    def __len__(self) -> int: ...


@dataclass
class MultiEpochDatasetWrapper(ABC, Generic[T, U_co]):
    """Turns a map-style dataset into a `MultiEpochDataset`: override `apply_transform`.

    `dataset[i]` must not depend on chance or on earlier reads. Anything random belongs in `apply_transform`, with
    random numbers from `self.rng(index)`.

    If the dataset returns None (for a sample that cannot be decoded), None is returned without `apply_transform`; Grain
    skips such elements.

    Attributes:
        dataset: Any object with `len` and `[i]`, or a source with `read(indices)`, such as `WebDatasetSource`. Batches
            are read with `__getitems__` or `read` if available, otherwise one by one.
        seed: Seed of the random numbers in `apply_transform`, not of the order.
    """

    dataset: SizedDataset[T] | Source
    seed: int = field(default=42, kw_only=True)

    @abstractmethod
    def apply_transform(self, sample: T, index: EpochIndex) -> U_co:
        """Make the training sample of an epoch. Equal arguments must return equal results in every process."""

    def random_seed(self, index: EpochIndex) -> int:
        """Return a number in [0, 2**63): a hash of (`seed`, epoch, idx), for generators of other frameworks."""
        return fold(self.seed, "apply_transform", index.epoch, index.idx) >> 1

    def rng(self, index: EpochIndex) -> np.random.Generator:
        """Return a new generator that depends only on (`seed`, epoch, idx)."""
        return np.random.Generator(np.random.Philox(key=self.random_seed(index)))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: EpochIndex) -> U_co:
        """Return one transformed sample. Raises the errors of `__getitems__`."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[EpochIndex]) -> list[U_co]:
        """Return the transformed samples at the indices, in order.

        Raises:
            TypeError: An index is not a pair of epoch and idx.
            IndexError: An epoch or idx is negative, or the dataset raises it for a missing sample.
        """
        pairs = [epoch_index(index) for index in indices]
        samples = _read(self.dataset, [pair.idx for pair in pairs])
        none: Any = None
        return [
            none if sample is None else self.apply_transform(sample, pair)
            for sample, pair in zip(samples, pairs, strict=True)
        ]


class IdentityMultiEpochDatasetWrapper(MultiEpochDatasetWrapper[T, T]):
    """Returns the samples of a dataset unchanged in every epoch."""

    def apply_transform(self, sample: T, index: EpochIndex) -> T:
        """Return the sample."""
        return sample


def epoch_index(index: Any) -> EpochIndex:
    """Check an index. Raises TypeError if it is not a pair, and IndexError if a number in it is negative."""
    if not isinstance(index, tuple) or len(index) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise TypeError(
            f"index {index!r}: a multi-epoch dataset is indexed by EpochIndex(epoch, idx); for plain numbers wrap it "
            f"in a MultiEpochDatasetResampler"
        )
    pair = index if isinstance(index, EpochIndex) else EpochIndex(*index)
    if pair.epoch < 0 or pair.idx < 0:
        raise IndexError(f"{pair}: epochs and indices count from 0, negative numbers are not supported")
    return pair


def _read(dataset: Any, indices: list[int]) -> Sequence[Any]:
    """Read samples of a map-style dataset or of a source, in one call if possible."""
    read_many: Any = getattr(dataset, "__getitems__", None)
    if callable(read_many):
        return list(read_many(indices))  # type: ignore[arg-type]
    if not hasattr(dataset, "__getitem__") and hasattr(dataset, "read"):
        return dataset.read(np.array(indices, np.int64))
    return [dataset[index] for index in indices]


class LeafSamples:
    """Samples of one leaf by number, made on request. Thread-safe."""

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
        """Return (n,) samples; None for dropped ones."""
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
        """Return counts of samples read and dropped, drop reasons, and times, of this process."""
        return self._statistics.report()


class MultiEpochLeaf(LeafSamples):
    """A `MultiEpochDataset` of one leaf of a dataset or metadataset, decoded, cooked and encoded.

    The task encoder's hooks on single samples run, with their random numbers: `self.rng` depends only on (seed of the
    dataset, leaf, epoch, idx), and `current_draw().epoch` is the epoch. It therefore needs no wrapper; a
    `MultiEpochDatasetResampler` concatenates its epochs. Order, weights, repetitions and limits of the dataset have no
    effect; subsets and excludes do.

    Thread-safe; pickles as its arguments. A dropped sample is None, is counted, and is passed to the error handler.
    Batched reads (`__getitems__`) are coalesced.

    Args:
        dataset: Result of `get_train_dataset` or `get_val_datasets`, with `batch_size=None`.
        leaf: Number of the leaf, in document order; optional for a single leaf.

    Raises:
        ConfigError: The dataset batches, packs or groups, the leaf does not exist, or `leaf` is missing and there are
            several.
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
                "a MultiEpochLeaf reads single samples, but this dataset batches, packs, groups or generates: use "
                "batch_size=None, and remove nodes that work on more than one sample"
            )
        known = len(names) == 1 if self._leaf is None else 0 <= self._leaf < len(names)
        if not known:
            listed = ", ".join(f"{number}: {name}" for number, name in enumerate(names[:20]))
            raise ConfigError(
                f"MultiEpochLeaf(leaf={self._leaf}): the dataset has {len(names)} leaves ({listed}"
                f"{', …' if len(names) > 20 else ''}): pass the number of one as leaf="
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
        """Return one sample; None if it was dropped. Raises the errors of `__getitems__`."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[EpochIndex]) -> list[Any]:
        """Return the samples at the indices, in order; None for dropped ones.

        Raises:
            TypeError: An index is not a pair of epoch and idx.
            IndexError: An epoch is negative, or an idx is not in [0, len).
            ReadError: Bytes could not be read after retries.
            FatalSampleError: Too many consecutive samples were dropped, or a hook raised an error that must not be
            skipped.
        """
        if not indices:
            return []
        pairs = [epoch_index(index) for index in indices]
        epoch, idx = np.array(pairs, np.int64).T.copy()
        return self._read(idx, epoch)


@dataclass(frozen=True, eq=False)
class MultiEpochDatasetResampler(Generic[SampleT_co]):
    """Concatenates the epochs of a dataset; each epoch is its own permutation of the samples.

    Index i is position `i mod n` of epoch `i div n`, where n is the length of the dataset. With n = 3, 2 epochs and no
    shuffling: (0, 0) (0, 1) (0, 2) (1, 0) (1, 1) (1, 2). The order is a formula of (seed, epoch): memory does not grow
    with the number of samples or epochs, and equal indices return equal samples in every process.

    It is a map-style dataset for torch and a `grain.RandomAccessDataSource`. `__getitems__`, which torch and Grain use
    for batches, computes the order of a batch at once (about 0.3 µs per index). `[i]` computes it in runs of
    consecutive indices: about 3 µs per index in order, about 250 µs at random.

    Attributes:
        dataset: Indexed by `EpochIndex`: a `MultiEpochDatasetWrapper`, a `MultiEpochLeaf`, or a similar object.
        num_epochs: Number of epochs; with `num_samples`, the number of epochs started. Without either: 1.
        num_samples: Length; the last epoch is cut if it is not a multiple of the dataset's length.
        shuffle: Whether each epoch has its own order; False: the order of the dataset.
        seed: Seed of the order: any integer.

    Raises:
        ConfigError: Both numbers are set, one is below 1 or not whole, or there would be 2**63 samples or more.
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
            raise EmptyDatasetError(f"{type(self.dataset).__name__} has no samples to draw from")
        if self.num_epochs is not None and self.num_samples is not None:
            raise ConfigError(
                f"num_epochs={self.num_epochs} and num_samples={self.num_samples} both set the length of the resampled "
                f"dataset: use only one of them"
            )
        if self.num_samples is None:
            epochs = _at_least_one("num_epochs", 1 if self.num_epochs is None else self.num_epochs)
            samples = size * epochs
        else:
            samples = _at_least_one("num_samples", self.num_samples)
            epochs = -(-samples // size)
        if samples > sys.maxsize or size > MAX_SIZE:
            raise ConfigError(
                f"{samples} samples of a dataset of {size}: expected a length below 2**63, of at most 2**62 samples "
                f"per epoch: use fewer epochs"
            )
        put(self, num_epochs=epochs, num_samples=samples, seed=operator.index(self.seed))
        put(self, _size=size, _key=fold(self.seed, "resampler"))

    def __repr__(self) -> str:
        # Grain compares this when it restores a state in another process, so it must not contain addresses.
        return (
            f"MultiEpochDatasetResampler({type(self.dataset).__name__} of {self._size}, "
            f"num_samples={self.num_samples}, shuffle={self.shuffle}, seed={self.seed})"
        )

    def __len__(self) -> int:
        assert self.num_samples is not None
        return self.num_samples

    def __getitem__(self, index: SupportsIndex) -> SampleT_co:
        """Return the sample at an index.

        Raises:
            IndexError: It is not in [0, len); negative indices are not supported.
        """
        return self.dataset[self.epoch_index(index)]

    def __getitems__(self, indices: Sequence[SupportsIndex] | npt.NDArray[np.integer[Any]]) -> list[SampleT_co]:
        """Return the samples at the indices, read together if the dataset has `__getitems__`.

        Raises:
            IndexError: An index is not in [0, len).
        """
        epoch, idx = self.draw(indices)
        # Takes half the time of `EpochIndex(...)`, which runs Python code for each.
        drawn: list[EpochIndex] = list(
            map(tuple.__new__, repeat(EpochIndex), zip(epoch.tolist(), idx.tolist(), strict=True))
        )
        read_many = getattr(self.dataset, "__getitems__", None)
        if callable(read_many):
            return list(read_many(drawn))  # type: ignore[arg-type]
        return [self.dataset[each] for each in drawn]

    _getitems = __getitems__  # Grain's name

    def epoch_index(self, index: SupportsIndex) -> EpochIndex:
        """Return the epoch and sample at an index, without reading it. Raises IndexError as `[index]` does."""
        number = operator.index(index)
        if not 0 <= number < len(self):
            raise self._out_of_range(number)
        epoch, place = divmod(number, self._size)
        if not self.shuffle:
            return EpochIndex(epoch, place)
        key = fold_array(self._key, epoch)
        assert isinstance(key, int)
        run, offset = divmod(place, _RUN)
        return EpochIndex(epoch, int(_run_of_order(self._size, key, run)[offset]))

    def draw(self, indices: Sequence[SupportsIndex] | npt.NDArray[np.integer[Any]]) -> tuple[Int64Array, Int64Array]:
        """Return the epochs and samples at the indices, without reading them.

        Args:
            indices: (k,) in [0, len), in any order, with or without duplicates.

        Returns:
            epoch: (k,).
            idx: (k,) index in the dataset.

        Raises:
            IndexError: An index is not in [0, len).
            TypeError: An index is not an integer.
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
            f"{self._size}), counted from 0; negative indices are not supported"
        )


def _at_least_one(name: str, value: SupportsIndex) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ConfigError(
            f"{name}={value!r}: expected a whole number; for a part of an epoch use num_samples"
        ) from error
    if number < 1:
        raise ConfigError(f"{name}={number}: expected at least 1")
    return number


@lru_cache(maxsize=128)
def _run_of_order(size: int, key: int, run: int) -> Int64Array:
    """Return the images of `_RUN` consecutive positions, or fewer at the end. 128 of them take 512 KiB per process."""
    start = run * _RUN
    return permute(np.arange(start, min(start + _RUN, size), dtype=np.int64), size, key)
