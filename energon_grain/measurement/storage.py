"""Measuring storage alone: the dataset's own reading, and plain `pread` on the same ranges."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

from energon_grain.measurement.figures import ReadRate, StorageFigures
from energon_grain.measurement.planned_reads import PlannedReads
from energon_grain.stream.stage import PureStage

CAN_DROP = hasattr(os, "posix_fadvise")


def drop(paths: Iterable[str]) -> None:
    """Ask the kernel to drop files from the page cache.

    It is a request: pages that another process has mapped stay, and so do those of some file systems.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # what was not written yet cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def cached_share(places: Iterable[tuple[str, int]]) -> float | None:
    """Share of (file, offset) places whose byte is in memory, without reading what is not.

    None: the kernel or the file system does not tell, or there is no place.
    """
    flag = getattr(os, "RWF_NOWAIT", None)
    if flag is None:
        return None
    cached = asked = 0
    buffer = bytearray(1)
    for path, offset in places:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.preadv(descriptor, [buffer], offset, flag)
            cached += 1
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return None
        finally:
            os.close(descriptor)
        asked += 1
    return cached / asked if asked else None


_PROBES = 256


def measure_storage(stage: PureStage, planned: PlannedReads, seconds: float) -> StorageFigures:
    """Read the planned chunks, cold and then warm, each time by the dataset's reader and by `pread`.

    Args:
        stage: Whose sources read.
        planned: What to read.
        seconds: For each of the four. Cold, every chunk is read once at most; warm, over and over.

    Raises:
        ReadError: Bytes could not be read.
    """

    def own(number: int) -> None:
        read_chunk(stage, planned, number)

    cold = pread_cold = pread_warm = still_cached = None
    spans = planned.spans
    if spans is not None and CAN_DROP:
        drop(planned.paths)
        still_cached = cached_share(_probes(planned))
        stage.close()
        cold, _ = read_rate(planned, own, seconds, repeat=False)
        drop(planned.paths)
        with ExitStack() as stack:
            pread_cold, _ = read_rate(planned, _plain(planned, stack), seconds, repeat=False)
    for number in range(len(planned.chunks)):
        own(number)
    warm, _ = read_rate(planned, own, seconds, repeat=True)
    request_bytes = 0.0
    if spans is not None:
        with ExitStack() as stack:
            pread_warm, _ = read_rate(planned, _plain(planned, stack), seconds, repeat=True)
        sizes = [size for chunk in spans for _, _, size in chunk]
        request_bytes = sum(sizes) / max(1, len(sizes))
    return StorageFigures(
        warm=warm,
        cold=cold,
        pread_warm=pread_warm,
        pread_cold=pread_cold,
        still_cached=still_cached,
        request_bytes=request_bytes,
    )


def read_chunk(stage: PureStage, planned: PlannedReads, number: int) -> None:
    """Read the parts of a planned chunk. Raises ReadError."""
    stage.read(planned.chunks[number].draws)


def read_rate(
    planned: PlannedReads, read: Callable[[int], None], seconds: float, *, repeat: bool
) -> tuple[ReadRate, int]:
    """Read chunk by chunk until the time is up, at least one; say how fast it was, and how many were read.

    Args:
        planned: The chunks.
        read: Reads the chunk of that number.
        seconds: How long.
        repeat: Begin anew after the last one.
    """
    count = len(planned.chunks)
    done = 0
    begin = time.perf_counter()
    while True:
        read(done % count)
        done += 1
        elapsed_s = time.perf_counter() - begin
        if elapsed_s >= seconds or (done == count and not repeat):
            break
    samples = size_bytes = requests = 0
    for number in range(count):
        times = done // count + (number < done % count)
        samples += times * len(planned.chunks[number].draws)
        if planned.spans is None:
            size_bytes += times * planned.chunks[number].size_bytes
        else:
            size_bytes += times * sum(size for _, _, size in planned.spans[number])
            requests += times * len(planned.spans[number])
    rate = ReadRate(
        samples_per_s=samples / elapsed_s,
        bytes_per_s=size_bytes / elapsed_s,
        requests_per_s=requests / elapsed_s,
        seconds=elapsed_s,
    )
    return rate, done


def _plain(planned: PlannedReads, stack: ExitStack) -> Callable[[int], None]:
    """What reads the ranges of a chunk by `pread` and does nothing else; the stack closes the files."""
    descriptors = {path: os.open(path, os.O_RDONLY) for path in planned.paths}
    for descriptor in descriptors.values():
        stack.callback(os.close, descriptor)
    assert planned.spans is not None
    chunks = [[(descriptors[path], size, start) for path, start, size in spans] for spans in planned.spans]

    def read(number: int) -> None:
        pread = os.pread
        # Kept until the chunk is read, as a reader must: memory that is used again at once would flatter it.
        kept = [pread(descriptor, size, start) for descriptor, size, start in chunks[number]]
        del kept

    return read


def _probes(planned: PlannedReads) -> Iterator[tuple[str, int]]:
    """Some of the planned ranges, spread over all."""
    spans = [(path, start) for chunk in planned.spans or () for path, start, _ in chunk]
    yield from spans[:: max(1, len(spans) // _PROBES)]
