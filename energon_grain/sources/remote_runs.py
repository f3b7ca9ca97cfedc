# SPDX-License-Identifier: Apache-2.0
"""Which bytes and samples belong together where samples lie in an object store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from energon_grain.storage.byte_store import MAX_SPAN_BYTES, Spans, coalesce
from energon_grain.storage.cancellation import cancelled_by, current_cancellation
from energon_grain.storage.remote import RemoteFiles

Int64Array = npt.NDArray[np.int64]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

REMOTE_RUN_BYTES = 4 << 20
"""A request of 4 MiB moves about as much in its time as it takes to be answered: 50 ms at 80 MB/s a connection."""
_FAR_APART_BYTES = 256 << 10
"""What lies between two samples takes less time to fetch than another request would: with dozens of requests under way,
50 ms of waiting are worth about 100 KiB, and blocks of the cache are as long as this."""


@runtime_checkable
class ReadInRuns(Protocol):
    """A source of which single samples may be dear."""

    @property
    def run_samples(self) -> int | None:
        """Consecutive samples to read together in a shuffle; None: each may be read by itself."""
        ...


@runtime_checkable
class ReadInBlocks(ReadInRuns, Protocol):
    """A source whose samples can only be had with their neighbours, in blocks that lie as they lie."""

    def block_starts(self, at_least: int | None = None) -> Int64Array:
        """(blocks + 1,) the first sample of each block, and how many samples there are.

        Small blocks are put together until they have `at_least` so many samples; None: as many as is best.
        """
        ...

    def warn_of_order(self, blocks_at_once: int | None) -> str | None:
        """What to warn of where an order is in so many blocks at a time (None: in all); None: nothing."""
        ...


def remote_run(total_bytes: int, samples: int) -> int | None:
    """Samples in 4 MiB, or None where that is one or less."""
    found = REMOTE_RUN_BYTES * samples // max(total_bytes, 1)
    return found if found > 1 else None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RemoteExtents:
    """Where samples lie in objects.

    Attributes:
        files: What reads the objects.
        paths: Their URLs.
        spans: Long runs of bytes that hold pieces of samples.
        owner: (n,) which of the samples asked for each piece belongs to.
    """

    files: RemoteFiles
    paths: Sequence[str]
    spans: Spans
    owner: Int64Array


def remote_extents(
    files: RemoteFiles, paths: Sequence[str], file: Int64Array, start: Int64Array, size: Int64Array, owner: Int64Array
) -> RemoteExtents:
    """Bring pieces together as it is best to fetch them ahead of need. See `coalesce`."""
    spans = coalesce(file, start, size, merge_gap_bytes=_FAR_APART_BYTES, solo_bytes=MAX_SPAN_BYTES)
    return RemoteExtents(files=files, paths=paths, spans=spans, owner=owner)


@runtime_checkable
class RemoteSource(Protocol):
    """A source whose bytes may lie in object stores."""

    @property
    def remote_files(self) -> Sequence[RemoteFiles]:
        """What reads them; empty: they lie on this machine."""
        ...

    def extents(self, indices: Int64Array) -> list[RemoteExtents]:
        """Where samples lie in objects: none of what lies on this machine. Raises ReadError."""
        ...


def side_by_side(
    function: Callable[[_Item], _Result], items: Sequence[_Item], files: Sequence[RemoteFiles]
) -> list[_Result]:
    """Call a function that reads for each of several sources: in threads if `files`, where that takes requests.

    After the first failure those that have not begun are left out.
    """
    if not files or len(items) < 2:
        return [function(item) for item in items]
    over = current_cancellation()

    def call(item: _Item) -> _Result:
        with cancelled_by(over):
            return function(item)

    with ThreadPoolExecutor(min(len(items), files[0].settings.requests_in_flight)) as threads:
        return list(threads.map(call, items))
