# SPDX-License-Identifier: Apache-2.0
"""The protocol of random-access collections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import is_not
from typing import Any, Protocol, TypeAlias, cast, overload, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.samples.sample import SourceInfo
from energon_grain.storage.byte_stream import ByteStream
from energon_grain.storage.epath import shared_epath
from energon_grain.storage.memory_maps import release_pages

Int64Array = npt.NDArray[np.int64]


def in_range(indices: npt.NDArray[np.integer[Any]], count: int, *, where: str, what: str = "sample") -> Int64Array:
    """Return (n,) `indices` as int64 if all are in [0, count).

    Raises IndexError, which names `where` and the first index out of range.
    """
    found = np.asarray(indices, np.int64)
    if len(found) and int(found.view(np.uint64).max()) >= count:  # negative ones are the largest
        wrong = found[(found < 0) | (found >= count)][0]
        raise IndexError(f"{where}: {what} {int(wrong)} is out of range: there are {count}")
    return found


PartFilter: TypeAlias = Callable[[str], bool] | Collection[str] | None
"""Names, or a predicate on the name; None: all."""


def accepts(parts: PartFilter, name: str) -> bool:
    """Whether the part `name` is read."""
    if parts is None:
        return True
    return bool(parts(name)) if callable(parts) else name in parts


_AT_ONCE = 1 << 20


def in_pieces(indices: slice, count: int, column: Callable[[Int64Array], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """(n,) values of `column` for a slice of `count` samples, requested a million at a time."""
    wanted = range(*indices.indices(count))
    cuts = [wanted[at : at + _AT_ONCE] for at in range(0, len(wanted), _AT_ONCE)] or [wanted]
    return np.concatenate([column(np.arange(cut.start, cut.stop, cut.step)) for cut in cuts])


def release_mapped(block: npt.NDArray[Any]) -> None:
    """Release the memory-mapped pages of the column that a block is a view of."""
    while isinstance(block.base, np.ndarray):
        block = block.base
    release_pages(block)


class LazySources(msgspec.Struct, gc=False, eq=False):
    """The `__sources__` of a sample. Behaves as a tuple of `SourceInfo` that is looked up in the index on access.

    Most training programs never access it; a tuple of strings per sample would cost more than reading the sample. A
    struct is created in 0.1 µs and costs the garbage collector nothing.

    `isinstance(…, Sequence)` is False on purpose: frameworks that move batches to devices walk through sequences and
    create new ones of the same type. They leave this object unchanged.
    """

    source: Any
    """The `Source` the sample was read from. For a join: a source with `members`, whose samples are named. For several
    samples: a tuple of their sources, in order."""
    index: int = 0
    """Index of the sample in it."""

    def resolve(self) -> tuple[SourceInfo, ...]:
        """The plain tuple."""
        source = self.source
        if isinstance(source, tuple):
            return tuple(info for part in cast("tuple[Iterable[SourceInfo], ...]", source) for info in part)
        if not hasattr(source, "locate_all"):
            return (_info(source, source.locate(self.index)),)
        places = zip(source.members, source.locate_all(self.index), strict=True)
        return tuple(_info(member, place) for member, place in places if place is not None)

    def __len__(self) -> int:
        return len(self.resolve())

    @overload
    def __getitem__(self, place: int) -> SourceInfo: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[SourceInfo, ...]: ...
    def __getitem__(self, place: int | slice) -> SourceInfo | tuple[SourceInfo, ...]:
        return self.resolve()[place]

    def __iter__(self) -> Iterator[SourceInfo]:
        return iter(self.resolve())

    def __contains__(self, entry: object) -> bool:
        return entry in self.resolve()

    def __add__(self, other: Iterable[SourceInfo]) -> LazySources:
        return LazySources((self, other))

    def __radd__(self, other: Iterable[SourceInfo]) -> LazySources:
        return LazySources((other, self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, LazySources)) and self.resolve() == tuple(other)

    def __hash__(self) -> int:
        return hash(self.resolve())

    def __repr__(self) -> str:
        return repr(self.resolve())

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.resolve(),)


def _info(source: Any, place: SampleLocation) -> SourceInfo:
    names = tuple(f"{place.key}.{part}" for part in place.parts)
    return SourceInfo(
        dataset_path=shared_epath(source.path), index=place.index, shard_name=place.shard, file_names=names
    )


PartValue: TypeAlias = bytes | ByteStream | npt.NDArray[Any]
"""The bytes of a part, a stream that reads them on demand, or a row of an array, which needs no decoding."""

LazyFrom: TypeAlias = Callable[[str], int | None] | None
"""Returns, by part name, the size in bytes from which parts become streams instead of being read; None: never."""
CLIP_BYTES = 4 << 20
"""The size of a stream in memory planning: about the bytes read to decode a clip of a video."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSample:
    """One sample as stored in its shard."""

    key: str
    """Base name of the sample's members, folders included."""
    shard: str
    """Name of the shard, relative to the dataset."""
    index: int
    """Index of the sample in its source."""
    parts: Mapping[str, PartValue]
    """Payload by part name, in the order of the shard."""


