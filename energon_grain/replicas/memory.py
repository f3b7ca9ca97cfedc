# SPDX-License-Identifier: Apache-2.0
"""Batches in anonymous files that several processes map."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from energon_grain.processes.worker import SampleUnpickler
from energon_grain.sources.source import Source

RELEASE = struct.Struct("<QB")
"""Report about a file: number of its message, and one of the following."""
GONE, REUSABLE, TAKEN = 0, 1, 2
"""A process no longer needs the file, which must not be written to again, or may be; or it has taken the batch."""
_STAYING = 16
"""Buffers of at least 1/16 of a batch stay in its file. Smaller ones are copied: holding one would keep the file."""

Places = Sequence[tuple[int, int]]
"""(offset, size) in bytes of each part of a batch in its file; the first one is the pickle."""

_forks = 0


def _forking() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_forking)


class Holds:
    """The files that this process has mapped. Each is released once nothing refers to its memory.

    Args:
        most: Maximum number of mapped files. Beyond it, batches are copies, so that a process that keeps batches does
            not stop the others.
        releases: Socket that releases are sent to.
    """

    def __init__(self, most: int, releases: socket.socket) -> None:
        self._most = most
        self._releases = releases
        self._held: set[int] = set()

    def load(self, number: int, file: int, places: Places, sources: list[Source]) -> Any:
        """Return the value in a file. Arrays may be written to; other processes do not see it.

        Args:
            number: Number of its message.
            file: Descriptor, which may be closed afterwards.
            places: Its parts.
            sources: This process's sources, for the provenance of samples.

        Raises:
            OSError: There are too many mappings or open files.
        """
        begin = min(offset for offset, _ in places) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        end = max(offset + size for offset, size in places)
        mapping = mmap.mmap(
            file, end - begin, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=begin
        )
        memory = np.frombuffer(mapping, np.uint8)
        self._held.add(number)
        _tell(self._releases, number, TAKEN)
        weakref.finalize(memory, self._finished(number)).atexit = False
        total = sum(size for _, size in places)
        staying = total // _STAYING if len(self._held) <= self._most else total + 1
        parts = [memory[offset - begin : offset - begin + size] for offset, size in places]
        buffers = [part.data if at and part.size >= staying else part.copy().data for at, part in enumerate(parts)]
        return SampleUnpickler(buffers[0], buffers[1:], sources).load()

    def _finished(self, number: int) -> Callable[[], None]:
        """The garbage collector may call it in any thread, so it takes no lock, and sends one short message."""
        forks, process = _forks, os.getpid()
        held, releases = self._held, self._releases

        def finished() -> None:
            if os.getpid() == process:
                held.discard(number)
                release(releases, number, reuse=forks == _forks)  # a forked child has the mapping too

        return finished


def release(releases: socket.socket, number: int, *, reuse: bool) -> None:
    """Report that this process no longer needs a file; does nothing if the reader has ended."""
    _tell(releases, number, REUSABLE if reuse else GONE)


def _tell(releases: socket.socket, number: int, report: int) -> None:
    with suppress(OSError):
        releases.send(RELEASE.pack(number, report))
