# SPDX-License-Identifier: Apache-2.0
"""The kernel's interface to object stores, implemented by `energon_grain.stores`, which is imported lazily."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from io import BufferedReader, BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from energon_grain.errors import RangeError, ReadError
from energon_grain.storage.byte_store import ByteStore
from energon_grain.storage.digests import KnownDigests
from energon_grain.storage.scanned_bytes import ScannedBytes
from energon_grain.storage.settings import StorageSettings, StoreSettings, storage_settings
from energon_grain.storage.store import stores_module
from energon_grain.storage.urls import is_url

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

UNVERSIONED = b"\x10"
"""The generation of all objects of a server without versions (`https://` without entity tags)."""


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """Bytes [start, stop) of an object.

    Attributes:
        url: URL of the object.
        start: None, together with `stop`: the whole object; negative: counted from the end, with `stop` None.
        stop: None: to the end.
        known: A generation: if the object still has it, no bytes are returned.
    """

    url: str
    start: int | None = None
    stop: int | None = None
    known: bytes | None = None

    def __str__(self) -> str:
        if self.start is None:
            return self.url
        return f"{self.url} bytes {self.start} to {'the end' if self.stop is None else self.stop}"


@dataclass(frozen=True)
class Fetched:
    """Result of a read.

    Attributes:
        pieces: The received bytes, in the caller's container; None if the object still has the known generation.
        generation: Changes whenever the object does: its entity tag; `UNVERSIONED` if the store has none.
        size_bytes: Size of the whole object; None if no bytes were received.
        received_bytes: Number of received bytes.
        modified: Modification time of the object; None except from `head`.
    """

    pieces: Any
    generation: bytes
    size_bytes: int | None = None
    received_bytes: int = 0
    modified: datetime | None = None

    @functools.cached_property
    def data(self) -> bytes | None:
        """The bytes, if `pieces` is a list; copied into one object."""
        return None if self.pieces is None else b"".join(self.pieces)


class Address(Protocol):
    """Target of a URL: the kind of store, bucket and key, and its settings."""

    @property
    def kind(self) -> str: ...
    @property
    def bucket(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def store(self) -> StoreSettings: ...


class ObjectClient(Protocol):
    """Reads, lists and writes objects of stores, with retries. Thread-safe and picklable."""

    @property
    def settings(self) -> StorageSettings: ...

    def read(self, wanted: ObjectRange) -> Fetched | None:
        """Read one range; None if the object does not exist.

        Raises RangeError if the object is shorter, and ReadError if it cannot be read; names object and range.
        """
        ...

    def head(self, url: str) -> Fetched | None:
        """Size, generation and modification time of an object; None if it does not exist. Raises ReadError."""
        ...

    def list(self, url: str) -> list[str]:
        """Names of the objects below a folder, relative to it, sorted. Raises ReadError."""
        ...

    def list_versions(self, url: str) -> dict[str, tuple[int, bytes]]:
        """Size and generation of the objects below a folder, by names relative to it. Raises ReadError."""
        ...

    def pinned(self, url: str) -> str:
        """A URL of the Hub with its revision resolved to a commit; other URLs unchanged. Raises ReadError."""
        ...

    def write(self, url: str, data: bytes) -> bytes:
        """Write an object atomically; returns its generation. Raises ReadError."""
        ...

    def delete(self, url: str) -> None:
        """Remove an object, if it exists. Raises ReadError."""
        ...

    def map(self, function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """Call a function that makes requests for several items, in parallel; return the results in order."""
        ...


@runtime_checkable
class RemoteFiles(ByteStore, Protocol):
    """A `ByteStore` over object stores with prefetch; paths are URLs."""

    @property
    def settings(self) -> StorageSettings: ...

    @property
    def caches_on_disk(self) -> bool:
        """Whether prefetched bytes are shared by all processes of this machine."""
        ...

    @property
    def ahead_bytes(self) -> int:
        """Maximum number of prefetched bytes."""
        ...

    def version(self, path: str) -> tuple[int, bytes]:
        """Size and generation of an object. See `ByteStore`."""
        ...

    def is_prefetched(self, path: str, start: int, stop: int) -> bool:
        """Whether bytes [start, stop) are known to be there, so that `prefetch` has nothing to do."""
        ...

    def prefetch(self, path: str, start: int, stop: int, *, in_process: bool = True) -> bool:
        """Prefetch bytes [start, stop), `in_process`: also into memory; returns if they are there. Raises ReadError."""
        ...


class Mirror(Protocol):
    """The local copy of the small files of a remote folder.

    Attributes:
        url: URL of the folder; for the Hub, with the commit.
        folder: Local folder of the copies, with the same relative paths.
    """

    url: str
    folder: Path

    def locked(self) -> AbstractContextManager[None]:
        """Hold the exclusive lock for updates of the mirror. Raises ConfigError if its folder is not writable."""
        ...

    def refresh(self, names: Collection[str]) -> dict[str, bool]:
        """Update files; returns the existing ones, and whether each changed. Call while `locked`. Raises ReadError."""
        ...

    def is_whole(self) -> bool:
        """Whether copies made by `refresh` are still intact, or gone."""
        ...

    def copy_folder(self, name: str, sizes: Mapping[str, int]) -> None:
        """Copy the immutable files of a folder, given their sizes. Call while `locked`. Raises ReadError."""
        ...

    def copy_file(self, name: str, target: Path, size_bytes: int) -> None:
        """Copy an immutable file, unless it exists. Call while `locked`. Raises ReadError."""
        ...

    def fetch_again(self, name: str, size_bytes: int) -> None:
        """Rewrite a copied file in place, so that open memory maps see it. Call while `locked`. Raises ReadError."""
        ...


def shared_client(settings: StorageSettings) -> ObjectClient:
    """The client of this process for these settings; its limit of requests and its counters are shared."""
    return stores_module("object_client").shared_client(settings)


def remote_files(settings: StorageSettings, digests: KnownDigests | None = None) -> RemoteFiles:
    """Objects as a `ByteStore`. With `digests`, the bytes are verified."""
    return stores_module("remote_files").RemoteFiles(settings, digests)


def mirror_of(url: str, settings: StorageSettings | None = None) -> Mirror:
    """The local copy of a remote folder. Raises ReadError if the Hub does not return a commit."""
    return stores_module("mirror").Mirror(url, shared_client(settings or storage_settings()))


def address_of(url: str, settings: StorageSettings) -> Address:
    """The target of a URL. Raises ConfigError if no store supports the URL."""
    return stores_module("addresses").address_of(url, settings)


def has_lists(url: str, settings: StorageSettings) -> bool:
    """Whether the store of a URL can list objects. Plain web servers cannot. Raises as `address_of`."""
    return stores_module("addresses").has_lists(url, settings)


def aws_section(url: str, store: StoreSettings) -> tuple[str, dict[str, str]] | None:
    """The section of `~/.aws` with the credentials, and its entries; None: no section, or the environment's."""
    return stores_module("addresses").aws_section(url, store)


