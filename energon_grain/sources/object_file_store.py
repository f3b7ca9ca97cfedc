"""The objects below a folder of an object store, by their relative names."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from typing import Any

from energon_grain.errors import ConfigError, KeyNotFoundError, RangeError
from energon_grain.samples.source_info import SourceInfo
from energon_grain.sources.file_store import FileStore
from energon_grain.storage.epath import shared_epath
from energon_grain.storage.kvstore_spec import kvstore_spec
from energon_grain.storage.location import is_url, join, located
from energon_grain.storage.object_client import ObjectClient, ObjectRange, shared_client
from energon_grain.storage.storage_settings import StorageSettings, storage_settings

_LONGEST_NAME_BYTES = 1024


class ObjectFileStore(FileStore[bytes]):
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
        self._begin(located(base_url), storage_settings())

    def _begin(self, base: str, settings: StorageSettings) -> None:
        if not is_url(base):
            raise ConfigError(f"{base}: is no URL of an object store; a SystemFileStore reads folders of this machine")
        kvstore_spec(base, settings)  # refuses what no store has
        self._base = base
        self._client: ObjectClient = shared_client(settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._base, self._client.settings)

    def __repr__(self) -> str:
        return f"ObjectFileStore({self._base!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectFileStore) and self._base == other._base

    def __hash__(self) -> int:
        return hash(self._base)

    def get_path(self) -> str:
        """The folder's URL."""
        return self._base

    def __contains__(self, key: object) -> bool:
        """Whether there is an object under a key; one small request. Raises ReadError where that cannot be told."""
        if not isinstance(key, str):
            return False
        try:
            return self._client.read(ObjectRange(self._url(key), 0, 1)) is not None
        except KeyNotFoundError:
            return False
        except RangeError:
            return True  # an empty one

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        """Read objects in the order asked for. See `FileStore.read`."""
        urls = {key: self._url(key) for key in keys}
        contents = dict(zip(urls, self._client.map(self._content, list(urls.items())), strict=True))
        return [(contents[key], self._source(key)) for key in keys]

    def _source(self, key: str) -> SourceInfo:
        return SourceInfo(dataset_path=shared_epath(self._base), index=key, shard_name=self._base, file_names=(key,))

    def _content(self, item: tuple[str, str]) -> bytes:
        key, url = item
        found = self._client.read(ObjectRange(url))
        if found is None or found.data is None:
            raise KeyNotFoundError(f"{self._base}: there is no object {key!r} in this folder")
        return found.data

    def _url(self, key: str) -> str:
        """The URL of a key.

        Raises:
            KeyNotFoundError: It leads out of the folder, or can name no object.
        """
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
