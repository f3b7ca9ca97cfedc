"""The file stores of prepared datasets that this process has open.

Samples may carry a store (a `Lazy` does): those that arrive from a worker process share one, instead of mapping the
index again each.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, TypeAlias, TypeVar

from energon_grain.formats.data_folder import DataFolder
from energon_grain.sources.file_store import FileStore

Store = TypeVar("Store", bound=FileStore[Any])
Arguments: TypeAlias = tuple[DataFolder, str | None]
"""Where a dataset lies, and the folder for an index that cannot be written there."""

_opened: weakref.WeakValueDictionary[tuple[type[Any], Arguments], Any] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def remember(store: FileStore[Any], arguments: Arguments) -> None:
    """Note a store as the one of its class that is open, for as long as somebody uses it."""
    with _lock:
        _opened[type(store), arguments] = store


def reopen(kind: type[Store], folder: DataFolder, cache_dir: str | None) -> Store:
    """The store of this class that this process has open, else a new one."""
    with _lock:
        opened = _opened.get((kind, (folder, cache_dir)))
    return kind(folder, index_cache_dir=cache_dir) if opened is None else opened  # type: ignore[call-arg]


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)  # a thread that does not exist in the child may have held it
