# SPDX-License-Identifier: Apache-2.0
"""The interface of object stores, and the lookup of their implementations.

Ours are in `energon_grain.stores`, outside the kernel, and are found by name. Other packages add stores by entry points
of the group `energon_grain.stores`. The name of an entry point is the scheme of the URLs; it is called with the
`StoreSettings` of a URL and returns a `Store`. Our own schemes cannot be overridden.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Protocol, TypeAlias

_OWN = "energon_grain.stores"
_ENTRY_POINTS = "energon_grain.stores"
_UNKNOWN = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredObject:
    """Metadata of an object.

    Attributes:
        path: Path in the store: the URL after `scheme://`.
        size_bytes: Its size.
        version: Changes whenever the object does; None if unknown, then the object is not cached on disk.
        modified: Modification time; 1970 if unknown.
    """

    path: str
    size_bytes: int
    version: str | None = None
    modified: datetime = _UNKNOWN


class Store(Protocol):
    """The objects of one scheme.

    A path is the part of a URL after `scheme://`, without leading and trailing slashes. Methods are called from many
    threads in parallel, one request each; retries, caching and prefetch are done by the caller. They raise
    FileNotFoundError for an object that does not exist, PermissionError for permanent failures, and any other OSError
    for temporary failures.
    """

    def head(self, path: str) -> StoredObject:
        """Metadata of an object."""
        ...

    def list(self, folder: str) -> Iterable[StoredObject]:
        """All objects whose path begins with `folder` and a slash, in any order; "" lists all."""
        ...

    def read(self, path: str, start: int, stop: int | None) -> tuple[StoredObject, Iterable[bytes]]:
        """Metadata of an object, and its bytes [start, stop) in pieces; stop None: to the end. Fewer at the end."""
        ...

    def write(self, path: str, data: bytes) -> StoredObject:
        """Write an object atomically. PermissionError: the store is read-only."""
        ...

    def delete(self, path: str) -> None:
        """Remove an object."""
        ...


OpenStore: TypeAlias = Callable[[Any], Store]
"""Opens a store: (`StoreSettings`) -> `Store`."""


def stores_module(name: str) -> Any:
    """Import a module of the package with our own stores."""
    return importlib.import_module(f"{_OWN}.{name}")


@cache
def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name.lower(): point for point in entry_points(group=_ENTRY_POINTS)}


def other_schemes() -> tuple[str, ...]:
    """The schemes that other packages add."""
    return tuple(sorted(_entry_points()))


@cache
def opener_of(scheme: str) -> OpenStore | None:
    """The function that opens another package's stores for a scheme; None if no package adds it."""
    point = _entry_points().get(scheme)
    return None if point is None else point.load()
