"""All measurements of one dataset, one after the other."""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.errors import ConfigError
from energon_grain.measurement.figures import Figures, PipelineRun, ReadRate, StageTime, StorageFigures, StoreFigures
from energon_grain.measurement.planned_reads import PlannedReads, plan_reads, settled_pace
from energon_grain.measurement.storage import measure_storage, read_chunk, read_rate
from energon_grain.sources.cache_pool import using_cache
from energon_grain.sources.remote_runs import RemoteSource
from energon_grain.sources.source import Source
from energon_grain.storage.object_client import ObjectClient, ObjectRange, Traffic, shared_client
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.settings import StorageSettings, storage_settings, using_storage
from energon_grain.stream.batches import BatchDropped, BatchMaker
from energon_grain.stream.chunks import Chunk
from energon_grain.stream.feed import joined_draws
from energon_grain.stream.memory import paused_collection
from energon_grain.stream.prefetch import Prefetch
from energon_grain.stream.spec import ResolvedLeaf, StreamSpec, wanted_block
from energon_grain.stream.stage import PureStage
from energon_grain.stream.statistics import Dropped
from energon_grain.stream.stream import Stream
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.transforms.image import IMAGE_EXTENSIONS

_COPIED_BYTES = 64 << 20


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memcpy_bytes_per_s(seconds: float = 0.2) -> float:
    """How fast one thread copies memory: the fastest of several copies of 64 MiB, which no cache holds."""
    source = np.ones(_COPIED_BYTES, np.uint8)
    target = np.zeros_like(source)
    fastest_s = float("inf")
    deadline = time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        np.copyto(target, source)
        end = time.perf_counter()
        fastest_s = min(fastest_s, end - begin)
        if end >= deadline:
            return _COPIED_BYTES / fastest_s


