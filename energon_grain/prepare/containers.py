# SPDX-License-Identifier: Apache-2.0
"""What the operations on shards ask of a kind of data: `Kind.shards`."""

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
    """The samples of some shards with an index of their parts."""

    @property
    def kept(self) -> KeptColumns:
        """What is known of all its samples."""
        ...

    @property
    def index_id(self) -> str:
        """Content id of the index, whatever is served of it."""
        ...

    @property
    def all_shards(self) -> Sequence[str]:
        """Names of the dataset's shards, served or not."""
        ...

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts that a read may return."""
        ...

    @property
    def all_part_names(self) -> tuple[str, ...]:
        """Names of the parts that samples of the dataset have, read or not."""
        ...

    @property
    def unmatched_excludes(self) -> tuple[str, ...]:
        """Samples that were to be left out and are not there, as `<shard>/<key>`."""
        ...


ContainerName = Literal["tar", "array-record"]
Compression = Literal["none", "zstd"]
Sample: TypeAlias = tuple[str, Mapping[str, bytes]]
"""Key, and payload by part."""


class UnfitSampleError(FormatError):
    """A container cannot hold a sample. Says which sample, not of which shard."""


class ShardFile(Protocol):
    """A shard that is being written."""

    end: int
    """Where the samples so far end; of records before they are compressed."""

    def add(self, key: str, parts: Mapping[str, bytes]) -> tuple[list[int], int]:
        """Write a sample; give the offset of each part, and where the sample ends, as a scan counts them.

        Raises UnfitSampleError; nothing of it was written.
        """
        ...

    def close(self) -> None:
        """Write the end, and flush the file to disk."""
        ...

    def abandon(self) -> None:
        """Close the file as it is."""
        ...


class ShardBytes(Protocol):
    """An open shard whose parts are read by their offsets."""

    size_bytes: int
    data: ScannedBytes


class Container(ABC):
    """A kind of file that samples are stored in: what operations on shards ask of it.

    Attributes:
        name: As arguments call it.
        file: What messages call one.
        suffix: What names of such files end with, where they are written here.
        compressed: What names of files end with that are compressed as a whole, and the tool for each.
        marker: The file in `.nv-meta` that says that a dataset's shards are of this kind; empty: it needs none.
        encodings: Of their records, the one that is written here first; none: shards have no encoding of their own.
        has_offsets: Whether parts are ranges of bytes of the file, so that they can be read by themselves.
        no_sample: The error for a file without any sample, and what a sample is.
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
        """What the command that prepares a folder of such files needs, a space before it."""
        return f" --records {'|'.join(self.encodings)}" if self.encodings else ""

    def hint(self, location: str, names: Collection[str]) -> str | None:
        """See `Kind.hint`."""
        return not_indexed(location, self.flags) if any(map(self.is_shard, names)) else None

    @property
    def written(self) -> RecordEncoding | None:
        """How samples are encoded in files that are written here."""
        return self.encodings[0] if self.encodings else None

    def is_shard(self, name: str) -> bool:
        """Whether a file may be one, by its name."""
        return name.endswith(self.suffix)

    @abstractmethod
    def scan(self, path: str, encoding: RecordEncoding | None, *, first: int) -> ShardScan:
        """Scan a file or object; `first` is the number in the dataset of its first sample."""

    @abstractmethod
    def scan_indexed(
        self, folder: DataFolder, shard: str, count: int, encoding: RecordEncoding | None, *, first: int
    ) -> ShardScan:
        """Scan a shard that was indexed with `count` samples, as it was scanned then.

        Raises StaleIndexError where it is gone, or is found not to be the one that was indexed.
        """

    @abstractmethod
    def lint(
        self, folder: DataFolder, shard: str, count: int, encoding: RecordEncoding | None, *, first: int
    ) -> tuple[ShardScan, tuple[str, str] | None]:
        """Scan a shard as `scan_indexed` does; also what does not fit its index, and what to do about it."""

    def count(self, path: str) -> int:
        """How many samples a file has, without reading them; asked where keys may be their numbers."""
        raise NotImplementedError

    def index_file(self, shard: str) -> str | None:
        """The name of an index that `prepare` writes beside each shard."""
        return None

    def open_bytes(self, path: str) -> AbstractContextManager[ShardBytes]:
        """Open a file whose parts have offsets."""
        raise NotImplementedError

    @abstractmethod
    def part(self, path: str, encoding: RecordEncoding | None, scan: ShardScan, sample: int, name: str) -> object:
        """What a sample has as its part of this name."""

    @abstractmethod
    def writer(self, path: Path, compression: Compression) -> ShardFile:
        """Begin to write a file."""

    @abstractmethod
    def read(self, path: Path) -> Iterator[Sample]:
        """Read back all samples of a file that was written here. Raises FormatError, and ReadError."""

    def prefix_keys(self, path: Path, prefix: str) -> None:
        """Put a text before the key of each sample, unless all have it. The file is replaced as a whole."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class Shards:
    """The shards of a kind of data.

    Attributes:
        container: Their file format.
        source: Opens them; called with a `DataFolder` and `SourceOptions`.
        open_folder: Says where a dataset and its index are; bare shards are indexed first.
    """

    container: Container
    source: Callable[..., Any]  # a `PreparedSource`
    open_folder: Callable[[str], DataFolder] = open_folder


def shards_of(kind: Kind) -> Shards | None:
    """The shards of a kind; None: it has none."""
    return kind.shards


def containers() -> Iterator[Container]:
    """All containers, our own first. Those of other packages are looked up only when they are asked for."""
    shards = (shards_of(kind) for kind in all_kinds())
    return (each.container for each in shards if each is not None)


def container_in(root: str | os.PathLike[str]) -> Container:
    """The container of the shards of the dataset at a folder of this machine; of none the one without a marker."""
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
    """The container of shards whose samples are in this encoding, or in none of their own."""
    return next(each for each in containers() if (encoding in each.encodings if encoding else not each.encodings))


def container_named(name: ContainerName) -> Container:
    """The container that arguments call so."""
    return next(each for each in containers() if each.name == name)


def open_data(path: str | os.PathLike[str] | DataFolder) -> DataFolder:
    """Say where a dataset is, prepared or bare: `open_folder`, which indexes bare shards first.

    Raises EnergonGrainError as that, or as the indexing does.
    """
    if isinstance(path, DataFolder):
        return path
    location = located(path)
    shards = shards_of(kind_at(location))
    return open_folder(location) if shards is None else shards.open_folder(location)


def open_prepared(path: str | os.PathLike[str] | DataFolder, **options: Any) -> PreparedSource:
    """Open shards; `options` are `SourceOptions`, errors those of the source of their kind.

    What is not there, or not prepared, is opened as shards of the kind without a marker, and the error says so.
    """
    folder = open_folder(path)
    return _shards_in(folder.local).source(folder, **options)
