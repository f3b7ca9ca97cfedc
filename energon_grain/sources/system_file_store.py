"""The files below a folder, by their relative paths."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import Any

import numpy as np

from energon_grain.errors import ConfigError, DatasetNotFoundError, KeyNotFoundError
from energon_grain.samples.source_info import SourceInfo
from energon_grain.sources.file_store import FileStore
from energon_grain.storage.epath import shared_epath
from energon_grain.storage.local import LocalFiles
from energon_grain.storage.location import is_url, located

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


class SystemFileStore(FileStore[bytes]):
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

    def __repr__(self) -> str:
        return f"SystemFileStore({self._base!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SystemFileStore) and self._base == other._base

    def __hash__(self) -> int:
        return hash(self._base)

    def get_path(self) -> str:
        """The folder."""
        return self._base

    def __contains__(self, key: object) -> bool:
        """Whether a key leads to a file below the folder."""
        try:
            return isinstance(key, str) and bool(self._path(key))
        except KeyNotFoundError:
            return False

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        """Read files in the order asked for. See `FileStore.read`."""
        return [(self._content(self._path(key)), self._source(key)) for key in keys]

    def _source(self, key: str) -> SourceInfo:
        return SourceInfo(dataset_path=shared_epath(self._base), index=key, shard_name=self._base, file_names=(key,))

    def _content(self, path: str) -> bytes:
        size = self._files.size(path)
        file = np.zeros(1, np.int64)
        return self._files.read_spans([path], file, file, np.array([size], np.int64))[0]

    def _path(self, key: str) -> str:
        """The real path of a key.

        Raises:
            KeyNotFoundError: It leads out of the folder, or to something else than a file.
        """
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