def most_attempts(settings: StorageSettings) -> int:
    """Number of attempts for clients that count them: about as many as `retry_s` allows."""
    return stores_module("retries").most_attempts(settings)


def open_object(url: str, buffer_bytes: int = 8 << 20) -> BufferedReader:
    """Open an object for reading, like `open(path, "rb")`, through the page cache.

    Raises MissingObjectError if it does not exist, and ReadError if it cannot be reached.
    """
    return stores_module("object_bytes").ObjectStream(url, buffer_bytes)


def scan_object(url: str, *, keep: bool = False) -> ScannedBytes:
    """Open an object for one read from start to end. `keep`: store the bytes in the page cache.

    Raises ReadError: it does not exist, or cannot be reached.
    """
    return stores_module("object_bytes").ObjectBytes(url, keep=keep)


def create_object(url: str, *, text: bool = False) -> BytesIO | TextIOWrapper:
    """Open an object for writing. It is uploaded when the file is closed, but not if the `with` block fails."""
    return stores_module("object_bytes").create_object(url, text=text)


def is_unchanged(url: str, generation: bytes) -> bool:
    """Whether an object still has this generation. Raises ReadError if the store does not answer."""
    found = shared_client(storage_settings()).read(ObjectRange(url, 0, 1, known=generation))
    return found is not None and found.pieces is None


def read_whole(location: str) -> bytes:
    """Read a file, or an object of a store. Raises FileNotFoundError, OSError and ConfigError."""
    if not is_url(location):
        return Path(location).read_bytes()
    found = shared_client(storage_settings()).read(ObjectRange(location))
    if found is None or found.data is None:
        raise FileNotFoundError(f"{location}: no such object; check the URL")
    return found.data


def read_beginning(location: str, size_bytes: int) -> bytes:
    """Read the first bytes of a file or object; fewer if it is shorter, none if it does not exist.

    Raises ReadError and ConfigError.
    """
    if is_url(location):
        client = shared_client(storage_settings())
        try:
            found = client.read(ObjectRange(location, 0, size_bytes))
        except RangeError:
            found = client.read(ObjectRange(location))
        return b"" if found is None or found.data is None else found.data
    try:
        with open(location, "rb") as file:
            return file.read(size_bytes)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""
    except OSError as error:
        raise ReadError(f"cannot read {location}: {error.strerror}") from error
