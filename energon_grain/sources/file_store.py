"""Files looked up by their names: what a cooker reads beside its sample."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from itertools import repeat
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np

from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    FatalSampleError,
    KeyNotFoundError,
    MissingObjectError,
    RangeError,
)
from energon_grain.formats.sqlite_index import MediaTable
from energon_grain.samples.media_metadata import AVMetadata, ImageMetadata
from energon_grain.samples.sample import SourceInfo, add_source_info
from energon_grain.sources.source import LazyFrom
from energon_grain.storage.byte_stream import ByteStream
from energon_grain.storage.epath import shared_epath
from energon_grain.storage.local import LocalFiles
from energon_grain.storage.location import is_url, join, located
from energon_grain.storage.remote import ObjectClient, ObjectRange, address_of, remote_files, shared_client
from energon_grain.storage.settings import StorageSettings, storage_settings
from energon_grain.tracebacks import public

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@public
class FileStore(ABC, Generic[T_co]):
    """Random access by key: `store[key]`, or `store.get(key, sample)` inside a cooker.

    A store of your own has `get_path` and either `read`, which can sort and coalesce several keys, or `__getitem__` for
    one. Stores are thread-safe and picklable: a copy in another process opens its own files.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Check that a subclass says how values are read. Raises TypeError."""
        if cls.read is FileStore.read and cls.__getitem__ is FileStore.__getitem__:
            raise TypeError(f"{cls.__name__} has neither `read` nor `__getitem__`, one of which gives a store's values")
        return super().__new__(cls)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        ways = ("read", "__getitem__", "read_or_open")
        first = next(base for base in cls.__mro__ if not base.__dict__.keys().isdisjoint(ways))
        if "read_or_open" not in first.__dict__:
            cls.read_or_open = FileStore.read_or_open  # who reads in a way of its own is asked for all that is read

    def read(self, keys: Sequence[str]) -> list[tuple[T_co, SourceInfo]]:
        """Read the values of several keys, in their order; repeated keys are fine.

        Raises:
            KeyNotFoundError: The store has nothing under one of the keys.
            ReadError: Bytes could not be read after retries.
        """
        return [self[key] for key in keys]

    def __contains__(self, key: object) -> bool:
        """Whether there is something under a key. Our own stores read no data for it; by default the value is read."""
        try:
            self[key]  # type: ignore[index]
        except KeyError:
            return False
        return True

    @abstractmethod
    def get_path(self) -> str:
        """Where the store lies."""

    def __getitem__(self, key: str) -> tuple[T_co, SourceInfo]:
        """The value of a key, and where it came from. Raises as `read` does."""
        return self.read((key,))[0]

    def get(self, key: str, sample: Any = None) -> T_co:
        """The value of a key.

        Args:
            key: Name of the file.
            sample: The sample (an object, or a crude sample) whose `__sources__` list this file.

        Raises:
            KeyNotFoundError: The store has nothing under the key.
            ReadError: Bytes could not be read after retries.
        """
        value, source = self[key]
        if sample is not None:
            add_source_info(sample, source)
        return value

    def read_or_open(self, keys: Sequence[str], lazy: LazyFrom) -> list[tuple[Any, SourceInfo]]:
        """Read, but for files that are so large that `lazy` wants streams of them, where this store can give these.

        A class that derives from ours and has a `read` of its own gives none: what it reads may be other bytes.

        Raises:
            KeyNotFoundError: The store has nothing under one of the keys.
            ReadError: Bytes could not be read after retries.
        """
        del lazy
        return [*self.read(keys)]

    def stored(self, key: str) -> tuple[Any, SourceInfo]:
        """What lies under a key as it is stored, which `decoded` makes the value of. Raises as `read` does."""
        return self[key]

    def decoded(self, key: str, data: Any) -> T_co:
        """The value of a key, from what `stored` returned.

        Raises:
            DecodingError: It does not decode.
        """
        return data

    def _decoded_as(self, key: str) -> str:
        """The name by whose ending the value of a key is decoded; by default the key itself."""
        return key

    def get_media_metadata(self, key: str) -> AVMetadata | ImageMetadata:
        """What is known of a file that is an image, a video or a sound, without reading it.

        Raises:
            FatalSampleError: Nothing is known of any: `energon-grain prepare-media` was not run, or the store is of a
                kind that has no such metadata. A `RuntimeError`, as in Energon.
            KeyNotFoundError: Nothing is known of this one.
        """
        raise FatalSampleError(f"{self.get_path()}: {key!r}: a {type(self).__name__} knows no metadata of media")

    def close(self) -> None:
        """Release file handles; reading again opens them anew."""


class OwnFileStore(FileStore[T_co]):
    """One of ours, equal to another of its kind that has the same `_identity`."""

    @property
    def _identity(self) -> Any:
        return self.get_path()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.get_path()!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._identity == cast("Any", other)._identity

    def __hash__(self) -> int:
        return hash(self._identity)


class MediaFileStore(OwnFileStore[T_co]):
    """One whose files may be media that `prepare` has looked at."""

    @abstractmethod
    def _place(self, key: str) -> object:
        """Where the file of a key lies. Raises KeyNotFoundError."""

    def get_media_metadata(self, key: str) -> AVMetadata | ImageMetadata:
        return self._media.get(key, lambda: self._place(key))

    @cached_property
    def _media(self) -> MediaTable:
        return MediaTable(self.get_path())


def with_sources(
    path: str, keys: Iterable[str], shards: Iterable[str], values: Iterable[T]
) -> list[tuple[T, SourceInfo]]:
    """Values of keys, and where each came from."""
    location = shared_epath(path)
    return [
        (value, SourceInfo(dataset_path=location, index=key, shard_name=shard, file_names=(key,)))
        for key, shard, value in zip(keys, shards, values, strict=False)
    ]


def _least(key: str, lazy: LazyFrom) -> int | None:
    """From how many bytes on a file is given as a stream; None: never."""
    return None if lazy is None else lazy(key.rpartition("/")[2].partition(".")[2])


_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


@public
class SystemFileStore(MediaFileStore[bytes]):
    """Reads whole files below a folder; a key is a path relative to it, `train/000012.jpg`.

    Keys come from data, so none may lead out of the folder: neither an absolute path, nor `..`, nor a symbolic link.

    Args:
        base_dir: The folder; it needs no preparation. An `ObjectFileStore` reads one in an object store.

    Raises:
        DatasetNotFoundError: There is no such folder.
        ConfigError: It is the URL of a folder in an object store.
    """

    def __init__(self, base_dir: str | os.PathLike[str]) -> None:
        self._base = located(base_dir)
        if is_url(self._base):
            raise ConfigError(f"{self._base}: is no folder of this machine; an ObjectFileStore reads those of stores")
        if not os.path.isdir(self._base):
            raise DatasetNotFoundError(f"{self._base}: there is no such folder to serve files from")
        self._real_base = os.path.realpath(self._base)
        # Files are read whole and seldom twice: keeping them open would be of no use.
        self._files = LocalFiles(max_open_files=1)

    def __reduce__(self) -> tuple[Any, ...]:
        return SystemFileStore, (self._base,)

    def get_path(self) -> str:
        """The folder."""
        return self._base

    def __contains__(self, key: object) -> bool:
        """Whether a key leads to a file below the folder."""
        try:
            return isinstance(key, str) and bool(self._place(key))
        except KeyNotFoundError:
            return False

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        """Read files in the order asked for. See `FileStore.read`."""
        return SystemFileStore.read_or_open(self, keys, None)

    def read_or_open(self, keys: Sequence[str], lazy: LazyFrom) -> list[tuple[Any, SourceInfo]]:
        contents = [self._content(self._place(key), _least(key, lazy)) for key in keys]
        return with_sources(self._base, keys, repeat(self._base), contents)

    def _content(self, path: str, lazy_bytes: int | None) -> bytes | ByteStream:
        size = self._files.size(path)
        if lazy_bytes is not None and size >= lazy_bytes:
            files = LocalFiles(indexed_by="")
            return ByteStream(files, path, 0, files.size(path))
        file = np.zeros(1, np.int64)
        return self._files.read_spans([path], file, file, np.array([size], np.int64))[0]

    def _place(self, key: str) -> str:
        """The real path of a key. Raises KeyNotFoundError."""
        if not key or "\0" in key:
            raise KeyNotFoundError(f"{self._base}: {key!r} is no file name")
        path = os.path.realpath(os.path.join(self._base, key))
        if os.path.isabs(key) or os.path.commonpath((path, self._real_base)) != self._real_base:
            raise KeyNotFoundError(
                f"{self._base}: {key!r} leads out of this folder, to {path}; a key is a path below it, without links "
                f"out of it: make the folder above both the store, or copy the file"
            )
        try:
            regular = stat.S_ISREG(os.stat(path).st_mode)
        except OSError as error:
            if error.errno in _MISSING:
                raise KeyNotFoundError(f"{self._base}: there is no file {key!r} in this folder") from None
            return path  # opening it is tried again, and then says what is wrong
        if not regular:
            raise KeyNotFoundError(f"{self._base}: {key!r} is not a file; a key is the path of a regular file")
        return path

    def close(self) -> None:
        """Close what is open; reading again opens it anew."""
        self._files.close()


_LONGEST_NAME_BYTES = 1024


@public
class ObjectFileStore(MediaFileStore[bytes]):
    """Reads whole objects below a folder of an object store; a key is a name relative to it, `train/000012.jpg`.

    Each read of a key is one request for all of an object, which must come within `timeout_s` of the storage settings;
    those of several keys run side by side, as many as the settings allow. Nothing is kept; a `FileStoreCachePool`
    fetches files before they are needed. Keys come from data, so none may lead out of the folder; `..` is taken out as
    text, as in a path.

    Args:
        base_url: The folder. Whether there is anything in it shows when it is read: stores know no folders.

    Raises:
        ConfigError: The URL is of no store that can be read.
    """

    def __init__(self, base_url: str | os.PathLike[str]) -> None:
        settings = storage_settings()
        self._begin(shared_client(settings).pinned(located(base_url)), settings)

    def _begin(self, base: str, settings: StorageSettings) -> None:
        if not is_url(base):
            raise ConfigError(f"{base}: is no URL of an object store; a SystemFileStore reads folders of this machine")
        address_of(base, settings)  # refuses what no store has
        self._base = base
        self._client: ObjectClient = shared_client(settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._base, self._client.settings)

    def get_path(self) -> str:
        """The folder's URL."""
        return self._base

    def __contains__(self, key: object) -> bool:
        """Whether there is an object under a key; one small request. Raises ReadError where that cannot be known."""
        if not isinstance(key, str):
            return False
        try:
            return self._client.read(ObjectRange(self._place(key), 0, 1)) is not None
        except KeyNotFoundError:
            return False
        except RangeError:
            return True  # an empty one

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        """Read objects in the order asked for. See `FileStore.read`."""
        return ObjectFileStore.read_or_open(self, keys, None)

    def read_or_open(self, keys: Sequence[str], lazy: LazyFrom) -> list[tuple[Any, SourceInfo]]:
        """See `FileStore.read_or_open`. Where a stream may be wanted the size of a file is asked for first."""
        wanted = {key: (key, self._place(key), _least(key, lazy)) for key in keys}
        contents = dict(zip(wanted, self._client.map(self._content, list(wanted.values())), strict=True))
        return with_sources(self._base, keys, repeat(self._base), (copy(contents[key]) for key in keys))

    def _content(self, item: tuple[str, str, int | None]) -> bytes | ByteStream:
        key, url, lazy_bytes = item
        if lazy_bytes is not None:
            files = remote_files(self._client.settings)
            with suppress(MissingObjectError):
                if (size := files.size(url)) >= lazy_bytes:
                    return ByteStream(files, url, 0, size)
        found = self._client.read(ObjectRange(url))
        if found is None or found.data is None:
            raise KeyNotFoundError(f"{self._base}: there is no object {key!r} in this folder")
        return found.data

    def _place(self, key: str) -> str:
        """The URL of a key. Raises KeyNotFoundError."""
        name = posixpath.normpath(key)
        if posixpath.isabs(key) or name.split("/", 1)[0] == "..":
            raise KeyNotFoundError(
                f"{self._base}: {key!r} leads out of this folder; a key is a name below it: make the folder above both "
                f"the store, or copy the object"
            )
        if name == "." or key.endswith("/") or not _can_be_stored(name):
            raise KeyNotFoundError(f"{self._base}: {key!r} is no name of an object")
        return join(self._base, name)


def _can_be_stored(name: str) -> bool:
    try:
        return "\0" not in name and len(name.encode()) <= _LONGEST_NAME_BYTES
    except UnicodeEncodeError:
        return False


def _restore(base: str, settings: StorageSettings) -> ObjectFileStore:
    store = ObjectFileStore.__new__(ObjectFileStore)
    store._begin(base, settings)
    return store
