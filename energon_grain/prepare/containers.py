"""What the operations on shards ask of a kind of data: `Kind.shards`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os.path import isfile
from typing import Any, Protocol

from energon_grain.formats.columns import KeptColumns
from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.formats.nv_meta import META_FOLDER, is_prepared
from energon_grain.sources.kinds import Kind, all_kinds, kind_at
from energon_grain.sources.source import Source
from energon_grain.storage.location import located


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Container:
    """A kind of file that samples are stored in.

    Attributes:
        name: As arguments call it.
        file: What messages call one: "tar file".
        marker: The file in `.nv-meta` that says that a dataset's shards are of this kind; empty: it needs none.
        has_offsets: Whether parts are ranges of bytes of the file, so that they can be read by themselves.
        source: Opens a dataset of such files as a `PreparedSource`.
    """

    name: str
    file: str
    marker: str = ""
    has_offsets: bool = False
    source: Callable[..., Any]

    @property
    def files(self) -> str:
        """What messages call several."""
        return f"{self.file}s"


@dataclass(frozen=True, kw_only=True, eq=False)
class Shards:
    """The shards of a kind of data.

    Attributes:
        container: What they are.
        open_folder: Says where a dataset and its index are; bare shards are indexed first.
    """

    container: Container
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
    if is_prepared(root):
        meta = os.path.join(root, META_FOLDER, "")
        for container in containers():
            if container.marker and isfile(meta + container.marker):
                return container
    return next(container for container in containers() if not container.marker)


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
    return container_in(folder.local).source(folder, **options)