class RawBatch(Sequence[RawSample]):
    """The result of one batched read: a sequence of raw samples, stored as columns.

    Columns make batched reading cheap: a decoder runs over `columns["jpg"]`, and an object per sample is created only
    on access.

    Attributes:
        indices: (n,) index of each sample in its source.
        keys: Key of each sample.
        shards: Shard of each sample.
        columns: For each part name, one value per sample, or None where the sample lacks the part.
        orders: For each sample, the names of its parts in order. None: the order of the columns, for all samples.
    """

    __slots__ = ("columns", "indices", "keys", "orders", "shards")

    def __init__(
        self,
        *,
        indices: npt.NDArray[np.int64],
        keys: list[str],
        shards: list[str],
        columns: Mapping[str, Sequence[PartValue | None]],
        orders: Sequence[tuple[str, ...]] | None = None,
    ) -> None:
        self.indices = indices
        self.keys = keys
        self.shards = shards
        self.columns = columns
        self.orders = orders

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, place: int) -> RawSample: ...
    @overload
    def __getitem__(self, place: slice) -> list[RawSample]: ...
    def __getitem__(self, place: int | slice) -> RawSample | list[RawSample]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        names = self.columns if self.orders is None else self.orders[place]
        parts = {name: value for name in names if (value := self.columns[name][place]) is not None}
        return RawSample(key=self.keys[place], shard=self.shards[place], index=int(self.indices[place]), parts=parts)

    def __iter__(self) -> Iterator[RawSample]:
        for place in range(len(self)):
            yield self[place]

    def _parts_of_each(self) -> list[dict[str, PartValue]]:
        """The parts of each sample by name, without missing ones."""
        names = [*self.columns]
        if self.orders is None and all(map(self.is_complete, names)):
            rows: Iterable[Any] = zip(*self.columns.values(), strict=True) if names else [()] * len(self)
            return [dict(zip(names, row, strict=True)) for row in rows]
        return [dict(raw.parts) for raw in self]

    def nbytes(self) -> int:
        """Payload bytes of all parts read."""
        values = (value for column in self.columns.values() for value in column if value is not None)
        read = (value for value in values if not isinstance(value, ByteStream))
        return sum(len(value) if isinstance(value, bytes) else value.nbytes for value in read)

    def is_complete(self, part: str) -> bool:
        """Whether every sample has the part."""
        # `None in column` would compare, which arrays do number by number.
        return all(map(is_not, self.columns[part], repeat(None)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLocation:
    """Location of one sample. Offsets and sizes are in bytes, from the start of the shard.

    In ArrayRecord files and arrays they are counted as if records or rows were contiguous and uncompressed.
    """

    index: int
    shard: str
    key: str
    start: int
    """First header byte of the sample."""
    stop: int
    """One past the last byte, padding included."""
    parts: dict[str, tuple[int, int]]
    """Part name to (offset of the payload, size of the payload)."""


@runtime_checkable
class Source(Protocol):
    """A random-access collection of raw samples. Thread-safe and picklable: pickles contain only paths."""

    @property
    def path(self) -> str:
        """Location of the dataset, for provenance and messages."""
        ...

    @property
    def content_id(self) -> str:
        """Digest of the samples served, in order: equal content has an equal id, wherever it is."""
        ...

    def __len__(self) -> int: ...

    def read(self, indices: npt.NDArray[np.int64]) -> RawBatch:
        """Read samples in the order requested; indices may repeat.

        Args:
            indices: (n,) in [0, len).

        Raises:
            IndexError: An index is out of range.
            ReadError: Bytes could not be read after retries.
        """
        ...

    def keys(self, indices: npt.NDArray[np.int64]) -> list[str]:
        """Return the key of each sample. Raises IndexError, and the errors of `read` if the data stores the keys."""
        ...

    def sizes(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """(n,) payload bytes of each sample, known without reading it. See `CLIP_BYTES`."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its columns: one number per sample, known without reading it."""
        ...

    def column(self, name: str, indices: npt.NDArray[np.int64] | slice) -> npt.NDArray[Any]:
        """(n,) values of a column for samples; NaN (0 for sizes) where the column has no value.

        Args:
            name: Name of the column.
            indices: (n,) in [0, len), in any order; or a slice, which needs no memory beyond the result, and none at
                all if the column is stored in that order.

        Raises:
            IndexError: An index is out of range.
            KeyNotFoundError: The column does not exist, or belongs to other samples. Names the command that creates it.
            IndexFileError: It is damaged.
            ReadError: An object store cannot be reached.
        """
        ...

    def column_id(self, name: str) -> str:
        """Digest that changes with the numbers of a column, which are fixed from then on. Raises as `column` does."""
        ...

    def locate(self, index: int) -> SampleLocation:
        """Location of a sample, without reading it. Raises IndexError when `index` is out of range."""
        ...

    def place_of(self, index: int) -> str:
        """Location of a sample, for messages: `shard-000012.tar: 000341`. Raises IndexError as `locate` does."""
        ...

    def close(self) -> None:
        """Release file handles. The next read opens them again."""
        ...


class Group(Protocol):
    """Several sources that are read together."""

    def read(self, which: npt.NDArray[np.integer[Any]], indices: npt.NDArray[np.int64]) -> RawBatch:
        """Read samples of the (n,) numbered sources, in the order requested. See `Source.read`."""
        ...


@runtime_checkable
class ReadInGroups(Protocol):
    """A source that can be read together with others, which saves most of the time if each has few samples.

    As in `ReadsByKeys`, the names have an underscore: sources are public, and these methods are for the engine only.
    """

    def _read_key(self) -> Hashable:
        """Equal for sources that can share a group; None: this source is read separately."""
        ...

    def _group(self, sources: Sequence[Any]) -> Group:
        """A group of sources with equal `_read_key`, this one among them."""
        ...


@runtime_checkable
class ReadsByKeys(Protocol):
    """A source that can skip looking up keys which the caller already has."""

    def _read_by_keys(self, indices: npt.NDArray[np.int64], keys: list[str]) -> RawBatch:
        """Read samples whose keys are known. See `Source.read`."""
        ...


@runtime_checkable
class HasParts(Protocol):
    """A source that can restrict reads to the parts needed."""

    def with_parts(self, parts: frozenset[str]) -> Any:
        """The same samples, with only these parts read."""
        ...


@runtime_checkable
class HasKeyColumns(Protocol):
    """Rows whose keys may be stored in one of their columns."""

    def key_blocks(self, column: str | None = None) -> Iterator[list[str]]:
        """The keys of all rows, in order, in blocks: of the given column, or of the default one."""
        ...

    def keys_id(self, column: str | None = None) -> str:
        """Digest of keys stored in the data; empty if file names determine them."""
        ...
