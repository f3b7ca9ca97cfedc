"""Measuring each stage of making samples alone: what it works on is in memory, and one thread does it."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from energon_grain.datasets.cache_pool import using_cache
from energon_grain.stream.batches import BatchDropped, BatchMaker
from energon_grain.stream.chunk import Chunk
from energon_grain.stream.collection import paused_collection
from energon_grain.stream.dropped import Dropped
from energon_grain.stream.encode import PureStage
from energon_grain.stream.spec import StreamSpec


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
    single = len(stage.sources) == 1
    for leaf, places in chunk.draws.by_leaf():
        draws = chunk.draws[places]
        with clock.timed("storage"):
            raw = stage.read(leaf, draws)
        with clock.timed("decode"):
            flow = stage.load(leaf, raw, draws, chunk.groups if single else (), chunk.batches_of(places))
        for hook in stage.hooks(leaf):
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
