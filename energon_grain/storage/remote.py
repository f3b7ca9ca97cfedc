# SPDX-License-Identifier: Apache-2.0
"""Objects of stores, as the kernel asks for them. `energon_grain.stores` answers, and is imported when it is needed."""

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
"""The generation of all objects of a server that gives none (`https://` without entity tags)."""


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """Bytes [start, stop) of an object.

    Attributes:
        url: Of the object.
        start: None, together with `stop`: the whole object; negative: counted from its end, then without `stop`.
        stop: None: to the end.
        known: A generation: where the object still is that version, no bytes come.
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
    """What a read gave.

    Attributes:
        pieces: What took the bytes as they came; None where the object is the version that the caller has.
        generation: Changes whenever the object does: its entity tag; `UNVERSIONED` where the store has none.
        size_bytes: Of the whole object; None where no bytes came.
        came_bytes: How many came.
        modified: When the object was written; None unless that alone was asked for.
    """

    pieces: Any
    generation: bytes
    size_bytes: int | None = None
    came_bytes: int = 0
    modified: datetime | None = None

    @functools.cached_property
    def data(self) -> bytes | None:
        """The bytes in one, where a list took them; they are copied."""
        return None if self.pieces is None else b"".join(self.pieces)


class Address(Protocol):
    """Where a URL leads: the kind of store, the bucket and key there, and how it is reached."""

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
        """Read one range; None where there is no such object.

        Raises RangeError if the object ends before, and ReadError if it cannot be read; names object and range.
        """
        ...

    def look(self, url: str) -> Fetched | None:
        """Size, generation and time of an object, without its bytes; None: there is none. Raises ReadError."""
        ...

    def list(self, url: str) -> list[str]:
        """Names of the objects below a folder, relative to it, sorted. Raises ReadError."""
        ...

    def list_versions(self, url: str) -> dict[str, tuple[int, bytes]]:
        """Size and generation of the objects below a folder, by names relative to it. Raises ReadError."""
        ...

    def pinned(self, url: str) -> str:
        """A URL of the Hub with the commit that its revision stands for; others as they are. Raises ReadError."""
        ...

    def write(self, url: str, data: bytes) -> bytes:
        """Put an object, whole or not at all; give its generation. Raises ReadError."""
        ...

    def delete(self, url: str) -> None:
        """Remove an object, if it is there. Raises ReadError."""
        ...

    def map(self, function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """Call a function that makes requests for each of several items, side by side; give the results in order."""
        ...


@runtime_checkable
class RemoteFiles(ByteStore, Protocol):
    """A `ByteStore` over object stores, whose bytes can be fetched ahead of need; paths are URLs."""

    @property
    def settings(self) -> StorageSettings: ...

    @property
    def keeps_on_disk(self) -> bool:
        """Whether what is fetched ahead of need is there for all processes of this machine."""
        ...

    @property
    def ahead_bytes(self) -> int:
        """How much may be fetched ahead of need."""
        ...

    def version(self, path: str) -> tuple[int, bytes]:
        """Size and generation of an object. See `ByteStore`."""
        ...

    def is_kept(self, path: str, start: int, stop: int) -> bool:
        """Whether bytes [start, stop) are known to be there, so that `keep` has nothing to do."""
        ...

    def keep(self, path: str, start: int, stop: int) -> bool:
        """Fetch bytes [start, stop) ahead of need. Says whether they are kept. Raises ReadError."""
        ...


class Mirror(Protocol):
    """The copy of the small files of a remote folder on this machine.

    Attributes:
        url: Of the folder; of the Hub, with the commit.
        folder: Where the copies are, at the paths that they have in the folder.
    """

    url: str
    folder: Path

    def locked(self) -> AbstractContextManager[None]:
        """Be the only one to bring the mirror up to date. Raises ConfigError where its folder cannot be written."""
        ...

    def refresh(self, names: Collection[str]) -> dict[str, bool]:
        """Bring files up to date; says which exist, and whether each changed. While `locked`. Raises ReadError."""
        ...

    def is_whole(self) -> bool:
        """Whether copies that `refresh` made are what it wrote, or gone."""
        ...

    def copy_folder(self, name: str, sizes: Mapping[str, int]) -> None:
        """Copy the files of a folder, of known sizes, which never change. While `locked`. Raises ReadError."""
        ...

    def copy_file(self, name: str, target: Path, size_bytes: int) -> None:
        """Copy a file that never changes, unless it is there. While `locked`. Raises ReadError."""
        ...

    def fetch_again(self, name: str, size_bytes: int) -> None:
        """Write a copied file again, in place, so that open memory maps see it. While `locked`. Raises ReadError."""
        ...


def shared_client(settings: StorageSettings) -> ObjectClient:
    """The client of this process for these settings: its requests in flight and its traffic are everybody's."""
    return stores_module("object_client").shared_client(settings)


