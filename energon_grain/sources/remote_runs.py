# SPDX-License-Identifier: Apache-2.0
"""Groups bytes and samples in object stores into efficient requests."""

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
"""The transfer of 4 MiB takes about as long as the latency of a request: 50 ms at 80 MB/s per connection."""
_PREFETCH_GAP_BYTES = 256 << 10
"""Fetching a gap of this size is cheaper than another request: with dozens of requests under way, 50 ms of latency
equal about 100 KiB, and cache blocks have this size."""


@runtime_checkable
class ReadInRuns(Protocol):
    """A source for which reading single samples may be expensive."""

    @property
    def run_samples(self) -> int | None:
        """Consecutive samples to read together in a shuffle; None: single samples."""
        ...


@runtime_checkable
class ReadInBlocks(ReadInRuns, Protocol):
    """A source whose samples can only be read together with their neighbors, in blocks of fixed order."""

    def block_starts(self, at_least: int | None = None) -> Int64Array:
        """(blocks + 1,) the first sample of each block, and the number of samples.

        Small blocks are merged until they have `at_least` samples; None: the best size.
        """
        ...

    def warn_of_order(self, blocks_at_once: int | None) -> str | None:
        """A warning for an order with this number of blocks in use at a time (None: all), or None."""
        ...


def remote_run(total_bytes: int, samples: int) -> int | None:
    """Number of samples in 4 MiB, or None if that is one or less."""
    found = REMOTE_RUN_BYTES * samples // max(total_bytes, 1)
    return found if found > 1 else None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RemoteExtents:
    """Location of samples in objects.

    Attributes:
        files: Reads the objects.
        paths: URLs of the objects.
        spans: Long byte ranges that contain pieces of samples.
        owner: (n,) which of the requested samples each piece belongs to.
    """

    files: RemoteFiles
    paths: Sequence[str]
    spans: Spans
    owner: Int64Array


def remote_extents(
    files: RemoteFiles, paths: Sequence[str], file: Int64Array, start: Int64Array, size: Int64Array, owner: Int64Array
) -> RemoteExtents:
    """Merge pieces into ranges suited to prefetching. See `coalesce`."""
    spans = coalesce(file, start, size, merge_gap_bytes=_PREFETCH_GAP_BYTES, solo_bytes=MAX_SPAN_BYTES)
    return RemoteExtents(files=files, paths=paths, spans=spans, owner=owner)


@runtime_checkable
class RemoteSource(Protocol):
    """A source whose bytes may be in object stores."""

    @property
    def remote_files(self) -> Sequence[RemoteFiles]:
        """Readers of the objects; empty: the data are local."""
        ...

    def extents(self, indices: Int64Array) -> list[RemoteExtents]:
        """Location of samples in objects, without local ones. Raises ReadError."""
        ...


def side_by_side(
    function: Callable[[_Item], _Result], items: Sequence[_Item], files: Sequence[RemoteFiles]
) -> list[_Result]:
    """Call a function that reads for each of several sources, in threads if `files` shows that this takes requests.

    After the first failure, calls that have not started are skipped.
    """
    if not files or len(items) < 2:
        return [function(item) for item in items]
    over = current_cancellation()

    def call(item: _Item) -> _Result:
        with cancelled_by(over):
            return function(item)

    with ThreadPoolExecutor(min(len(items), files[0].settings.requests_in_flight)) as threads:
        return list(threads.map(call, items))
