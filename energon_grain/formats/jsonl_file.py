"""Where a JSONL file lies, and where on this machine its index."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from energon_grain.errors import StaleIndexError
from energon_grain.formats.jsonl_index import Int64Array, find_jsonl_index, read_jsonl_index
from energon_grain.formats.jsonl_object import index_of_object
from energon_grain.storage.byte_store import ByteStore
from energon_grain.storage.local import LocalFiles
from energon_grain.storage.location import is_url, located
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.storage_settings import storage_settings


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlFile:
    """A JSONL file and its index. Picklable: copies in other processes of this machine look for nothing again.

    Attributes:
        location: Path or URL of the file, as messages name it.
        index: Path of its index.
        generation: Version of the object that the index is of; None: a file of this machine.
        store: Where its bytes are.
    """

    location: str
    index: Path
    generation: bytes | None = None
    store: ByteStore = field(compare=False)

    def starts(self) -> Int64Array:
        """Map the index. See `read_jsonl_index`.

        Raises:
            StaleIndexError: It is gone, as another version of the file was opened on this machine.
            IndexFileError: It is damaged.
        """
        try:
            return read_jsonl_index(self.index, of=self.location)
        except FileNotFoundError:
            raise StaleIndexError(
                f"{self.location}: its index on this machine, {self.index}, is gone; that happens when another version "
                f"of the file or of its index is opened. Begin anew"
            ) from None

    def check_version(self, size_bytes: int) -> None:
        """Check that an object still is the version that was indexed; all that is read from now on must be.

        Asks the store nothing: what its next answer shows is compared. Of a file of this machine there is no version.

        Args:
            size_bytes: Of the version that was indexed.

        Raises:
            StaleIndexError: What was read of it since is of another version.
        """
        if self.generation is not None and isinstance(self.store, RemoteFiles):
            self.store.versions.expect(self.location, size_bytes, self.generation)


def open_jsonl(path: str | os.PathLike[str] | JsonlFile, *, cache_dir: Path | None = None) -> JsonlFile:
    """Say where a JSONL file lies, and bring its index to this machine; make it first if there is none.

    Args:
        path: The file, or its URL.
        cache_dir: Where a missing index is made if nothing can be written beside the file; that of an object is made
            in the folder of what was read from stores.

    Raises:
        DatasetNotFoundError: There is no such file.
        StaleIndexError: The index is of another version of the file.
        IndexFileError: The index is damaged.
        DecodingError: There is no index, and lines hold no object.
        EmptyDatasetError: There is no index, and no sample.
        ConfigError: The URL is of no store that can be read.
        ReadError: The store cannot be reached.
    """
    if isinstance(path, JsonlFile):
        return path
    location = located(path)
    if not is_url(location):
        index, files = (
            find_jsonl_index(location, cache_dir=cache_dir),
            LocalFiles(indexed_by=f"energon-grain prepare {location}"),
        )
        return JsonlFile(location=location, index=index, store=files)
    files = RemoteFiles(storage_settings())
    index, generation = index_of_object(location, files)
    return JsonlFile(location=location, index=index, generation=generation, store=files)
