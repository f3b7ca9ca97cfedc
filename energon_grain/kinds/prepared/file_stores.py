# SPDX-License-Identifier: Apache-2.0
"""Files below a local folder or in an object store, which cookers read by key."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np

from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    KeyNotFoundError,
    MissingObjectError,
    RangeError,
    public,
)
from energon_grain.formats.local_files import LocalFiles
from energon_grain.formats.sqlite_index import MediaTable
from energon_grain.samples.media_metadata import AVMetadata, ImageMetadata
from energon_grain.samples.sample import SourceInfo
from energon_grain.sources.file_store import FileStore, OwnFileStore, T_co, with_sources
from energon_grain.sources.source import LazyFrom
from energon_grain.storage.byte_stream import ByteStream
from energon_grain.storage.location import is_url, join, located
from energon_grain.storage.remote import ObjectClient, ObjectRange, address_of, remote_files, shared_client
from energon_grain.storage.settings import StorageSettings, storage_settings


class MediaFileStore(OwnFileStore[T_co]):
    """A store whose files may have media metadata from `prepare`."""

    @abstractmethod
    def _place(self, key: str) -> object:
        """Location of the file of a key. Raises KeyNotFoundError."""

    def get_media_metadata(self, key: str) -> AVMetadata | ImageMetadata:
        return self._media.get(key, lambda: self._place(key))

    @cached_property
    def _media(self) -> MediaTable:
        return MediaTable(self.get_path())


def _least(key: str, lazy: LazyFrom) -> int | None:
    """The size in bytes from which a file becomes a stream; None: never."""
    return None if lazy is None else lazy(key.rpartition("/")[2].partition(".")[2])


_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


def files_below(folder: str) -> FileStore[bytes]:
    """The files below a local folder or one in an object store, by name. Raises as the stores do."""
    return ObjectFileStore(folder) if is_url(folder) else SystemFileStore(folder)


@public
class SystemFileStore(MediaFileStore[bytes]):
    """Reads whole files below a folder. A key is a path relative to it, `train/000012.jpg`.

    Keys come from data, so they must stay inside the folder: no absolute path, no `..`, and no symbolic link may lead
    out of it.

    Args:
        base_dir: The folder, which needs no preparation. For object stores use `ObjectFileStore`.

    Raises:
        DatasetNotFoundError: There is no such folder.
        ConfigError: It is the URL of a folder in an object store.
    """

    def __init__(self, base_dir: str | os.PathLike[str]) -> None:
        self._base = located(base_dir)
        if is_url(self._base):
            raise ConfigError(f"{self._base}: is not a local folder; use ObjectFileStore for object stores")
        if not os.path.isdir(self._base):
            raise DatasetNotFoundError(f"{self._base}: no such folder; check the path")
        self._real_base = os.path.realpath(self._base)
        # Files are read whole and seldom twice: keeping them open has no benefit.
        self._files = LocalFiles(max_open_files=1)

    def __reduce__(self) -> tuple[Any, ...]:
        return SystemFileStore, (self._base,)

    def get_path(self) -> str:
        """The folder."""
        return self._base

    def __contains__(self, key: object) -> bool:
        """Whether a key refers to a file below the folder."""
        try:
            return isinstance(key, str) and bool(self._place(key))
        except KeyNotFoundError:
            return False

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        """Read files in the order requested. See `FileStore.read`."""
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
        """The resolved path of a key. Raises KeyNotFoundError."""
        if not key or "\0" in key:
            raise KeyNotFoundError(f"{self._base}: {key!r} is not a file name")
        path = os.path.realpath(os.path.join(self._base, key))
        if os.path.isabs(key) or os.path.commonpath((path, self._real_base)) != self._real_base:
            raise KeyNotFoundError(
                f"{self._base}: {key!r} leads out of this folder, to {path}; a key must be a path below it, without "
                f"links out of it: use a parent folder of both as the store, or copy the file"
            )
        try:
            regular = stat.S_ISREG(os.stat(path).st_mode)
        except OSError as error:
            if error.errno in _MISSING:
                raise KeyNotFoundError(f"{self._base}: no file {key!r} in this folder") from None
            return path  # opening it is retried, and reports the error
        if not regular:
            raise KeyNotFoundError(f"{self._base}: {key!r} is not a file; a key is the path of a regular file")
        return path

    def close(self) -> None:
        """Close open files. The next read opens them again."""
        self._files.close()


_LONGEST_NAME_BYTES = 1024


@public
class ObjectFileStore(MediaFileStore[bytes]):
    """Reads whole objects below a folder of an object store. A key is a name relative to it, `train/000012.jpg`.

    Each read of a key is one request for the whole object, with the timeout `timeout_s` of the storage settings. Reads
    of several keys run in parallel, within the limits of the settings. Nothing is cached; a `FileStoreCachePool`
    prefetches files. Keys come from data, so they must stay inside the folder; `..` is resolved textually, as in a
    path.

    Args:
        base_url: The folder. A missing folder is detected on the first read: stores have no folders.

    Raises:
        ConfigError: The URL's store is not supported.
    """

    def __init__(self, base_url: str | os.PathLike[str]) -> None:
        settings = storage_settings()
        self._begin(shared_client(settings).pinned(located(base_url)), settings)

    def _begin(self, base: str, settings: StorageSettings) -> None:
        if not is_url(base):
            raise ConfigError(f"{base}: is not the URL of an object store; use SystemFileStore for local folders")
        address_of(base, settings)  # refuses unknown stores
        self._base = base
        self._client: ObjectClient = shared_client(settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._base, self._client.settings)

    def get_path(self) -> str:
        """The folder's URL."""
        return self._base

    def __contains__(self, key: object) -> bool:
        """Whether a key has an object, in one small request. Raises ReadError if the store cannot be reached."""
        if not isinstance(key, str):
            return False
        try:
            return self._client.read(ObjectRange(self._place(key), 0, 1)) is not None
        except KeyNotFoundError:
            return False
        except RangeError:
            return True  # an empty object

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        """Read objects in the order requested. See `FileStore.read`."""
        return ObjectFileStore.read_or_open(self, keys, None)

    def read_or_open(self, keys: Sequence[str], lazy: LazyFrom) -> list[tuple[Any, SourceInfo]]:
        """See `FileStore.read_or_open`. If a stream may be needed, the size of a file is requested first."""
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
            raise KeyNotFoundError(f"{self._base}: no object {key!r} in this folder")
        return found.data

    def _place(self, key: str) -> str:
        """The URL of a key. Raises KeyNotFoundError."""
        name = posixpath.normpath(key)
        if posixpath.isabs(key) or name.split("/", 1)[0] == "..":
            raise KeyNotFoundError(
                f"{self._base}: {key!r} leads out of this folder; a key must be a name below it: use a parent folder "
                f"of both as the store, or copy the object"
            )
        if name == "." or key.endswith("/") or not _can_be_stored(name):
            raise KeyNotFoundError(f"{self._base}: {key!r} is not a valid object name")
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
