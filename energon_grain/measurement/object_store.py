"""Measuring an object store: what a request takes, what requests side by side bring, and what reading makes of it."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import msgspec
import numpy as np

from energon_grain.measurement.figures import ReadRate, StorageFigures, StoreFigures
from energon_grain.measurement.planned_reads import PlannedReads
from energon_grain.measurement.storage import read_chunk, read_rate
from energon_grain.sources.remote_runs import FetchedAhead
from energon_grain.sources.source import Source
from energon_grain.storage.object_client import ObjectClient, ObjectRange, shared_client
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.storage_settings import StorageSettings, storage_settings, using_storage
from energon_grain.stream.encode import PureStage
from energon_grain.stream.operators.lane_ahead import joined_draws
from energon_grain.stream.read_ahead import ReadAhead

_OBJECTS = 16
_PIECE_BYTES = 4 << 20
_PIECES = 4096
_LATENCIES = 7


@contextmanager
def past_the_cache() -> Generator[StorageSettings]:
    """Let what is opened inside read stores past the cache on local disk; gives the settings that say so."""
    settings = msgspec.structs.replace(storage_settings(), cache_bytes=0)
    with using_storage(settings):
        yield settings


def objects_of(sources: Iterable[Source]) -> list[str]:
    """URLs of some of the objects that sources read; none where all files lie on this machine. Raises ReadError."""
    found: list[str] = []
    for source in sources:
        some = np.unique(np.linspace(0, len(source) - 1, _OBJECTS).astype(np.int64))
        for extents in source.extents(some) if isinstance(source, FetchedAhead) and source.remote_files else ():
            found.extend(extents.paths[int(number)] for number in np.unique(extents.spans.file))
    urls = list(dict.fromkeys(found))
    return urls[:: max(1, -(-len(urls) // _OBJECTS))]


def measure_store(
    past: PureStage,
    cached: PureStage,
    planned: PlannedReads,
    urls: Sequence[str],
    seconds: float,
    settings: StorageSettings,
) -> tuple[StorageFigures, int]:
    """Read the planned chunks past the cache and then out of it, and ranges of objects by bare requests.

    Args:
        past: Whose sources read past the cache.
        cached: Whose sources read through it.
        planned: What to read. Out of the cache only what there was time to bring into it.
        urls: Objects to take bare ranges of.
        seconds: For each of the four.
        settings: Those of `past`.

    Returns:
        The figures, and how many chunks the cache has now.

    Raises:
        ReadError: Bytes could not be read.
    """
    client = shared_client(settings)
    pieces = _pieces(RemoteFiles(settings), urls)
    latency_s = _latency_s(client, pieces)
    ceiling = _bare_rate(client, pieces, planned.sample_bytes, seconds)
    requests, fetched = client.traffic.requests, client.traffic.bytes_read
    cold, chunks = read_rate(planned, lambda number: read_chunk(past, planned, number), seconds, repeat=False)
    requests, fetched = client.traffic.requests - requests, client.traffic.bytes_read - fetched
    cold = replace(cold, bytes_per_s=fetched / cold.seconds, requests_per_s=requests / cold.seconds)
    warm = cold
    if storage_settings().cache_bytes != 0:
        chunks = max(chunks, _fetch_into_cache(cached, planned, seconds))
        read = replace(planned, chunks=planned.chunks[:chunks])
        for number in range(chunks):
            read_chunk(cached, read, number)
        warm, _ = read_rate(read, lambda number: read_chunk(cached, read, number), seconds, repeat=True)
    figures = StorageFigures(
        warm=warm,
        cold=cold,
        pread_warm=None,
        pread_cold=ceiling,
        still_cached=None,
        request_bytes=fetched / max(1, requests),
        store=StoreFigures(
            latency_s=latency_s,
            requests_in_flight=settings.requests_in_flight,
            fetched_bytes=_fetched_ahead(past, planned) or fetched / max(1.0, cold.samples_per_s * cold.seconds),
        ),
    )
    return figures, chunks


def _fetch_into_cache(cached: PureStage, planned: PlannedReads, seconds: float) -> int:
    """Fetch planned chunks side by side, in their order, until the time is up; give how many are there."""
    deadline = time.perf_counter() + seconds
    sizes = np.cumsum([len(chunk.draws) for chunk in planned.chunks])
    ahead = ReadAhead(cached.sources, in_process=True)
    with closing(ahead):
        coming = ahead.fetch(joined_draws([chunk.draws for chunk in planned.chunks]))
        fetched = 0
        for stop in sizes[sizes <= len(coming)].tolist():
            coming.until(stop).wait()
            if not ahead or time.perf_counter() >= deadline:
                break
            fetched += 1
    return fetched


def _fetched_ahead(stage: PureStage, planned: PlannedReads) -> float:
    """Bytes that are fetched ahead of need for a planned sample, on average; 0: nothing is."""
    draws = joined_draws([chunk.draws for chunk in planned.chunks])
    fetched = 0
    for leaf, source in enumerate(stage.sources):
        if isinstance(source, FetchedAhead) and source.remote_files:
            extents = source.extents(draws.index[draws.leaf == leaf])
            fetched += sum(int((each.spans.stop - each.spans.start).sum()) for each in extents)
    return fetched / len(draws)


def _pieces(files: RemoteFiles, urls: Sequence[str]) -> list[ObjectRange]:
    """Ranges of 4 MiB of all objects in turn, over and over."""
    cut = [
        [ObjectRange(url, start, min(start + _PIECE_BYTES, size)) for start in range(0, size, _PIECE_BYTES)]
        for url, size in ((url, files.size(url)) for url in urls)
    ]
    turns = [piece for turn in itertools.zip_longest(*cut) for piece in turn if piece is not None]
    return list(itertools.islice(itertools.cycle(turns), _PIECES))


def _latency_s(client: ObjectClient, pieces: Sequence[ObjectRange]) -> float:
    """What a request for one byte takes: the median of several, one after the other."""
    times: list[float] = []
    for piece in pieces[: _LATENCIES + 1]:
        assert piece.start is not None
        began = time.perf_counter()
        client.read(ObjectRange(piece.url, piece.start, piece.start + 1))
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:] or times)  # the first one opens the connection


def _bare_rate(client: ObjectClient, pieces: Sequence[ObjectRange], sample_bytes: float, seconds: float) -> ReadRate:
    """Requests side by side, as many as are allowed, with nothing done to what comes."""
    began = time.perf_counter()
    left = iter(pieces)  # of all threads together

    def fetch(first: ObjectRange) -> list[int]:
        sizes: list[int] = []
        for piece in itertools.chain([first], left):
            found = client.read(piece)
            sizes.append(0 if found is None or found.data is None else len(found.data))
            if time.perf_counter() - began >= seconds:
                break
        return sizes

    at_a_time = list(itertools.islice(left, client.settings.requests_in_flight))
    sizes = list(itertools.chain.from_iterable(client.map(fetch, at_a_time)))
    elapsed_s = time.perf_counter() - began
    return ReadRate(
        samples_per_s=sum(sizes) / max(1.0, sample_bytes) / elapsed_s,
        bytes_per_s=sum(sizes) / elapsed_s,
        requests_per_s=sum(size > 0 for size in sizes) / elapsed_s,
        seconds=elapsed_s,
    )
