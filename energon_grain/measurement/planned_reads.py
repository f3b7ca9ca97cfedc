"""What the stream will read first: its chunks, and the ranges of files that these take."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from energon_grain.sources.array_record import ArrayRecordSource
from energon_grain.sources.arrays import ArraySource
from energon_grain.sources.joined import JoinedSource
from energon_grain.sources.source import Source
from energon_grain.storage.local import LocalFiles
from energon_grain.storage.spans import coalesce
from energon_grain.stream.chunks import Chunk, ChunkPace, plan_chunks
from energon_grain.stream.index_map import draw_sizes
from energon_grain.stream.passes import Share
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage

_LOCATED_SAMPLES = 20_000
"""Samples whose places are looked up, one by one."""
_PLANNED_BYTES = 1 << 30

FileSpan = tuple[str, int, int]
"""(path, first byte, size) of one read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedReads:
    """Chunks with the reads that they take.

    Attributes:
        chunks: The first ones of the stream; no more samples than a pass over the data has, for those that come again
            take nothing.
        spans: For each chunk, in the order of a reader; None: not all of them are ranges of local files.
        sample_bytes: Bytes that reading a sample takes, on average.
    """

    chunks: list[Chunk]
    spans: list[list[FileSpan]] | None
    sample_bytes: float

    @property
    def paths(self) -> list[str]:
        """The files, each once."""
        return sorted({path for spans in self.spans or () for path, _, _ in spans})


def stream_chunks(spec: StreamSpec, stage: PureStage, batch_size: int, pace: ChunkPace) -> Iterator[Chunk]:
    """The chunks of a single host in the order of the stream.

    Where lanes have a program, which alone knows its order, chunks of its feeds take turns.
    """
    if spec.program is None:
        share = Share(0, 1, spec.lanes)
        yield from plan_chunks(
            spec, stage.sources, share, pass_number=0, first=0, batch_size=max(1, batch_size), pace=pace
        )
        return
    feeds = spec.program.feeds
    first = 0
    for number in itertools.count():
        count = max(1, pace.samples // len(feeds))
        for feed in feeds:
            draws = feed.draw(np.arange(first, first + count))
            yield Chunk(number=number, draws=draws, size_bytes=int(draw_sizes(draws, stage.sources).sum()))
        first += count


def settled_pace(spec: StreamSpec, stage: PureStage, batch_size: int, seconds: float) -> ChunkPace:
    """The size of chunks that the stream settles at, learnt from running it for some time."""
    pace = ChunkPace(first=max(1, batch_size), leaves=len(spec.leaves))
    run = pace.timed(stage.run)
    deadline = time.perf_counter() + seconds
    for chunk in stream_chunks(spec, stage, batch_size, pace):
        run(chunk)
        if time.perf_counter() >= deadline:
            break
    return pace


def plan_reads(spec: StreamSpec, stage: PureStage, batch_size: int, pace: ChunkPace) -> PlannedReads:
    """Plan about 20,000 samples, a GiB or one pass over the data, whatever is least; at least one chunk."""
    chunks: list[Chunk] = []
    samples = size_bytes = 0
    whole_pass = sum(map(len, stage.sources))
    limit = min(_LOCATED_SAMPLES, whole_pass)
    for chunk in stream_chunks(spec, stage, batch_size, pace):
        chunk = _cut(chunk, whole_pass - samples, stage.sources)
        chunks.append(chunk)
        samples += len(chunk.draws)
        size_bytes += chunk.size_bytes
        if samples >= limit or size_bytes >= _PLANNED_BYTES:
            break
    known = all(map(_reads_ranges, stage.sources))
    spans = [_spans(chunk, stage.sources) for chunk in chunks] if known else []
    paths = {path for path, _, _ in itertools.chain.from_iterable(spans)}
    local = known and all(spans) and all(map(os.path.isfile, paths))
    return PlannedReads(chunks=chunks, spans=spans if local else None, sample_bytes=size_bytes / max(1, samples))


def _cut(chunk: Chunk, samples: int, sources: list[Source]) -> Chunk:
    """The first samples of a chunk, if it has more."""
    if len(chunk.draws) <= samples:
        return chunk
    draws = chunk.draws[:samples]
    return replace(
        chunk,
        draws=draws,
        size_bytes=int(draw_sizes(draws, sources).sum()),
        groups=tuple(range(group.start, min(group.stop, samples)) for group in chunk.groups if group.start < samples),
    )


def _reads_ranges(source: Source) -> bool:
    """Whether what is read of files is known: array_record's reader keeps to itself where records lie."""
    members = source.members if isinstance(source, JoinedSource) else (source,)
    return not any(isinstance(member, ArrayRecordSource) for member in members)


def _spans(chunk: Chunk, sources: list[Source]) -> list[FileSpan]:
    """The reads of a chunk, coalesced as the reader of local files does."""
    spans: list[FileSpan] = []
    for leaf, _, draws in chunk.draws.by_leaf():
        for path, shards in _ranges(sources[leaf], draws.index).items():
            spans += _coalesced(path, shards)
    return spans


def _ranges(source: Source, indices: npt.NDArray[np.int64]) -> dict[str, list[tuple[str, int, int]]]:
    """(shard, offset, size) of every part, by the dataset that it lies in. Rows of arrays have no such place."""
    if isinstance(source, JoinedSource):
        rows = source.samples(indices)
        ranges: dict[str, list[tuple[str, int, int]]] = {}
        for number, member in enumerate(source.members):
            if not isinstance(member, ArraySource):
                column = rows[:, number]
                for path, shards in _ranges(member, column[column >= 0]).items():
                    ranges.setdefault(path, []).extend(shards)
        return ranges
    found: list[tuple[str, int, int]] = []
    for index in indices.tolist():
        place = source.locate(index)
        found += [(place.shard, offset, size) for offset, size in place.parts.values()]
    return {source.path: found}


def _coalesced(path: str, ranges: list[tuple[str, int, int]]) -> list[FileSpan]:
    names = sorted({shard for shard, _, _ in ranges})
    numbers = {name: number for number, name in enumerate(names)}
    spans = coalesce(
        np.array([numbers[shard] for shard, _, _ in ranges], np.int64),
        np.array([offset for _, offset, _ in ranges], np.int64),
        np.array([size for _, _, size in ranges], np.int64),
        merge_gap_bytes=LocalFiles.merge_gap_bytes,
        solo_bytes=LocalFiles.solo_bytes,
    )
    files = [os.path.join(path, name) if os.path.isdir(path) else path for name in names]
    return [
        (files[file], start, stop - start)
        for file, start, stop in zip(spans.file.tolist(), spans.start.tolist(), spans.stop.tolist(), strict=True)
    ]
