"""Measure whether `blame` finds a planted culprit, and how long it takes: nothing is read, and samples are made up.

`python -m benchmarks.blame_at_scale [--samples 10_000_000] [--passes 5] [--batch 512] [--trials 100]` plants, in each
trial, one sample that raises the loss of every step that uses it, and one of a thousand shards whose samples do. The
noise of the loss has a third of that height, on a falling curve. It prints how often the culprit is the first suspect
and among the first ten, how often it is called sure, how often an innocent sample is, and the seconds for an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from benchmarks.child import program
from energon_grain import BatchDataset, RepeatDataset, SavableDataset, WorkerConfig
from energon_grain.datasets.hooks import HookOwner
from energon_grain.datasets.lowering import Lowering, Part
from energon_grain.history.blame import blame
from energon_grain.history.bulk_draws import draw_steps, items_of
from energon_grain.history.losses import Losses
from energon_grain.history.suspects import Suspect
from energon_grain.sources.cache_pool import CachePool
from energon_grain.sources.rows import Rows, selected
from energon_grain.sources.source import RawBatch, SampleLocation
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.passes import Progress
from energon_grain.stream.run import Run
from energon_grain.stream.spec import Ordering, Resolved, ResolvedLeaf
from energon_grain.stream.stream import Stream

NOISE = 1 / 3
SHARDS = 1_000


class MadeUpRows(Rows):
    """Rows of which only the number is known."""

    path = "made-up"

    def __init__(self, samples: int, shards: int) -> None:
        self._counts = {f"shard_{number:06d}.tar": samples // shards for number in range(shards)}

    @property
    def digest(self) -> str:
        return "made-up"

    @property
    def shard_counts(self) -> Mapping[str, int]:
        return self._counts

    @property
    def part_names(self) -> tuple[str, ...]:
        return ()

    def read_rows(self, numbers: npt.NDArray[np.int64]) -> RawBatch:
        return self.batch(numbers, {})

    def sizes(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.zeros(len(numbers), np.int64)

    def locate(self, number: int) -> SampleLocation:
        [shard], [key] = self.shards(np.array([number])), self.keys(np.array([number]))
        return SampleLocation(index=number, shard=shard, key=key, start=0, stop=0, parts={})


class _NoHooks:
    thread_safe: ClassVar[bool] = True
    __default_failure_tolerance__: ClassVar[int] = 0


def _refuse(sample: Any) -> NoReturn:
    raise AssertionError(sample)


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeUpLeaf(SavableDataset):
    """A dataset of made-up samples, shuffled fully, or in blocks."""

    worker_config: WorkerConfig = field(default_factory=WorkerConfig.default_worker_config)
    samples: int
    shards: int = SHARDS
    block: int | None = None
    task_encoder: HookOwner = field(default_factory=_NoHooks)

    @property
    def identity(self) -> tuple[str, ...]:
        return "made-up", str(self.samples)

    def lower(self, to: Lowering) -> Part:
        return to.leaf(self)

    def resolve(self) -> ResolvedLeaf:
        mixing = None if self.block is None else self.block * 100
        ordering = Ordering(training=True, passes=1, block=self.block, mixing=mixing, blocks_in_lane=None)
        source: Any = selected(MadeUpRows(self.samples, self.shards))
        return ResolvedLeaf(
            source=source,
            sample_type=None,
            field_map=None,
            load=_refuse,
            decoder=None,
            subflavors={},
            ordering=ordering,
        )

    def cook(self, leaf: Resolved, cache_pool: CachePool | None) -> HookSpec | None:
        del leaf, cache_pool
        return None


def made_up_stream(samples: int, batch: int, *, shards: int = SHARDS, block: int | None = None) -> Stream:
    """Return an endless stream of made-up samples on one host."""
    leaf = MadeUpLeaf(samples=samples, shards=shards, block=block, worker_config=WorkerConfig(rank=0, world_size=1))
    return Stream.of(BatchDataset(RepeatDataset(leaf), batch, list), num_workers=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """A run without losses, to plant culprits in.

    Attributes:
        run: The run.
        place: Its place.
        steps: (t,) its steps.
    """

    run: Run
    place: Progress
    steps: npt.NDArray[np.int64]

    @classmethod
    def of(cls, stream: Stream, steps: int) -> Trials:
        run = Run(spec=stream.spec, stage=stream._stage, config=stream.config, share=stream.share)
        return cls(run=run, place=stream.place, steps=np.arange(steps))

    def uses(self, group_of: npt.NDArray[np.int32], groups: int) -> list[npt.NDArray[np.int64]]:
        """The steps that use each group of samples; group 0 is not looked for."""
        items = items_of(self.run, self.place, self.steps)
        found: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(groups)]
        for drawn in draw_steps(self.run, items, self.steps):
            group = group_of[drawn.index]
            at = np.flatnonzero(group)
            steps = drawn.steps[drawn.row[at]]
            for number in np.unique(group[at]).tolist():
                found[number].append(steps[group[at] == number])
        return [np.concatenate(each) if each else np.zeros(0, np.int64) for each in found]

    def losses(self, used: npt.NDArray[np.int64], seed: int) -> Losses:
        """A falling curve with noise, and 1 more in the steps that use the culprit."""
        count = len(self.steps)
        values = 2 + 5 * np.exp(-5 * np.arange(count) / count)
        values += NOISE * np.random.default_rng(seed).standard_normal(count)
        values[np.unique(used)] += 1
        return Losses(steps=self.steps, values=values)


def rank(suspects: list[Suspect], culprit: Callable[[Suspect], bool]) -> int:
    """Return the place of the culprit among suspects: 1, 2, …, or 0."""
    return next((place for place, suspect in enumerate(suspects, 1) if culprit(suspect)), 0)


def report(name: str, ranks: list[int], sure: int, wrong: int, seconds: list[float]) -> None:
    """Print the result of some trials."""
    ten = sum(0 < place <= 10 for place in ranks)
    print(
        f"{name:28s} first {ranks.count(1):4d}   among ten {ten:4d}   of {len(ranks)}   sure {sure:4d}   "
        f"innocent called sure {wrong:3d}   {np.median(seconds):5.2f} s median, {max(seconds):5.2f} s at most"
    )


def plant_samples(trials: Trials, samples: int, count: int) -> None:
    """Plant one sample in each trial."""
    culprits = np.random.default_rng(0).choice(samples, count, replace=False)
    group = np.zeros(samples, np.int32)
    group[culprits] = np.arange(1, count + 1)
    used = trials.uses(group, count + 1)[1:]
    ranks, seconds, sure, wrong = [], [], 0, 0
    for seed, culprit in enumerate(culprits.tolist()):
        begin = time.perf_counter()
        found = blame(trials.run, trials.place, trials.losses(used[seed], seed), dropped=False)
        seconds.append(time.perf_counter() - begin)
        ranks.append(rank(found.samples, lambda suspect, culprit=culprit: suspect.index == culprit))
        sure += any(suspect.index == culprit for suspect in found.sure)
        wrong += any(suspect.index != culprit for suspect in found.sure)
    report("1 sample", ranks, sure, wrong, seconds)


def plant_shards(trials: Trials, samples: int, count: int, name: str) -> None:
    """Plant one shard in each trial."""
    shards = np.random.default_rng(1).choice(SHARDS, count, replace=False)
    number = np.full(SHARDS, 0, np.int32)
    number[shards] = np.arange(1, count + 1)
    used = trials.uses(np.repeat(number, samples // SHARDS), count + 1)[1:]
    ranks, seconds, sure, wrong = [], [], 0, 0
    for seed, shard in enumerate(shards.tolist()):
        culprit = f"shard_{shard:06d}.tar"
        begin = time.perf_counter()
        found = blame(trials.run, trials.place, trials.losses(used[seed], seed), dropped=False)
        seconds.append(time.perf_counter() - begin)
        ranks.append(rank(found.shards, lambda suspect, culprit=culprit: suspect.shard == culprit))
        sure += any(suspect.shard == culprit and suspect.sure for suspect in found.shards)
        wrong += any(suspect.shard != culprit and suspect.sure for suspect in found.shards)
    report(name, ranks, sure, wrong, seconds)


def main(samples: int = 10_000_000, passes: int = 5, batch: int = 512, trials: int = 100) -> None:
    steps = passes * samples // batch
    print(f"{samples:,} samples in {SHARDS:,} shards, {passes} passes in batches of {batch}: {steps:,} steps")
    for block in (None, 100):
        with made_up_stream(samples, batch, block=block) as stream:
            run = Trials.of(stream, steps)
            name = "blocks of 100" if block else "full shuffle"
            print(name)
            plant_samples(run, samples, trials)
        with made_up_stream(samples // 10, batch, block=block) as stream:
            plant_shards(
                Trials.of(stream, samples // 10 // batch), samples // 10, trials, "1 shard, one pass of a tenth"
            )


if __name__ == "__main__":
    program(main)
