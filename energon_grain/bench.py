# SPDX-License-Identifier: Apache-2.0
"""Benchmark loading on the user's own data: the rates of storage, sample work, and the whole pipeline.

*Storage* reads samples without processing them: once as in the first epoch (files dropped from the page cache, objects
read past the disk cache), and once as in later epochs. *Work* decodes samples, calls hooks and makes batches of data
already read, in one thread, with a timer on each stage. The *pipeline* delivers batches to a loop that ignores them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.sources.remote_runs import RemoteSource
from energon_grain.sources.source import Source
from energon_grain.storage.cores import usable_cores
from energon_grain.storage.settings import storage_settings, using_storage
from energon_grain.stream.batches import BatchDropped, BatchMaker
from energon_grain.stream.chunks import Chunk, ChunkPace, plan_chunks
from energon_grain.stream.clock import Clock, Span
from energon_grain.stream.drops import Dropped
from energon_grain.stream.look_ahead import LookAhead, look_ahead_of
from energon_grain.stream.passes import Share
from energon_grain.stream.spec import StreamSpec, wanted_block
from energon_grain.stream.stage import PureStage
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.transforms.image import IMAGE_EXTENSIONS
from energon_grain.watch.stream import Stream

_SAMPLES = 20_000
"""Maximum number of samples to read: the first of the stream, and at most one pass over the data."""
_CHUNK, _WORK_CHUNK, _WORK_CHUNK_SECONDS = 1024, 64, 0.1
_COLD = 3.0
"""Slowdown of files outside the page cache that justifies the advice."""
_BUSY = 0.8
"""Share of the rate that all workers could reach without waiting. A pipeline above it does not wait for storage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Rate of reading samples, and the bytes of their parts."""

    samples_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage of the work on a sample, in one thread: `decode`, a hook by its name, or `batch`.

    Attributes:
        name: Name of the stage.
        microseconds: Time per sample.
        share: Share of the time of all stages, 0 to 1.
        serial: Whether it runs in only one thread at a time, regardless of the number of threads.
    """

    name: str
    microseconds: float
    share: float
    serial: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The pipeline with one number of workers. Rates count items if lanes filter, pack, group or generate."""

    workers: int
    samples_per_s: float
    first_batch_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """All measurements.

    Attributes:
        path: The measured dataset, as given.
        samples: Samples in all datasets.
        sample_bytes: Average number of bytes read per sample.
        batch_size: Samples per batch.
        block: Consecutive samples that are read together; None: samples are read one by one.
        largest_block: The largest block size that gives every lane a block.
        worker_type: `thread` or `process`.
        cores: Cores that this process may use.
        images: Whether any part is an image.
        items: Whether the pipeline delivers items that differ from the samples read.
        in_store: Whether some of the data is in an object store.
        first: Rate of reading as in the first epoch: for an object store, past the disk cache, with prefetching. None:
            the data is not in local files that can be dropped from the page cache.
        later: Rate of reading as in later epochs: from memory, or, for an object store, from the cache. None: the store
            is not cached.
        work: Stages in order.
        work_per_s: Samples per second of one thread on data already read.
        pipeline: Runs by number of workers, ascending.
        dropped: Number of samples and batches dropped by the work, by hook and error.
        notes: Limitations of the measurements.
    """

    path: str
    samples: int
    sample_bytes: float
    batch_size: int
    block: int | None
    largest_block: int
    worker_type: str
    cores: int
    images: bool
    items: bool
    in_store: bool
    first: Rate | None
    later: Rate | None
    work: tuple[Stage, ...]
    work_per_s: float
    pipeline: tuple[Run, ...]
    dropped: dict[str, int]
    notes: tuple[str, ...]

    @property
    def best(self) -> Run:
        """The fastest run."""
        return max(self.pipeline, key=lambda run: run.samples_per_s)

    @property
    def slowest(self) -> Stage:
        """The stage with the largest share of the work."""
        return max(self.work, key=lambda stage: stage.share)

    @property
    def bound(self) -> Literal["storage", "work", "pipeline"]:
        """The limit of the rate: reading, the work on samples, or (with neither) planning and delivery."""
        if self.in_store:
            return "storage" if self._waits_for_store() else "work"
        best, first, later = self.best.samples_per_s, self.first, self.later
        assert later is not None
        if first and first.samples_per_s < min(best, later.samples_per_s / _COLD):
            return "storage"
        alone = self.pipeline[0]
        reading_and_work_s = 1 / later.samples_per_s + 1 / self.work_per_s
        if alone.workers == 0 and not self.items and 1 / alone.samples_per_s > 2 * reading_and_work_s:
            return "pipeline"
        return "storage" if later.samples_per_s < self.work_per_s else "work"

    def _waits_for_store(self) -> bool:
        serial = self.slowest.serial and self.worker_type == "thread"
        could = self.work_per_s * (1 if serial else max(1, self.best.workers))
        waits = self.first is not None and self.first.samples_per_s < could
        return waits and (self.items or self.best.samples_per_s < _BUSY * could)


def measure(
    dataset: SavableDataset,
    *,
    path: str,
    workers: Sequence[int],
    seconds: float,
    show: Callable[[str], None],
) -> Figures:
    """Measure storage, work and the pipeline, in about `5 + len(workers)` times `seconds`.

    Worker counts above the number of cores are left out. The only files written are the cache of data in object stores.
    Raises the errors of loading: EmptyDatasetError, ReadError, FatalSampleError.
    """
    cores = usable_cores()
    chosen = sorted({number for number in workers if number <= cores} or {cores})
    spec = compile_dataset(dataset)
    with contextlib.closing(PureStage(spec)) as stage:
        samples = sum(map(len, stage.sources))
        images = _has_images(stage)
        show("storage")
        storage = _storage(dataset, spec, stage, seconds)
        show("sample work")
        work, dropped = _work(spec, stage, seconds)
    in_store = storage.past is not spec
    whole_pass = samples if in_store else 0
    pipeline = _pipeline(storage.past, dataset.worker_config, chosen, seconds, show, whole_pass)
    block, largest_block = _blocks(spec)
    return Figures(
        path=path,
        samples=samples,
        sample_bytes=storage.sample_bytes,
        batch_size=1 if spec.batch is None else spec.batch.size,
        block=block,
        largest_block=largest_block,
        worker_type=dataset.worker_config.worker_type,
        cores=cores,
        images=images,
        items=spec.program is not None,
        in_store=in_store,
        first=storage.first,
        later=storage.later,
        work=work,
        work_per_s=1e6 / max(1e-3, sum(each.microseconds for each in work)),
        pipeline=pipeline,
        dropped=dict(dropped),
        notes=tuple(_notes(spec, cores, dropped, all_tried=len(chosen) == len(set(workers)))),
    )


def _has_images(stage: PureStage) -> bool:
    parts = {part for source in stage.sources if len(source) for part in source.locate(0).parts}
    return any(part.rpartition(".")[2].lower() in IMAGE_EXTENSIONS for part in parts)


def _blocks(spec: StreamSpec) -> tuple[int | None, int]:
    """Return the smallest block of the shuffled leaves, and the largest possible one."""
    orders = [leaf.order for leaf in spec.leaves if leaf.order.shuffle]
    block = min((order.block for order in orders if order.block is not None), default=None)
    return block, max((order.n * order.passes // spec.lanes for order in orders), default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Storage:
    """Rates of storage on first and later reads.

    `past` is the stream that reads past the cache; for a dataset on local disks, it is the stream itself.
    """

    past: StreamSpec
    first: Rate | None
    later: Rate | None
    sample_bytes: float


def _storage(dataset: SavableDataset, spec: StreamSpec, stage: PureStage, seconds: float) -> _Storage:
    past = spec
    in_store = any(isinstance(source, RemoteSource) and source.remote_files for source in stage.sources)
    if in_store:
        with using_storage(msgspec.structs.replace(storage_settings(), cache_bytes=0)):
            past = compile_dataset(dataset)
        with (
            contextlib.closing(PureStage(past)) as past_stage,
            contextlib.ExitStack() as stack,
        ):
            ahead = look_ahead_of(past_stage.sources, in_process=True)
            if ahead is not None:
                stack.callback(ahead.close)
            chunks, first = _read(past_stage, _chunks(past, past_stage, _CHUNK, ahead), seconds)
    else:
        chunks = list(_chunks(spec, stage, _CHUNK))
        first = _read(stage, chunks, seconds)[1] if _drop(stage, chunks) else None
    later = None
    if not in_store or storage_settings().cache_bytes != 0:
        chunks, _ = _read(stage, chunks, seconds)
        _, later = _read(stage, itertools.cycle(chunks), seconds)
    size_bytes, samples = sum(chunk.size_bytes for chunk in chunks), sum(len(chunk.draws) for chunk in chunks)
    return _Storage(past=past, first=first, later=later, sample_bytes=size_bytes / max(1, samples))


def _notes(spec: StreamSpec, cores: int, dropped: Counter[str], *, all_tried: bool) -> Iterator[str]:
    if not all_tried:
        yield f"this process may use {cores} cores: larger numbers of workers are not measured"
    if spec.program is not None:
        yield (
            "lanes filter, pack, group or generate, which only the pipeline measurement includes: its samples are "
            "the resulting items"
        )
    fully = [leaf.leaf for leaf in spec.leaves if leaf.order.shuffle and leaf.order.block is None]
    refused = max((wanted_block(leaf) or 1 for leaf in fully), default=1)
    if refused > 1:
        yield (
            f"blocks of {refused:,} samples would leave some of the {spec.lanes} lanes without a block, so this "
            f"dataset is shuffled fully"
        )
    if dropped:
        yield f"some samples were dropped: {', '.join(sorted(dropped))}; `energon-grain lint` lists broken samples"


def _chunks(spec: StreamSpec, stage: PureStage, size: int, ahead: LookAhead | None = None) -> Iterator[Chunk]:
    """Yield chunks of the first samples of the stream, up to about one pass, because repeated reads may be cached.

    If lanes have a program, only the program knows their order, so chunks alternate between its feeds.
    """
    left = min(_SAMPLES, sum(map(len, stage.sources)))
    batch_size = 1 if spec.batch is None else spec.batch.size
    if spec.program is None:
        pace = ChunkPace(first=min(max(batch_size, size), left), leaves=len(spec.leaves))
        share = Share(0, 1, spec.lanes)
        planned = plan_chunks(
            spec, stage.sources, share, pass_number=0, first=0, batch_size=batch_size, pace=pace, ahead=ahead
        )
    else:
        feeds, firsts = spec.program.feeds, itertools.count(0, _WORK_CHUNK)
        drawn = (feed.draw(np.arange(first, first + _WORK_CHUNK)) for first in firsts for feed in feeds)
        planned = (Chunk(number=0, draws=each, size_bytes=int(stage.sources.sizes(each).sum())) for each in drawn)
    for chunk in planned:
        yield chunk
        left -= len(chunk.draws)
        if left <= 0:
            break


def _read(stage: PureStage, chunks: Iterable[Chunk], seconds: float) -> tuple[list[Chunk], Rate]:
    """Read chunks until they or the time end, at least one. Returns the chunks read, and the rate."""
    read: list[Chunk] = []
    began = time.perf_counter()
    for chunk in chunks:
        if chunk.prefetched is not None:
            chunk.prefetched.wait()
        stage.read(chunk.draws)
        read.append(chunk)
        if time.perf_counter() - began >= seconds:
            break
    elapsed_s = max(1e-9, time.perf_counter() - began)
    samples, size_bytes = sum(len(chunk.draws) for chunk in read), sum(chunk.size_bytes for chunk in read)
    return read, Rate(samples_per_s=samples / elapsed_s, bytes_per_s=size_bytes / elapsed_s)


def _drop(stage: PureStage, chunks: Sequence[Chunk]) -> bool:
    """Ask the kernel to drop the files of these chunks from the page cache. Returns False if some are not files.

    The kernel may ignore the request: pages mapped by another process stay, and so do those of some file systems.
    """
    files: set[str] = set()
    for leaf, _, draws in itertools.chain.from_iterable(chunk.draws.by_leaf() for chunk in chunks):
        files.update(itertools.chain.from_iterable(map(_files, *_read_by(stage.sources[leaf], draws.index))))
    if not hasattr(os, "posix_fadvise") or not all(map(os.path.isfile, files)):
        return False
    for path in files:
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # dirty pages cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def _read_by(source: Any, indices: npt.NDArray[np.int64]) -> tuple[Sequence[Source], Sequence[Any]]:
    """Return the sources that hold the samples (for a join, its members), and the sample numbers in each."""
    if not hasattr(source, "members"):
        return [source], [indices]
    return source.members, [own[own >= 0] for own in source.samples(indices).T]


def _files(source: Source, indices: npt.NDArray[np.int64]) -> set[str]:
    if not os.path.isdir(source.path):
        return {source.path}
    shards = {source.locate(index).shard for index in indices.tolist()}
    return {os.path.join(source.path, shard) for shard in shards}


def _work(spec: StreamSpec, stage: PureStage, seconds: float) -> tuple[tuple[Stage, ...], Counter[str]]:
    """Run decoding, hooks and batching on chunks in turn. Returns the time of each stage, and the drops.

    Batches are made only of consecutive samples; the programs of lanes that filter, pack or group do not run.
    """
    work = _Work(spec, stage)
    deadline = time.perf_counter() + seconds
    for number, chunk in enumerate(_growing_chunks(spec, stage)):
        if number in (1, 2):  # the first two chunks warm up
            work.forget()
        work.take(chunk)
        if number and time.perf_counter() >= deadline:
            break
    return work.stages(), work.dropped


def _growing_chunks(spec: StreamSpec, stage: PureStage) -> Iterator[Chunk]:
    """Yield a small chunk to import the decoders, the same chunk again to time it, then chunks as large as fit."""
    first = next(_chunks(spec, stage, _WORK_CHUNK))
    yield first
    began = time.perf_counter()
    yield first
    fit = int(len(first.draws) * _WORK_CHUNK_SECONDS / (time.perf_counter() - began))
    yield from itertools.cycle(list(_chunks(spec, stage, min(max(fit, _WORK_CHUNK), _CHUNK))))


class _Work:
    """Work on chunks: its spans, and the drops."""

    def __init__(self, spec: StreamSpec, stage: PureStage) -> None:
        self.dropped: Counter[str] = Counter()
        self._spans: list[Span] = []
        self._stage = stage
        self._batch = spec.batch if spec.program is None else None
        self._maker = (
            None if self._batch is None else BatchMaker(self._batch, seed=spec.seed, hook_lock=stage.hook_lock)
        )
        self._waiting: list[tuple[Any, tuple[Any, ...]]] = []

    def forget(self) -> None:
        self._spans.clear()
        self.dropped.clear()

    def take(self, chunk: Chunk) -> None:
        encoded = self._stage.run(chunk)
        assert encoded.work is not None
        self._spans += [span for span in encoded.work.spans if span.kind == "work"]
        for outcome, key in zip(encoded.outcomes, encoded.restore_keys, strict=True):
            if type(outcome) is Dropped:
                self.dropped[f"{outcome.hook}: {type(outcome.error).__name__}"] += 1
            elif self._batch is not None:
                self._waiting.append((outcome, key))
        if self._batch is not None and self._maker is not None:
            self._make_batches(self._maker, self._batch.size)

    def _make_batches(self, maker: BatchMaker, size: int) -> None:
        while len(self._waiting) >= size:
            values, keys = map(list, zip(*self._waiting[:size], strict=True))
            self._waiting = self._waiting[size:]
            clock = Clock()
            try:
                maker.make(values, keys, item=0, pass_number=0, step=0, valid=None, clock=clock)
            except BatchDropped as error:
                self.dropped[f"{error.hook.name}: {type(error.error).__name__}"] += 1
            self._spans += clock.hook_spans("main", size)

    def stages(self) -> tuple[Stage, ...]:
        wall_ns, samples = Counter[str](), Counter[str]()
        for span in self._spans:
            wall_ns[span.name] += span.wall_ns
            samples[span.name] += span.samples
        total_ns = sum(wall_ns[name] / samples[name] for name in wall_ns)
        return tuple(
            Stage(
                name=name,
                microseconds=wall_ns[name] / samples[name] / 1e3,
                share=wall_ns[name] / samples[name] / max(1e-9, total_ns),
                serial=any(span.place != "workers" for span in self._spans if span.name == name),
            )
            for name in wall_ns
        )


def _pipeline(
    spec: StreamSpec,
    config: WorkerConfig,
    workers: Sequence[int],
    seconds: float,
    show: Callable[[str], None],
    whole_pass: int,
) -> tuple[Run, ...]:
    """Run the stream with each number of workers, from its beginning.

    For local data, the largest number first runs unmeasured, to bring the data into memory equally for all runs. Data
    read from a store past the cache is equally remote for all runs, so there is no warm-up; a run then ends with the
    first pass (of `whole_pass` samples), because later passes read from memory.
    """
    runs: list[Run] = []
    for number in workers if whole_pass else (max(workers), *workers):
        show("warming up" if not (whole_pass or runs) else f"pipeline, {number} workers")
        began = time.perf_counter()
        with Stream(spec, replace(config, num_workers=number, global_error_handler=_ignore_failure)) as stream:
            next(stream)
            first = time.perf_counter()
            before = stream.samples
            samples, end = _run(stream, seconds, whole_pass)
        # Data that a store sent while the first batch was pending was prefetched: count it, with the time it took.
        rate = (before + samples) / (end - began) if whole_pass else samples / max(1e-9, end - first)
        runs.append(Run(workers=number, samples_per_s=max(1e-9, rate), first_batch_s=first - began))
    return tuple(runs if whole_pass else runs[1:])


def _run(stream: Stream, seconds: float, whole_pass: int) -> tuple[int, float]:
    """Run a stream for a time, or until the first pass of `whole_pass` samples ends. Returns samples and end time."""
    first = end = time.perf_counter()
    before = stream.samples
    samples, over = 0, 0 < whole_pass <= before
    while not over:
        if next(stream, None) is None:
            iter(stream)  # a finite stream starts its next pass
        now = time.perf_counter()
        # Batches arrive in bursts of one chunk. The batch that passes the time limit is the first of a chunk that
        # is not fully delivered, so counting ends before it.
        over = now - first >= seconds
        if samples == 0 or not over:
            end, samples = now, stream.samples - before
            over = over or 0 < whole_pass <= before + samples
    return samples, end


def _ignore_failure(error: Exception, sample: object, sources: object) -> None:
    """Failures were counted in the work, so repeated runs over the same samples do not report them again."""
