# SPDX-License-Identifier: Apache-2.0
"""Adapter of another package's store to the interface of obstore's stores."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from energon_grain.storage.store import Store, StoredObject
from energon_grain.stores.object_error import ObjectError

_PERMANENT = (PermissionError, IsADirectoryError, NotADirectoryError)
"""Permanent failures, which a retry would not fix."""


class AddedStore:
    """A `Store`. Every method raises ObjectError, and FileNotFoundError for objects that do not exist."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def head(self, key: str) -> dict[str, Any]:
        """Size and version of an object."""
        with _failures():
            return _meta(self._store.head(key))

    def list(self, prefix: str | None) -> list[list[dict[str, Any]]]:
        """All objects in a folder and its subfolders."""
        with _failures():
            return [[_meta(found) for found in self._store.list(prefix or "")]]

    def get(self, key: str, *, options: dict[str, Any] | None = None) -> _Response:
        """An object, or a range of it. Raises obstore's NotModifiedError."""
        from obstore.exceptions import NotModifiedError

        options = options or {}
        wanted: Any = options.get("range", {"offset": 0})
        with _failures():
            if "if_none_match" in options and self._store.head(key).version == options["if_none_match"]:
                raise NotModifiedError(key)
            if isinstance(wanted, dict):
                size = self._store.head(key).size_bytes if "suffix" in wanted else 0
                wanted = max(0, size - wanted["suffix"]) if "suffix" in wanted else wanted["offset"], None
            start, stop = wanted
            found, pieces = self._store.read(key, start, stop)
        size = found.size_bytes
        if start > size or (start == size and "range" in options):
            raise ObjectError(f"it has {size} bytes", temporary=False, out_of_range=True)
        return _Response(_meta(found), (start, size if stop is None else min(stop, size)), pieces)

    def put(self, key: str, data: bytes, **_: Any) -> dict[str, Any]:
        """Write an object."""
        with _failures():
            return _meta(self._store.write(key, data))

    def delete(self, key: str) -> None:
        """Remove an object."""
        with _failures():
            self._store.delete(key)


@dataclass(frozen=True, slots=True)
class _Response:
    """Like obstore's `GetResult`."""

    meta: dict[str, Any]
    range: tuple[int, int]
    pieces: Iterable[bytes]

    def stream(self, min_chunk_size: int) -> Iterator[bytes]:
        del min_chunk_size
        with _failures():
            yield from self.pieces


def _meta(found: StoredObject) -> dict[str, Any]:
    return {"path": found.path, "size": found.size_bytes, "e_tag": found.version, "last_modified": found.modified}


@contextlib.contextmanager
def _failures() -> Generator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        message = str(error) or type(error).__name__
        raise ObjectError(message, temporary=not isinstance(error, _PERMANENT)) from error
