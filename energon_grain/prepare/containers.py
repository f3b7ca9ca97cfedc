# SPDX-License-Identifier: Apache-2.0
"""The interface of a kind of data to operations on shards: `Kind.shards`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from energon_grain.errors import FormatError
from energon_grain.formats.columns import KeptColumns
from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.formats.nv_meta import META_FOLDER, is_prepared, not_indexed
from energon_grain.formats.records import RecordEncoding
from energon_grain.formats.scan import ShardScan
from energon_grain.sources.kinds import Kind, all_kinds, kind_at, own_kinds
from energon_grain.sources.source import Source
from energon_grain.storage.location import located
from energon_grain.storage.scanned_bytes import ScannedBytes


class PreparedSource(Source, Protocol):
    """Samples of selected shards, with an index of their parts."""

    @property
    def kept(self) -> KeptColumns:
        """The columns of all its samples."""
        ...

    @property
    def index_id(self) -> str:
        """Content id of the whole index, independent of the selected shards."""
        ...

    @property
    def all_shards(self) -> Sequence[str]:
        """Names of the dataset's shards, selected or not."""
        ...

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts that a read may return."""
        ...

    @property
    def all_part_names(self) -> tuple[str, ...]:
        """Names of the parts of the dataset's samples, read or not."""
        ...

    @property
    def unmatched_excludes(self) -> tuple[str, ...]:
        """Excluded samples that do not exist, as `<shard>/<key>`."""
        ...


ContainerName = Literal["tar", "array-record"]
Compression = Literal["none", "zstd"]
Sample: TypeAlias = tuple[str, Mapping[str, bytes]]
"""Key, and payload by part name."""


class UnfitSampleError(FormatError):
    """A container cannot hold a sample. The message names the sample, not its shard."""


class ShardFile(Protocol):
    """A shard opened for writing."""

    end: int
    """End of the samples written so far, in bytes; for records, before compression."""

    def add(self, key: str, parts: Mapping[str, bytes]) -> tuple[list[int], int]:
        """Write a sample. Returns the offset of each part and the end of the sample, in the same units as a scan.

        Raises UnfitSampleError, after writing nothing.
        """
        ...

    def close(self) -> None:
        """Finish the file, and flush it to disk."""
        ...

    def abandon(self) -> None:
        """Close the file without finishing it."""
        ...


class ShardBytes(Protocol):
    """An open shard whose parts are read by offset."""

    size_bytes: int
    data: ScannedBytes


