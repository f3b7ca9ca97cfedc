# SPDX-License-Identifier: Apache-2.0
"""Stores of objects, and who implements them.

Our own are in `energon_grain.stores`, above the kernel, found by name. Another package adds one by an entry point of
the group `energon_grain.stores`: its name is the scheme of the URLs, and it is called with the `StoreSettings` of a URL
to give a `Store`. Entry points are looked up only for schemes that are not ours: no package can take one away.
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
    """What a store says of an object.

    Attributes:
        path: In the store: what follows `scheme://`.
        size_bytes: Its size.
        version: Changes whenever the object does; None: not known, then nothing of it is kept on disk.
        modified: When it was written; 1970 where that is not known.
    """

    path: str
    size_bytes: int
    version: str | None = None
    modified: datetime = _UNKNOWN


class Store(Protocol):
    """The objects of one scheme.

    A path is what follows `scheme://` in a URL, without slashes at its ends. Methods are called from many threads at
    once, one request each: the library itself repeats requests, keeps pages and looks ahead. They raise
    FileNotFoundError for an object that does not exist, PermissionError for what another attempt would meet again, and
    another OSError for a failure that may pass.
    """

    def head(self, path: str) -> StoredObject:
        """An object, without its bytes."""
        ...

    def list(self, folder: str) -> Iterable[StoredObject]:
        """All objects whose path begins with `folder` and a slash, in any order; "": all."""
        ...

    def read(self, path: str, start: int, stop: int | None) -> tuple[StoredObject, Iterable[bytes]]:
        """An object, and its bytes [start, stop) in pieces: to the end for None, and fewer where it ends before."""
        ...

    def write(self, path: str, data: bytes) -> StoredObject:
        """Put an object, whole or not at all. PermissionError: the store is only read."""
        ...

    def delete(self, path: str) -> None:
        """Remove an object."""
        ...


OpenStore: TypeAlias = Callable[[Any], Store]
"""Opens a store: (`StoreSettings`) -> `Store`."""


def stores_module(name: str) -> Any:
    """A module of the package that implements our own stores."""
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
    """What opens the stores that another package adds for a scheme, which is not ours; None: no package does."""
    point = _entry_points().get(scheme)
    return None if point is None else point.load()
