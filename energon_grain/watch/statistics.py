# SPDX-License-Identifier: Apache-2.0
"""Counts the deliveries of a stream, the time of its stages, and drops with their reasons.

The numbers and their interpretation are in `watch.loader_stats`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from energon_grain.storage.traffic import Traffic, traffic
from energon_grain.stream.clock import Kind, Place, Span, Work
from energon_grain.stream.drops import Dropped
from energon_grain.stream.index_map import Draws
from energon_grain.stream.observer import ObservedStream, Observer
from energon_grain.stream.passes import Progress
from energon_grain.watch.loader_stats import LeafCount, LoaderStats, Setup, StageTime, WorkerTime
from energon_grain.watch.sampling import BatchClock, WaitClock

Drops = Counter[tuple[int, str, str]]
"""Number of drops, by leaf (-1: batches), hook and reason."""
_HELD_NS = 1_000_000
"""A thread that waits this long for the GIL waits for a thread that computes: Python interrupts that after 5 ms."""


class Shares(Protocol):
    """Target shares of a blend in a unit other than samples: `planning.cost_shares.CostShares`."""

    def of(self, draws: Draws) -> npt.NDArray[np.float64]:
        """(leaves,) total cost of the samples of each leaf."""
        ...

    def targets(
        self, cost: npt.NDArray[np.float64], samples: npt.NDArray[np.int64], requested: npt.NDArray[np.float64] | None
    ) -> list[float | None]:
        """Target share of each leaf of everything that was read; None: unknown."""
        ...


class Statistics(Observer):
    """Counts of one stream.

    Drops are counted when the step that they were dropped for is delivered. So the counts do not depend on how far
    workers read ahead, and discarded steps are not counted twice.

    Times are counted when the thread that makes batches receives a chunk, whichever worker made it.

    Args:
        leaf_names: Name of each leaf.
        setup: The configuration of the loader.
        expected: Expected number of samples of each leaf in a range of positions; None: depends on data.
        shares: Target shares of the outermost blend, if it is by cost.

    Attributes:
        setup: As given. The number of workers is known once they are started.
        waits: How long the program waited for steps.
        samples: Delivered samples, up to the last call of `passed`.
        batches: Delivered batches, counted in the same way.
        lock: Held while counts change.
        stepped: Returns a function to call with the number of steps delivered since its last call, their approximate
            number of samples, and the seconds that the program waited for them; None: no function.
    """

    def __init__(
        self,
        leaf_names: list[str],
        setup: Setup | None = None,
        expected: Callable[[int, int], list[float] | None] = lambda first, stop: None,
        shares: Shares | None = None,
    ) -> None:
        self._leaf_names = leaf_names
        self.setup = setup or Setup()
        self._expected = expected
        self._requested: npt.NDArray[np.float64] | None = np.zeros(len(leaf_names))  # before `_from`
        self._from = 0, 0  # position, and samples read before it
        self._read = np.zeros(len(leaf_names), np.int64)
        self._shares = shares
        self._cost = np.zeros(len(leaf_names))
        self._read_bytes = 0
        self._times: dict[tuple[Kind, str, Place], list[int]] = {}
        self._by_worker: dict[str, list[int]] = {}
        self._traffic, self._of_workers = traffic(), Traffic()
        self.waits = WaitClock()
        self._batch_clock = BatchClock(0)
        self._requested_ns = self._long_wait_ns = 0
        self.stepped: Callable[[], Callable[[int, int, float], object] | None] = lambda: None
        self.samples = self.batches = 0
        self.due = True
        self._lock_tries = self._lock_held = 0
        self._dropped: Drops = Counter()
        self._open: defaultdict[int, Drops] = defaultdict(Counter)  # by the step that they were dropped for
        self._missing: dict[int, int] = {}  # missing samples of short steps
        self._passed = 0  # steps
        self._failed: Drops = Counter()  # of the step that failed last, until one succeeds
        self.lock = threading.RLock()  # a signal handler may read the numbers

    def extend(
        self, leaf_names: list[str], expected: Callable[[int, int], list[float] | None], shares: Shares | None = None
    ) -> None:
        """Count for a stream whose mixture was amended: leaves may have been appended."""
        with self.lock:
            more = len(leaf_names) - len(self._leaf_names)
            self._requested = self._requested_until_now()
            if self._requested is not None:
                self._requested = np.append(self._requested, np.zeros(max(0, more)))[: len(leaf_names)]
            self._read = np.append(self._read, np.zeros(max(0, more), np.int64))[: len(leaf_names)]
            self._cost = np.append(self._cost, np.zeros(max(0, more)))[: len(leaf_names)]
            self._from = self._from[0], int(self._read.sum())
            self._leaf_names, self._expected, self._shares = leaf_names, expected, shares

    def begin(self, stream: ObservedStream, place: Progress) -> None:
        del stream
        with self.lock:
            self._requested = self._requested_until_now()
            self._from = place.item, int(self._read.sum())
            self._forget(place.step)
        self._batch_clock = BatchClock(place.step)
        self.due = True

    def end(self, delivered: int, failed: int | None) -> None:
        self.waits.stop(delivered)
        if failed is not None:  # report its drops until another step is delivered
            with self.lock:
                self._failed = self._open.pop(failed, Counter())

    def _forget(self, first: int) -> None:
        """Discard counts of this step and later ones. They are made again, or never."""
        for counted in (self._open, self._missing):
            for step in [step for step in counted if step >= first]:
                del counted[step]

    def jumped(self, step: int, *, pass_ended: bool) -> None:
        with self.lock:
            if pass_ended:
                self.settle()
            self._forget(0)
            self._passed = step

    def short(self, step: int, missing: int) -> None:
        with self.lock:
            self._missing[step] = missing

    def passed(self, step: int, *, stride: int = 1, empty: int = 0, skipped: bool = False) -> None:
        with self.lock:
            steps, self._passed = (step - self._passed) // stride, step
            missing = sum(self._missing.pop(each, 0) for each in [*self._missing] if each < step + empty)
            drops = [self._open.pop(each, Counter()) for each in [*self._open] if each < step + empty]
            if skipped:
                return
            self.batches += steps
            self.samples += steps * self.setup.batch_size - missing
            for each in drops:
                self._dropped.update(each)

    def requested(self, ready: int) -> None:
        del ready
        self._requested_ns, self._long_wait_ns = time.perf_counter_ns(), self.waits.long_wait_ns

    def waited(self, began_ns: int) -> None:
        self.waits.add_long_wait(began_ns)

    def delivered(self, step: int, samples: int) -> int:
        steps, waited_ns = self.waits.timed(step, self._requested_ns, self._long_wait_ns)
        if self._failed:
            with self.lock:
                self._failed.clear()
        stepped = self.stepped()
        if stepped is not None:
            stepped(steps, samples * steps, waited_ns / 1e9)
        self.due = self._batch_clock.due()
        return self.waits.left_out()

    def dropped(self, step: int, dropped: Dropped) -> None:
        with self.lock:
            self._open[step][dropped.leaf, dropped.hook, type(dropped.error).__name__] += 1

    def planned(self, draws: Draws, size_bytes: int) -> None:
        counts = np.bincount(draws.leaf, minlength=len(self._read))
        cost = 0.0 if self._shares is None else self._shares.of(draws)
        with self.lock:
            self._read += counts
            self._cost += cost
            self._read_bytes += size_bytes

    def spans(self, work: Work) -> None:
        if not work.of_chunk:
            self._add_all(work.spans)
            return
        in_other_process = work.process != os.getpid()
        with self.lock:
            own = self._by_worker.setdefault(work.worker, [0, 0])
            for span in work.spans:
                # Hooks of one process take turns; those of several do not wait for each other.
                self._add(span, "workers" if in_other_process and span.place != "main" else span.place)
                own[0] += span.wall_ns
                if span.name == "read":
                    own[1] += span.samples
            if work.lock_ns is not None:
                self._lock_tries += 1
                self._lock_held += work.lock_ns > _HELD_NS
            if work.traffic is not None:
                self._of_workers = self._of_workers + work.traffic

    def made(self, step: int, assembled: Sequence[Span], batched: Sequence[Span], chunks_ns: int) -> None:
        spans = [*assembled, *batched]
        self._add_all(spans, self._batch_clock.done(step, sum(span.wall_ns for span in spans), chunks_ns))
        self.due = False

    def work_seconds(self) -> tuple[float, float]:
        """Total time that workers spent on samples so far, and its CPU time, in seconds."""
        with self.lock:
            times = [time for (kind, _, place), time in self._times.items() if kind == "work" and place != "main"]
        return sum(time[0] for time in times) / 1e9, sum(time[1] for time in times) / 1e9

    def one_at_a_time(self) -> tuple[str, float, float, float]:
        """The hook on samples that takes longest, among hooks that run in one thread at a time.

        Returns:
            Its name, "" if there is none; its time and CPU time so far; and the time of all other work in threads, in
            seconds.
        """
        with self.lock:
            times = {each: (time[0] / 1e9, time[1] / 1e9) for each, time in self._times.items() if each[2] != "main"}
        alone = {each: time for each, time in times.items() if each[2] == "one worker"}
        if not alone:
            return "", 0.0, 0.0, 0.0
        longest = max(alone, key=lambda each: alone[each][0])
        others_s = sum(wall_s for each, (wall_s, _) in times.items() if each != longest)
        return longest[1], *alone[longest], others_s

    def _add_all(self, spans: Iterable[Span], weight: float = 1) -> None:
        """Add times, each with a weight."""
        with self.lock:
            for span in spans:
                self._add(span, span.place, weight)

    def _add(self, span: Span, place: Place, weight: float = 1) -> None:
        total = self._times.get((span.kind, span.name, place))
        if total is None:
            total = self._times[span.kind, span.name, place] = [0, 0, 0]
        total[0] += int(span.wall_ns * weight)
        total[1] += int(span.cpu_ns * weight)
        total[2] += int(span.samples * weight)

    def _requested_until_now(self) -> npt.NDArray[np.float64] | None:
        """Expected number of samples of each leaf at the positions read so far."""
        first, before = self._from
        read = int(self._read.sum()) - before
        if not read:
            return self._requested
        requested = self._expected(first, first + read * self.setup.hosts)
        if self._requested is None or requested is None:
            return None
        requested = np.append(requested, np.zeros(len(self._requested) - len(requested)))  # excluded: not requested
        return self._requested + requested / self.setup.hosts

    def settle(self) -> None:
        """Count drops that no further step follows."""
        with self.lock:
            for step in [*self._open]:
                self._dropped.update(self._open.pop(step, Counter()))

    def report(self, queued: int = 0, workers: int = 0, delivered: int = 0, ready: int = 0) -> LoaderStats:
        """The current numbers.

        Args:
            queued: Batches that are ready.
            workers: Running workers.
            delivered: Steps delivered or discarded, as counted by the method `delivered`.
            ready: Sum over all requests of the steps that were ready.
        """
        with self.lock:
            dropped: dict[str, dict[str, int]] = {}
            drops = self._dropped + self._failed
            for (leaf, hook, reason), count in sorted(drops.items()):
                name = "batches" if leaf < 0 else self._leaf_names[leaf]
                dropped.setdefault(name, {})[f"{hook}: {reason}"] = count
            requested = self._requested_until_now()
            unknown: list[float | None] = [None] * len(self._read)
            expected = unknown if requested is None else requested.tolist()
            cost, targets = unknown, unknown
            if self._shares is not None:
                cost, targets = self._cost.tolist(), self._shares.targets(self._cost, self._read, requested)
            leaves = zip(self._leaf_names, self._read.tolist(), expected, cost, targets, strict=True)
            return LoaderStats(
                setup=replace(self.setup, workers=workers),
                seconds=self.waits.ran_ns(delivered) / 1e9,
                waiting_s=self.waits.waiting_ns / 1e9,
                starting_s=self.waits.starting_ns / 1e9,
                batches=self.batches,
                samples=self.samples,
                ready=ready,
                queued=queued,
                lock_tries=self._lock_tries,
                lock_held=self._lock_held,
                read_samples=int(self._read.sum()),
                read_bytes=self._read_bytes,
                dropped=dropped,
                dropped_total=drops.total(),
                stages=tuple(
                    StageTime(
                        name=name, kind=kind, place=place, seconds=wall / 1e9, cpu_seconds=cpu / 1e9, samples=samples
                    )
                    for (kind, name, place), (wall, cpu, samples) in self._times.items()
                ),
                by_worker=tuple(
                    WorkerTime(name=name, seconds=wall / 1e9, samples=samples)
                    for name, (wall, samples) in self._by_worker.items()
                ),
                leaves=tuple(
                    LeafCount(name=name, samples=count, expected=wanted, cost=paid, expected_cost=target)
                    for name, count, wanted, paid, target in leaves
                ),
                storage=traffic() - self._traffic + self._of_workers,
            )