class Container(ABC):
    """A file format for samples, as used by operations on shards.

    Attributes:
        name: Name in arguments.
        file: Name of one file in messages.
        suffix: File name suffix for writing.
        compressed: File name suffixes of files that are compressed as a whole, and the tool for each.
        marker: The file in `.nv-meta` that identifies a dataset of this format; empty if none is needed.
        encodings: Encodings of the records, the default for writing first; empty if the format has no encodings.
        has_offsets: Whether parts are byte ranges of the file, which can be read individually.
        no_sample: The error for a file without samples, and the description of a sample.
    """

    name: ClassVar[ContainerName]
    file: ClassVar[str]
    suffix: ClassVar[str]
    compressed: ClassVar[Mapping[str, str]] = {}
    marker: ClassVar[str] = ""
    encodings: ClassVar[tuple[RecordEncoding, ...]] = ()
    has_offsets: ClassVar[bool] = False
    no_sample: ClassVar[tuple[type[FormatError], str]]

    @property
    def flags(self) -> str:
        """Options that the `prepare` command needs for such files, with a leading space."""
        return f" --records {'|'.join(self.encodings)}" if self.encodings else ""

    def hint(self, location: str, names: Collection[str]) -> str | None:
        """See `Kind.hint`."""
        return not_indexed(location, self.flags) if any(map(self.is_shard, names)) else None

    @property
    def written(self) -> RecordEncoding | None:
        """The encoding for writing; None without encodings."""
        return self.encodings[0] if self.encodings else None

    def is_shard(self, name: str) -> bool:
        """Whether the file name matches this format."""
        return name.endswith(self.suffix)

    @abstractmethod
    def scan(self, path: str, encoding: RecordEncoding | None, *, first: int) -> ShardScan:
        """Scan a file or object; `first` is the index in the dataset of its first sample."""

    def scan_hashed(self, path: str, encoding: RecordEncoding | None, *, first: int, whole: bool) -> ShardScan:
        """`scan`, of a local file, with its `digest` if it can be made of the bytes that a scan reads.

        With `whole`, the other bytes may be read, too. Default: without a digest.
        """
        del whole
        return self.scan(path, encoding, first=first)

    @abstractmethod
    def scan_indexed(
        self, folder: DataFolder, shard: str, count: int, encoding: RecordEncoding | None, *, first: int
    ) -> ShardScan:
        """Scan a shard that was indexed with `count` samples, with the same settings as before.

        Raises StaleIndexError if the shard is missing or has changed since.
        """

    @abstractmethod
    def lint(
        self, folder: DataFolder, shard: str, count: int, encoding: RecordEncoding | None, *, first: int
    ) -> tuple[ShardScan, tuple[str, str] | None]:
        """Scan a shard as `scan_indexed` does. Also returns a mismatch with its index and the fix, or None."""

    def count(self, path: str) -> int:
        """The number of samples in a file, without reading them; needed only if keys may be row numbers."""
        raise NotImplementedError

    def index_file(self, shard: str) -> str | None:
        """Name of the index file that `prepare` writes beside each shard; None without one."""
        return None

    def open_bytes(self, path: str) -> AbstractContextManager[ShardBytes]:
        """Open a file whose parts have offsets."""
        raise NotImplementedError

    @abstractmethod
    def part(self, path: str, encoding: RecordEncoding | None, scan: ShardScan, sample: int, name: str) -> object:
        """The value of a sample's part with this name."""

    @abstractmethod
    def writer(self, path: Path, compression: Compression) -> ShardFile:
        """Open a file for writing."""

    @abstractmethod
    def read(self, path: Path) -> Iterator[Sample]:
        """Read all samples of a file that this writer wrote. Raises FormatError and ReadError."""

    def prefix_keys(self, path: Path, prefix: str) -> None:
        """Prepend a text to the key of each sample, unless all keys have it already. Replaces the whole file."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class Shards:
    """The shards of a kind of data.

    Attributes:
        container: Their file format.
        source: Opens them; called with a `DataFolder` and `SourceOptions`.
        open_folder: Locates a dataset and its index; indexes bare shards first.
    """

    container: Container
    source: Callable[..., Any]  # a `PreparedSource`
    open_folder: Callable[[str], DataFolder] = open_folder


def shards_of(kind: Kind) -> Shards | None:
    """The shards of a kind, or None."""
    return kind.shards


def containers() -> Iterator[Container]:
    """All containers, ours first. Containers of other packages are looked up lazily."""
    shards = (shards_of(kind) for kind in all_kinds())
    return (each.container for each in shards if each is not None)


def container_in(root: str | os.PathLike[str]) -> Container:
    """The container of the dataset in a local folder; without a marker, the container that needs none."""
    return _shards_in(root).container


def _shards_in(root: str | os.PathLike[str]) -> Shards:
    # Only our own: what is prepared is of a kind of ours, see `kind_at`.
    own = [shards for shards in map(shards_of, own_kinds()) if shards is not None]
    if is_prepared(root):
        meta = os.path.join(root, META_FOLDER, "")
        for shards in own:
            if shards.container.marker and isfile(meta + shards.container.marker):
                return shards
    return next(each for each in own if not each.container.encodings)


def container_of(encoding: RecordEncoding | None) -> Container:
    """The container of shards in this encoding; for None, the container without encodings."""
    return next(each for each in containers() if (encoding in each.encodings if encoding else not each.encodings))


def container_named(name: ContainerName) -> Container:
    """The container with this name."""
    return next(each for each in containers() if each.name == name)


def open_data(path: str | os.PathLike[str] | DataFolder) -> DataFolder:
    """Locate a dataset, prepared or bare. Bare shards are indexed first.

    Raises EnergonGrainError, from opening or indexing.
    """
    if isinstance(path, DataFolder):
        return path
    location = located(path)
    shards = shards_of(kind_at(location))
    return open_folder(location) if shards is None else shards.open_folder(location)


def open_prepared(path: str | os.PathLike[str] | DataFolder, **options: Any) -> PreparedSource:
    """Open shards. `options` are `SourceOptions`, errors are those of the kind's source.

    A missing or unprepared dataset is opened as the container without a marker, which raises the error.
    """
    folder = open_folder(path)
    return _shards_in(folder.local).source(folder, **options)
