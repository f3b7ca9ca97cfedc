# SPDX-License-Identifier: Apache-2.0
"""Fetching ahead of need what is not on this machine: what the engine asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from energon_grain.sources.remote_runs import RemoteSource
from energon_grain.sources.source import Source
from energon_grain.stream.extensions import LOOK_AHEAD, extension
from energon_grain.stream.index_map import Draws
from energon_grain.stream.observer import Outlet


class PrefetchedChunk(Protocol):
    """When the bytes of a chunk are there. In another process: at once."""

    def wait(self) -> None:
        """Wait until they are there, or cannot be had. Raises Cancelled if nothing needs them any more."""
        ...


class Prefetched(Protocol):
    """What is being fetched for some draws; its length is their number."""

    def __len__(self) -> int: ...

    def until(self, stop: int) -> PrefetchedChunk:
        """When the bytes of the first `stop` draws are there."""
        ...


class LookAhead(Protocol):
    """Fetches the bytes of coming draws, in the order of need.

    Attributes:
        step_bytes: How much to fetch at a time.
    """

    step_bytes: int

    def __bool__(self) -> bool:
        """Whether there is anything to fetch."""
        ...

    def fetch(self, draws: Draws) -> Prefetched:
        """Begin to fetch what draws take, or the first of them if with what is between it would be too much."""
        ...

    def close(self) -> None:
        """Begin no further request, and give up those under way."""
        ...


def look_ahead_of(sources: Sequence[Source], *, in_process: bool, outlet: Outlet | None = None) -> LookAhead | None:
    """What fetches ahead for sources; None: they are all on this machine.

    Args:
        in_process: Whether this process reads the samples, so that its memory may hold what is fetched.
        outlet: Where the time that threads waited for it is reported.
    """
    if not any(isinstance(source, RemoteSource) and source.remote_files for source in sources):
        return None
    return extension(LOOK_AHEAD)(sources, in_process=in_process, outlet=Outlet() if outlet is None else outlet)
