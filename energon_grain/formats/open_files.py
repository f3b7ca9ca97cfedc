"""What stays open, or in memory, of many files, up to a number of records."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from typing import Any, Generic, Protocol, TypeVar


class HasRecords(Protocol):
    """A file with records."""

    @property
    def records(self) -> int:
        """How many it has."""
        ...


File = TypeVar("File", bound=HasRecords)

_all: weakref.WeakSet[OpenFiles[Any]] = weakref.WeakSet()


class OpenFiles(Generic[File]):
    """The files that were used last. Thread-safe; in a forked child there are none.

    Args:
        max_open_files: Least recently used files beyond this number are let go of.
        max_records: The same by the records of all of them together: memory.
    """

    def __init__(self, *, max_open_files: int = 256, max_records: int = 10_000_000) -> None:
        self._limits = (max_open_files, max_records)
        self._open: OrderedDict[str, File] = OrderedDict()
        self._lock = threading.Lock()
        _all.add(self)

    def get(self, path: str) -> File | None:
        """The file, if it is open."""
        with self._lock:
            file = self._open.get(path)
            if file is not None:
                self._open.move_to_end(path)
            return file

    def put(self, path: str, file: File) -> None:
        """Keep a file open, and let go of others."""
        max_open_files, max_records = self._limits
        with self._lock:
            self._open[path] = file
            records = sum(each.records for each in self._open.values())
            while len(self._open) > 1 and (len(self._open) > max_open_files or records > max_records):
                records -= self._open.popitem(last=False)[1].records

    def close(self) -> None:
        """Let go of all files."""
        with self._lock:
            self._open.clear()

    def start_anew(self) -> None:
        """Forget the files and the lock of the process that this one was forked from."""
        self._lock = threading.Lock()
        self._open = OrderedDict()


def _start_anew() -> None:
    for files in list(_all):
        files.start_anew()


os.register_at_fork(after_in_child=_start_anew)