@dataclass(slots=True, eq=False)
class StageClock:
    """Time by stage, and what came of it.

    Attributes:
        seconds: By the name of the stage, in the order in which they were met.
        serial: Names of the stages that run in one thread at a time.
        samples: That were read.
        batched: That went into batches.
        dropped: By hook and error.
    """

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    serial: set[str] = field(default_factory=set[str])
    samples: int = 0
    batched: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])

    @contextmanager
    def timed(self, name: str):
        """Add what happens inside to a stage."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def microseconds(self) -> dict[str, float]:
        """What each stage takes for one sample that was read; batching, for one that was batched."""
        return {
            name: 1e6 * seconds / max(1, self.batched if name == "batch" else self.samples)
            for name, seconds in self.seconds.items()
        }


def measure_stages(spec: StreamSpec, stage: PureStage, chunks: Sequence[Chunk], seconds: float) -> StageClock:
    """Take chunks through the stages, one after the other, with a clock on each.

    Batches are made where they are made of consecutive samples; lanes that filter, pack or group are not run.

    Args:
        spec: The compiled dataset.
        stage: What runs.
        chunks: Taken in turn until the time is up, and again where they do not make one batch; those that memory holds
            are meant.
        seconds: For all stages together.

    Raises:
        ReadError: Bytes could not be read.
        FatalSampleError: A hook raised what no policy may skip.
    """
    clock = StageClock()
    batches = _Batches(spec, stage.hook_lock, clock) if spec.batch is not None and spec.program is None else None
    deadline = time.perf_counter() + seconds
    for number, chunk in enumerate(itertools.cycle(chunks)):
        if number >= len(chunks) and (batches is None or clock.batched):
            break
        with paused_collection(), using_cache(spec.cache_pool):
            samples = _chunk_samples(stage, chunk, clock)
            if batches is not None:
                batches.add(samples)
        if time.perf_counter() >= deadline:
            break
    return clock


def _chunk_samples(stage: PureStage, chunk: Chunk, clock: StageClock) -> list[tuple[Any, tuple[Any, ...]]]:
    """(sample, restore key) of what came through, in the order of the chunk."""
    outcomes: list[tuple[Any, tuple[Any, ...]]] = [(None, ())] * len(chunk.draws)
    with clock.timed("storage"):
        read = stage.read(chunk.draws)
    for kind, places, draws, raw in read:
        with clock.timed("decode"):
            groups = chunk.groups if len(places) == len(chunk.draws) else ()
            flow = kind.load(raw, draws, groups, chunk.batches_of(places))
        for hook in kind.hooks:
            with clock.timed(hook.name):
                stage.apply(flow, hook)
            if not hook.concurrent:
                clock.serial.add(hook.name)
        for place, outcome, key in zip(places.tolist(), flow.outcomes(), flow.restore_keys, strict=True):
            outcomes[place] = outcome, key
    clock.samples += len(chunk.draws)
    good: list[tuple[Any, tuple[Any, ...]]] = []
    for outcome, key in outcomes:
        if type(outcome) is Dropped:
            clock.dropped[f"{outcome.hook}: {type(outcome.error).__name__}"] += 1
        else:
            good.append((outcome, key))
    return good


class _Batches:
    """Makes batches of the samples that it is given."""

    def __init__(self, spec: StreamSpec, lock: threading.RLock, clock: StageClock) -> None:
        assert spec.batch is not None
        self._size = spec.batch.size
        self._maker = BatchMaker(spec.batch, seed=spec.seed, hook_lock=lock)
        self._clock = clock
        self._waiting: list[tuple[Any, tuple[Any, ...]]] = []
        self._made = 0
        if not all(hook.concurrent for hook in (spec.batch.hook, *spec.batch.encode)):
            clock.serial.add("batch")

    def add(self, samples: list[tuple[Any, tuple[Any, ...]]]) -> None:
        """Make the batches that are full with these."""
        self._waiting += samples
        while len(self._waiting) >= self._size:
            batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            values, keys = [value for value, _ in batch], [key for _, key in batch]
            with self._clock.timed("batch"):
                self._make(values, keys)
            self._made += 1
            self._clock.batched += self._size

    def _make(self, values: list[Any], keys: list[tuple[Any, ...]]) -> None:
        try:
            self._maker.make(values, keys, item=self._made * self._size, pass_number=0, step=self._made, valid=None)
        except BatchDropped as dropped:
            self._clock.dropped[f"{dropped.hook.name}: {type(dropped.error).__name__}"] += 1


_WARMING_RUNS = 3
_STILL_WARMING = 1.1


def measure_pipeline(
    spec: StreamSpec,
    config: WorkerConfig,
    workers: Sequence[int],
    seconds: float,
    progress: Callable[[str], None] = lambda label: None,
    client: ObjectClient | None = None,
    fetched_bytes: float = 1.0,
    whole_pass: int = 0,
) -> tuple[PipelineRun, ...]:
    """Run the stream with each number of workers, from its beginning.

    Before that the largest number runs unmeasured, until it is no longer faster than the time before: so that what the
    first one reads is in memory as it will be for the last one. What comes from a store past the cache is as far away
    for the last one as for the first, so nothing is run before; and a run ends with the first pass, after which samples
    are in memory.

    Args:
        spec: The compiled dataset.
        config: Workers' type, and what becomes of failing samples.
        workers: Numbers of workers.
        seconds: For each; of a store twice as long as the second batch took, if that is more.
        progress: Told what runs.
        client: What reads objects past the cache; None: nothing does.
        fetched_bytes: For a sample.
        whole_pass: Samples of a pass over the data.

    Raises:
        EmptyDatasetError: There is no complete batch.
        FatalSampleError: A hook failed as no policy may skip.
    """
    if client is None:
        progress("warming up")
        rate = 0.0
        for _ in range(_WARMING_RUNS):
            before, rate = rate, _run(spec, config, max(workers), seconds).samples_per_s
            if rate < _STILL_WARMING * before:
                break
    runs: list[PipelineRun] = []
    for number in sorted(workers):
        progress(f"pipeline, {number} workers")
        own = config.worker_type == "thread" or number == 0
        runs.append(_run(spec, config, number, seconds, client if own else None, fetched_bytes, whole_pass))
    return tuple(runs)


def _run(
    spec: StreamSpec,
    config: WorkerConfig,
    workers: int,
    seconds: float,
    client: ObjectClient | None = None,
    fetched_bytes: float = 1.0,
    whole_pass: int = 0,
) -> PipelineRun:
    began = time.perf_counter()
    traffic = Traffic() if client is None else replace(client.traffic)
    with Stream(spec, replace(config, num_workers=workers)) as stream:
        next(stream)
        first = end = time.perf_counter()
        before = stream.stats()["samples"]
        samples, passed, limit_s = 0, 0 < whole_pass <= before, seconds
        while not passed:
            if next(stream, None) is None:
                iter(stream)  # a finite stream begins its next pass
            now = time.perf_counter()
            # Batches come in bursts, a chunk of them at once. The one that goes beyond the time opened a chunk that
            # will not be delivered, so what counts ends before it.
            if whole_pass and samples == 0:
                # From a store, hundreds of batches may have been waited for with this one: count them, too.
                limit_s = max(limit_s, 2 * (now - first))
            late = now - first >= limit_s
            if samples == 0 or not late:
                end, samples = now, stream.stats()["samples"] - before
                passed = 0 < whole_pass <= before + samples
            if late and samples:
                break
        fetched = None if client is None else _fetched(client.traffic, traffic, fetched_bytes, end - began)
    from_start = (before + samples) / (end - began)
    samples_per_s = from_start if passed else samples / (end - first)
    if fetched is not None:
        samples_per_s = min(samples_per_s, max(from_start, fetched.samples_per_s))
    return PipelineRun(
        workers=workers,
        samples_per_s=samples_per_s,
        first_batch_s=first - began,
        fetched=fetched,
        whole_pass=passed,
    )


def _fetched(now: Traffic, before: Traffic, fetched_bytes: float, seconds: float) -> ReadRate:
    """What came since, samples that were not delivered yet included."""
    bytes_per_s = (now.bytes_read - before.bytes_read) / seconds
    return ReadRate(
        samples_per_s=bytes_per_s / max(1.0, fetched_bytes),
        bytes_per_s=bytes_per_s,
        requests_per_s=(now.requests - before.requests) / seconds,
        seconds=seconds,
    )


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
        for extents in source.extents(some) if isinstance(source, RemoteSource) and source.remote_files else ():
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
    ahead = Prefetch(cached.sources, in_process=True)
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
        if isinstance(source, RemoteSource) and source.remote_files:
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


_PACE_SECONDS = 0.5
_MOSTLY_CACHED = 0.5


def measure_dataset(
    dataset: SavableDataset,
    *,
    path: str,
    workers: Sequence[int] = (0, 1, 2, 4),
    seconds: float = 2.0,
    progress: Callable[[str], None] = lambda label: None,
) -> Figures:
    """Measure storage, decoding, hooks, batching and the pipeline on the data itself.

    Nothing is written. It takes about `4 + 1 + 2 + len(workers)` times `seconds`.

    What lies in an object store is measured as in the first epoch, past the cache on local disk; reading out of that
    is measured besides, and so are the stages, and what was read for it is kept there.

    Args:
        dataset: What `get_train_dataset` returned, for one host.
        path: How to call it.
        workers: Numbers of workers to run the pipeline with; those beyond the number of cores are left out.
        seconds: For each measurement.
        progress: Told what begins.

    Raises:
        ConfigError: `workers` or `seconds` are no such numbers.
        EmptyDatasetError: There is no complete batch.
        ReadError: Bytes could not be read.
        FatalSampleError: A hook failed as no policy may skip.
    """
    if not workers or min(workers) < 0:
        raise ConfigError(f"workers={list(workers)}: numbers of workers are meant, each 0 or more")
    if not seconds > 0:
        raise ConfigError(f"seconds={seconds}: a time above 0 is meant")
    cached = spec = compile_dataset(dataset)
    batch_size = 1 if spec.batch is None else spec.batch.size
    cores = usable_cores()
    chosen = sorted({number for number in workers if number <= cores} or {cores})
    client: ObjectClient | None = None
    with ExitStack() as stack:
        stage = stack.enter_context(closing(PureStage(spec)))
        urls = objects_of(stage.sources)
        if urls:
            with past_the_cache() as settings:
                spec, client = compile_dataset(dataset), shared_client(settings)
            stage = stack.enter_context(closing(PureStage(spec)))
        progress("planning")
        planned = plan_reads(
            spec, stage, batch_size, settled_pace(spec, stage, batch_size, min(seconds, _PACE_SECONDS))
        )
        progress("storage")
        if client is None:
            storage, chunks = measure_storage(stage, planned, seconds), len(planned.chunks)
        else:
            through = stack.enter_context(closing(PureStage(cached)))
            storage, chunks = measure_store(stage, through, planned, urls, seconds, client.settings)
            stage = through
        progress("stages")
        clock = measure_stages(spec, stage, planned.chunks[:chunks], seconds)
    quiet = dataclasses.replace(dataset.worker_config, global_error_handler=_say_nothing)
    fetched_bytes = 1.0 if storage.store is None else storage.store.fetched_bytes
    samples = sum(map(len, stage.sources))
    runs = measure_pipeline(spec, quiet, chosen, seconds, progress, client, fetched_bytes, samples if client else 0)
    alone = runs[0].workers == 0 and spec.program is None and client is None
    alone_s = 1 / max(1e-12, runs[0].samples_per_s) if alone else None
    notes = [
        f"This process may use {cores} cores: no more workers than that are tried."
        for _ in range(len(chosen) < len(set(workers)))
    ]
    if storage.store is not None:
        notes.append(
            "`cache off` and the pipeline read past the cache on local disk, as in the first epoch; the pipeline "
            "fetches ahead of need, which reading by itself does not."
        )
        if storage_settings().cache_bytes == 0:
            notes.append("The storage settings keep no blocks (cache_bytes: 0): every epoch is as the first.")
    elif storage.cold is None:
        notes.append("No cold figures: what is read are not ranges of local files, or the system cannot drop those.")
    elif storage.still_cached is not None and storage.still_cached > _MOSTLY_CACHED:
        notes.append(
            f"{storage.still_cached:.0%} of the data was still in memory although the kernel had been asked to drop "
            f"it: the cold figures are warm ones."
        )
    if spec.program is not None:
        notes.append(
            "Lanes filter, pack, group or generate here: that shows in the pipeline alone, whose samples are the items "
            "that come out, and storage is read in about the order that lanes ask for."
        )
    shuffled = [leaf for leaf in spec.leaves if leaf.order.shuffle]
    refused = max((wanted_block(leaf.leaf) or 1 for leaf in shuffled if leaf.order.block is None), default=1)
    if refused > 1:
        notes.append(
            f"Blocks of {refused:,} samples would be fewer than the {spec.lanes} lanes that take turns to read one, so "
            f"a dataset as small as this is shuffled fully."
        )
    return Figures(
        path=path,
        batch_size=batch_size,
        worker_type=dataset.worker_config.worker_type,
        block=min((leaf.order.block for leaf in shuffled if leaf.order.block is not None), default=None),
        refused_block=refused if refused > 1 else None,
        largest_block=max((leaf.order.n * leaf.order.passes // spec.lanes for leaf in shuffled), default=0),
        items=spec.program is not None,
        cores=cores,
        memcpy_bytes_per_s=memcpy_bytes_per_s(),
        dataset_samples=samples,
        sample_bytes=planned.sample_bytes,
        image_decode=_image_decode(spec),
        storage=storage,
        stages=_stages(clock, alone_s),
        pipeline=runs,
        measured=clock.samples,
        dropped=dict(clock.dropped),
        notes=tuple(notes),
    )


def _say_nothing(error: Exception, sample: object, sources: object) -> None:
    """Failing samples were counted in the stages; runs that go over them again and again have nothing to add."""


def _stages(clock: StageClock, alone_s: float | None) -> tuple[StageTime, ...]:
    """The stages with their shares; `alone_s`: what the pipeline without workers takes for a sample."""
    times = clock.microseconds()
    if alone_s is not None:
        times["rest"] = max(0.0, 1e6 * alone_s - sum(times.values()))
    total = max(1e-12, sum(times.values()))
    return tuple(
        StageTime(name=name, microseconds=time, share=time / total, serial=name in clock.serial)
        for name, time in times.items()
    )


def _image_decode(spec: StreamSpec) -> str | None:
    """What images of the first leaf that has some are decoded to."""
    for leaf in spec.leaves:
        members: Iterable[object] = (leaf.leaf,) if isinstance(leaf.leaf, ResolvedLeaf) else leaf.leaf.members
        for member in members:
            if isinstance(member, ResolvedLeaf) and member.decoder is not None and _has_images(member):
                return str(member.decoder.config()["image_decode"])
    return None


def _has_images(leaf: ResolvedLeaf) -> bool:
    return any(part.rpartition(".")[2].lower() in IMAGE_EXTENSIONS for part in leaf.source.locate(0).parts)