def remote_files(settings: StorageSettings, digests: KnownDigests | None = None) -> RemoteFiles:
    """Objects as a `ByteStore`. With `digests`, what is read is compared with them."""
    return stores_module("remote_files").RemoteFiles(settings, digests)


def mirror_of(url: str, settings: StorageSettings | None = None) -> Mirror:
    """The copy of a remote folder. Raises ReadError: the Hub does not say of which commit it is."""
    return stores_module("mirror").Mirror(url, shared_client(settings or storage_settings()))


def address_of(url: str, settings: StorageSettings) -> Address:
    """Where a URL leads. Raises ConfigError where no store has such a URL."""
    return stores_module("addresses").address_of(url, settings)


def has_lists(url: str, settings: StorageSettings) -> bool:
    """Whether the store of a URL says which objects it has. Plain web servers do not. Raises as `address_of`."""
    return stores_module("addresses").has_lists(url, settings)


def aws_section(url: str, store: StoreSettings) -> tuple[str, dict[str, str]] | None:
    """The section of `~/.aws` that credentials are taken from, and its entries; None: none, or the environment's."""
    return stores_module("addresses").aws_section(url, store)


def most_attempts(settings: StorageSettings) -> int:
    """How often a client that counts attempts should make a request: about as often as `retry_s` allows."""
    return stores_module("retries").most_attempts(settings)


def open_object(url: str, buffer_bytes: int = 8 << 20) -> BufferedReader:
    """An object for reading, as `open(path, "rb")` gives a file, through the page cache.

    Raises MissingObjectError if there is none, and ReadError if it cannot be reached.
    """
    return stores_module("object_bytes").ObjectStream(url, buffer_bytes)


def scan_object(url: str, *, keep: bool = False) -> ScannedBytes:
    """An object for reading once from front to back. `keep`: what is read goes into the page cache.

    Raises ReadError: there is none, or it cannot be reached.
    """
    return stores_module("object_bytes").ObjectBytes(url, keep=keep)


def create_object(url: str, *, text: bool = False) -> BytesIO | TextIOWrapper:
    """Open an object for writing. It is put, whole, when the file is closed; not, when the `with` block fails."""
    return stores_module("object_bytes").create_object(url, text=text)


def is_unchanged(url: str, generation: bytes) -> bool:
    """Whether an object still is the version that it was. Raises ReadError where the store does not say."""
    found = shared_client(storage_settings()).read(ObjectRange(url, 0, 1, known=generation))
    return found is not None and found.pieces is None


def read_whole(location: str) -> bytes:
    """Read a file, or an object of a store. Raises FileNotFoundError, OSError and ConfigError."""
    if not is_url(location):
        return Path(location).read_bytes()
    found = shared_client(storage_settings()).read(ObjectRange(location))
    if found is None or found.data is None:
        raise FileNotFoundError(f"{location}: there is no such object")
    return found.data


def read_beginning(location: str, size_bytes: int) -> bytes:
    """Read the first bytes of a file, or of an object of a store; fewer where it is shorter, none where there is none.

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
