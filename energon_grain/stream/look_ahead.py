# SPDX-License-Identifier: Apache-2.0
"""The interface for prefetching from remote storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from energon_grain.sources.remote_runs import RemoteSource
from energon_grain.sources.rows import SelectedSource
from energon_grain.sources.source import Source
from energon_grain.stream.extensions import LOOK_AHEAD, extension
from energon_grain.stream.index_map import Draws
from energon_grain.stream.observer import Outlet


class PrefetchedChunk(Protocol):
    """A handle of the prefetched bytes of a chunk. In another process, `wait` returns at once."""

    def wait(self) -> None:
        """Wait until the bytes have arrived or failed. Raises Cancelled if they are no longer needed."""
        ...


class Prefetched(Protocol):
    """Draws being prefetched. The length is their number."""

    def __len__(self) -> int: ...

    def until(self, stop: int) -> PrefetchedChunk:
        """The handle of the first `stop` draws."""
        ...


class LookAhead(Protocol):
    """Prefetches the bytes of the next draws, in the order in which they are needed."""

    @property
    def step_bytes(self) -> int:
        """Bytes to prefetch at a time."""
        ...

    def __bool__(self) -> bool:
        """Whether there is anything to prefetch."""
        ...

    def fetch(self, draws: Draws) -> Prefetched:
        """Start to prefetch draws, or only the first of them if all, including gaps between them, would be too much."""
        ...

    def close(self) -> None:
        """Start no further requests, and cancel running ones."""
        ...


def look_ahead_of(sources: Sequence[Source], *, in_process: bool, outlet: Outlet | None = None) -> LookAhead | None:
    """The prefetcher of sources; None: all of them are local.

    Args:
        in_process: Whether this process reads the samples, so that prefetched bytes may stay in its memory.
        outlet: Receives reports of the time that threads wait for prefetched bytes.
    """
    if not any(isinstance(source, SelectedSource | RemoteSource) and source.remote_files for source in sources):
        return None
    return extension(LOOK_AHEAD)(sources, in_process=in_process, outlet=Outlet() if outlet is None else outlet)
