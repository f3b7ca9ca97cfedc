"""Counts what a stream delivers, what takes the time, what did not make it and why; and when failures are too many.

The numbers themselves, and what they say, are in `stream.loader_stats`.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from energon_grain.errors import (
    ConfigError,
    FatalSampleError,
    IndexFileError,
    ReadError,
    SkipSample,
    UntrustedCodeError,
)
from energon_grain.sources.costs import PARTS_OF_ONE, Costs
from energon_grain.storage.traffic import Traffic, traffic
from energon_grain.stream.clock import Kind, Place, Span, WaitClock, Work
from energon_grain.stream.hooks import DEFAULT_FAILURE_TOLERANCE
from energon_grain.stream.index_map import Draws, costs_of
from energon_grain.stream.worker_config import ErrorHandler, forget_traceback, log_exception, named, traceback_text
from energon_grain.watch.loader_stats import LeafCount, LoaderStats, Setup, StageTime, WorkerTime

FATAL = (
    SystemError,
    SyntaxError,
    ImportError,
    StopIteration,
    StopAsyncIteration,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
    FatalSampleError,
    ConfigError,
    UntrustedCodeError,
    ReadError,
    IndexFileError,
)
"""Exceptions that tell of a broken program or of a failing disk rather than of a broken sample.

They end the iteration at once: a hiccup of the network must not change the stream."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dropped:
    """What was dropped, where and by which hook. In a chunk it stands in place of the sample.

    Attributes:
        leaf: Number of the leaf that it is of, or its first sample; -1: of several.
        hook: What dropped it: "decode", or the name of a hook.
        failure_tolerance: Of that hook.
        error: What it raised; a `SkipSample` when the hook chose to drop the sample.
        key: Key of the sample; "" for others.
        shard: Shard that it lies in, likewise.
        sample: What the hook was given, for the error handler; None where it was dropped on purpose.
        sources: Provenance of the sample.
        what: A sample as it is read, what a lane makes, or a batch of a step.
    """

    leaf: int
    hook: str
    failure_tolerance: int
    error: Exception
    sample: Any
    sources: Any = None
    key: str = ""
    shard: str = ""
    what: Literal["sample", "item", "batch"] = "sample"

    @property
    def where(self) -> str:
        """The place, for messages."""
        if self.what == "sample":
            return f"{self.shard}: {self.key}"
        return f"{'an item' if self.what == 'item' else 'a batch'} ({named(self.sample)})"

    @property
    def skipped(self) -> bool:
        """Whether it was dropped on purpose."""
        return isinstance(self.error, SkipSample)


@dataclass(frozen=True, slots=True, eq=False)
class Holed:
    """A pack that was made without some of its samples, which were dropped. In a chunk it stands in place of the pack.

    Attributes:
        value: The pack; `Dropped`: nothing of it is left.
        dropped: Its samples that were dropped.
    """

    value: Any
    dropped: tuple[Dropped, ...]


def release_frames(error: BaseException | None) -> None:
    """Take the traceback from an error that is kept: its frames hold the whole chunk that was being encoded."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def raise_if_fatal(error: Exception, hook: str, where: str) -> None:
    """End the iteration for errors that no policy may skip.

    Raises:
        FatalSampleError: `error` is one of `FATAL`.
    """
    if isinstance(error, FATAL):
        raise FatalSampleError(
            f"{hook} failed on {where} with {type(error).__name__}: {error}; such an error is a fault of the program, "
            f"not of the sample, and is never skipped"
        ) from error


Drops = Counter[tuple[int, str, str]]
"""How many were dropped, by leaf (-1: batches), hook and reason."""

PATIENCE_BATCHES = 1000
"""Batches in a row that hooks may drop, on purpose or not."""

FIRST_FAILURES = 5
"""Failures of a hook that never succeeded, all with the same error, that end a run by default."""

_HELD_NS = 1_000_000
"""Who waits so long for Python's lock waits for somebody who computes: Python takes it from them after 5 ms."""
_SAMPLES = ""  # stands for all hooks on single samples: where one of them fails, none of the others is known to
_PLACE = re.compile(r'^ *File "(.*)", line ([0-9]+)', re.MULTILINE)
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+")
_Kind = tuple[str, str, str]
_logger = logging.getLogger("energon_grain")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CostShares:
    """What a blend by cost promises of its leaves.

    Attributes:
        weights: (segments, children) of its children.
        means: (children,) what a sample of each costs on average, about.
        child: (leaves,) number of the child that each leaf is in.
        costs: Of the samples of each leaf.
    """

    weights: npt.NDArray[np.float64]
    means: npt.NDArray[np.float64]
    child: npt.NDArray[np.int64]
    costs: list[Costs]

    def of(self, draws: Draws) -> npt.NDArray[np.float64]:
        """(leaves,) what samples of each leaf cost together."""
        costs = costs_of(self.costs, draws.members)
        return np.bincount(draws.members.leaf, weights=costs, minlength=len(self.child)) / PARTS_OF_ONE

    def targets(
        self,
        cost: npt.NDArray[np.float64],
        samples: npt.NDArray[np.int64],
        asked: npt.NDArray[np.float64] | None,
    ) -> list[float | None]:
        """What each leaf should have of all that was read; None: it shares a child with others, or a schedule decides.

        Args:
            cost: (leaves,) of what was read.
            samples: (leaves,) that were read.
            asked: (leaves,) as many samples as the positions until now ask for; None: only data could tell.
        """
        children = len(self.means)
        if len(self.weights) == 1:
            shares = self.weights[0] / self.weights[0].sum()
        elif asked is None or not asked.any():
            return [None] * len(cost)
        else:
            shares = np.bincount(self.child, weights=asked, minlength=children) * self.means
            shares /= shares.sum()
        within = np.ones(len(cost)) if asked is None else asked * cost / np.maximum(samples, 1)
        together = np.bincount(self.child, weights=within, minlength=children)[self.child]
        alone = np.bincount(self.child, minlength=children)[self.child] == 1
        parts = np.where(alone, 1.0, within / np.where(together > 0, together, 1))
        known = alone if asked is None else np.ones(len(cost), np.bool_)
        found = cost.sum() * shares[self.child] * parts
        return [target if told else None for target, told in zip(found.tolist(), known.tolist(), strict=True)]


class Statistics:
    """Counts of one stream, and the error policy.

    Drops are met in the order of items, so that the budget of failures in a row does not depend on who read ahead how
    far. They are counted when the step is delivered that they made room in, so that neither does the report, and what
    was read ahead in vain is not counted twice.

    By default, where neither another handler nor another tolerance was chosen, a hook that fails on the first samples
    that it gets, with the same error each time, ends the run at once: that is a mistake of a program, of which more
    samples do not tell more. Failures are logged once a kind, and then their number as it grows.

    Times are counted when a chunk comes to the thread that makes batches, whoever made it.

    Args:
        leaf_names: Name of each leaf.
        handler: `WorkerConfig.global_error_handler`.
        setup: What the numbers are of.
        expected: How many samples of each leaf the positions from one to another ask for, one entry a leaf; None: only
            data could tell.
        shares: Where the outermost blend is by cost, what it promises.

    Attributes:
        setup: As given; a stream learns how many workers it has when they are started.
        waits: How long the program waited for steps.
        samples: That were delivered, before the step that `passed` was told last.
        batches: Likewise.
        lock: To hold where what is counted changes.
        due: Whether somebody wants to know how long the making of steps takes. Looked at for each of them, as a call
            would cost too much.
        listeners: Called with all work that is counted, in whatever thread that happens.
    """

    def __init__(
        self,
        leaf_names: list[str],
        handler: ErrorHandler,
        setup: Setup | None = None,
        expected: Callable[[int, int], list[float] | None] = lambda first, stop: None,
        shares: CostShares | None = None,
    ) -> None:
        self._leaf_names = leaf_names
        self._handler = handler
        self.setup = setup or Setup()
        self._expected = expected
        self._asked: npt.NDArray[np.float64] | None = np.zeros(len(leaf_names))  # before `_from`
        self._from = 0, 0  # position, and samples that were read before
        self._read = np.zeros(len(leaf_names), np.int64)
        self._shares = shares
        self._cost = np.zeros(len(leaf_names))
        self._read_bytes = 0
        self._times: dict[tuple[Kind, str, Place], list[int]] = {}
        self._by_worker: dict[str, list[int]] = {}
        self._traffic, self._of_workers = traffic(), Traffic()
        self.waits = WaitClock()
        self.samples = self.batches = 0
        self.due = True
        self._lock_tries = self._lock_held = 0
        self.listeners: list[Callable[[Work], object]] = []
        self._dropped: Drops = Counter()
        self._open: defaultdict[int, Drops] = defaultdict(Counter)  # by the step that they were dropped for
        self._missing: dict[int, int] = {}  # samples, of steps that have fewer than others
        self._passed = 0  # steps
        self._failed: Drops = Counter()  # of the step that failed last, until one succeeds
        self._in_a_row: defaultdict[str, Counter[str]] = defaultdict(Counter)  # failures, by what was dropped and hook
        self._batches_in_a_row = 0  # dropped, on purpose or not
        self._logged: Counter[_Kind] = Counter()
        self._making: Callable[[], int] = lambda: 0
        self._first: int | None = 0  # step before which none was made
        self._last = 0  # step that something was dropped for
        self._worked: set[str] = set()  # what worked before the first step was made
        self._alike: Counter[_Kind] = Counter()
        self.lock = threading.RLock()  # a signal handler may ask for the numbers

    def begin(self, making: Callable[[], int] = lambda: 0, *, first: bool, item: int = 0) -> None:
        """Begin to make steps.

        Args:
            making: Says at any time which step is in the making.
            first: No step was made before.
            item: Position, in its pass, of the first one.
        """
        step = making()
        with self.lock:
            self._asked = self._asked_until_now()
            self._from = item, int(self._read.sum())
            self._forget(step)
        self.due = True
        self._making, self._first, self._last = making, step if first else None, step
        self._worked.clear()
        self._alike.clear()
        self._in_a_row.clear()
        self._batches_in_a_row = 0

    def stop(self, come: int) -> None:
        """No more steps are made, of which so many have come; who made them may go."""
        step = self._making()
        self._making = lambda: step
        self.waits.stop(come)

    def _forget(self, first: int) -> None:
        """What was made from this step on is made once more, or never."""
        for counted in (self._open, self._missing):
            for step in [step for step in counted if step >= first]:
                del counted[step]

    def jump(self, step: int) -> None:
        """What was made and not delivered never will be; the next step is this one."""
        with self.lock:
            self._forget(0)
            self._passed = step

    def short(self, step: int, missing: int) -> None:
        """A step that is made has so many samples less than others; 0: or is left out."""
        with self.lock:
            self._missing[step] = missing

    def passed(self, step: int, *, stride: int = 1, empty: int = 0, skipped: bool = False) -> None:
        """Count all steps before this one as delivered.

        Args:
            step: A later call may come with an earlier one, from another thread.
            stride: From one of them to the next.
            empty: So many were made besides, and are not counted.
            skipped: They were left out.
        """
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

    def came(self, began_ns: int, waited_ns: int, ready: int) -> None:
        """A step came, maybe behind one that failed: tell listeners how long it was waited for, with so many ready."""
        if self._failed:
            with self.lock:
                self._failed.clear()
        if self.listeners:
            self._tell_of(Work([Span("pipeline", "wait", "main", began_ns, waited_ns, 0, ready)], worker="main"))

    def read(self, draws: Draws, size_bytes: int) -> None:
        """Count samples that were read, by leaf, what they cost, and the bytes of all."""
        counts = np.bincount(draws.leaf, minlength=len(self._read))
        cost = 0.0 if self._shares is None else self._shares.of(draws)
        with self.lock:
            self._read += counts
            self._cost += cost
            self._read_bytes += size_bytes

    def took(self, work: Work | None) -> None:
        """Count what stages took."""
        if work is None:
            return
        elsewhere = work.process != os.getpid()
        with self.lock:
            own = self._by_worker.setdefault(work.worker, [0, 0])
            for span in work.spans:
                # Hooks of one process take turns; those of several do not wait for each other.
                self._add(span, "workers" if elsewhere and span.place != "main" else span.place)
                own[0] += span.wall_ns
                if span.name == "read":
                    own[1] += span.samples
            if work.lock_ns is not None:
                self._lock_tries += 1
                self._lock_held += work.lock_ns > _HELD_NS
            if work.traffic is not None:
                self._of_workers = self._of_workers + work.traffic
        if self.listeners:
            self._tell_of(work)

    def work_seconds(self) -> tuple[float, float]:
        """Seconds that workers spent on samples so far, all of them together, and seconds that cores ran them."""
        with self.lock:
            times = [time for (kind, _, place), time in self._times.items() if kind == "work" and place != "main"]
        return sum(time[0] for time in times) / 1e9, sum(time[1] for time in times) / 1e9

    def took_here(self, spans: list[Span], weight: float = 1, *, added_up: bool = False) -> None:
        """Count what stages took outside of chunks.

        Args:
            spans: Of one step, or another piece of work.
            weight: How many pieces these stand for.
            added_up: Whether a span is put together from several times.
        """
        with self.lock:
            for span in spans:
                self._add(span, span.place, weight)
        if self.listeners and added_up:
            for span in spans:
                self._tell_of(Work([span], worker=f"{span.name}, added up"))
        elif self.listeners:
            self._tell_of(Work(spans))

    def _add(self, span: Span, place: Place, weight: float = 1) -> None:
        total = self._times.get((span.kind, span.name, place))
        if total is None:
            total = self._times[span.kind, span.name, place] = [0, 0, 0]
        total[0] += int(span.wall_ns * weight)
        total[1] += int(span.cpu_ns * weight)
        total[2] += int(span.samples * weight)

    def _tell_of(self, work: Work) -> None:
        for listener in tuple(self.listeners):
            listener(work)

    def _asked_until_now(self) -> npt.NDArray[np.float64] | None:
        """Samples of each leaf that the positions read so far ask for."""
        first, before = self._from
        read = int(self._read.sum()) - before
        if not read:
            return self._asked
        asked = self._expected(first, first + read * self.setup.hosts)
        if self._asked is None or asked is None:
            return None
        return self._asked + np.asarray(asked) / self.setup.hosts

    def failed(self) -> None:
        """The step in the making failed: report what it dropped, until another one is delivered."""
        with self.lock:
            self._failed = self._open.pop(self._making(), Counter())

    def settle(self) -> None:
        """Count what was dropped so far, where no step comes behind it."""
        with self.lock:
            for step in [*self._open]:
                self._dropped.update(self._open.pop(step, Counter()))

    @property
    def dropped(self) -> bool:
        """Whether anything was dropped."""
        return bool(self._dropped or self._open or self._failed)

    def succeeded(self) -> None:
        """A sample came through: failures before it are no longer in a row."""
        self._worked.add(_SAMPLES)
        if self._in_a_row:
            self._in_a_row.pop("sample", None)

    def worked(self, hook: str) -> bool:
        """The same for one hook of lanes, or, with "", for those on single samples; whether to tell of others, too."""
        self._worked.add(hook)
        if hook:
            self._in_a_row["item"].pop(hook, None)
        else:
            self._in_a_row.pop("sample", None)
        return bool(self._in_a_row["sample"] or self._in_a_row["item"] or self._making() == self._first)

    def drop(self, dropped: Dropped) -> None:
        """Count what was dropped, tell the error handler unless that was on purpose, and draw on the budget.

        Raises:
            FatalSampleError: A hook failed more often in a row than it tolerates, or too many batches were dropped.
            Exception: What the handler raises.
        """
        error, step = dropped.error, self._making()
        if step != self._last:  # so one was made
            self._in_a_row.pop("batch", None)
            self._batches_in_a_row = 0
            self._last = step
        with self.lock:
            self._open[step][dropped.leaf, dropped.hook, type(error).__name__] += 1
        if not dropped.skipped:
            self._fail(dropped, self._tell(dropped))
        if dropped.what == "batch":
            self._batches_in_a_row += 1
            if self._batches_in_a_row >= PATIENCE_BATCHES:
                raise FatalSampleError(
                    f"hooks dropped {PATIENCE_BATCHES} batches in a row, {dropped.hook} the last one: "
                    f"{type(error).__name__}: {error}; drop samples in `encode_sample`, or filter the dataset instead"
                ) from error
        if not dropped.skipped:
            release_frames(error)

    def _tell(self, dropped: Dropped) -> _Kind | None:
        """Call the handler. Returns the kind of the failure where that is the default one."""
        error = dropped.error
        if self._handler is not log_exception:
            self._handler(error, dropped.sample, dropped.sources)
            return None
        places: list[tuple[str, str]] = _PLACE.findall(traceback_text(error))
        raised_at = ":".join(places[-1]) if places else _NUMBER.sub("#", str(error))
        kind = dropped.hook, type(error).__name__, raised_at
        self._logged[kind] += 1
        count = self._logged[kind]
        if count == 1:
            log_exception(error, dropped.sample, dropped.sources)
        elif count == 10 ** (len(str(count)) - 1):
            _logger.warning(
                "%s was dropped, as %d others before by the same kind of failure in %s: %s: %s",
                *(named(dropped.sample), count - 1, dropped.hook, type(error).__name__, error),
            )
        return kind

    def _fail(self, dropped: Dropped, kind: _Kind | None) -> None:
        hook, error, tolerance = dropped.hook, dropped.error, dropped.failure_tolerance
        in_a_row = self._in_a_row[dropped.what]
        in_a_row[hook] += 1
        last = f"the last time on {dropped.where}: {type(error).__name__}: {error}"
        if kind is not None and self._last == self._first:
            self._alike[kind] += 1
            tried = (_SAMPLES if dropped.what == "sample" else hook) in self._worked
            default = tolerance == DEFAULT_FAILURE_TOLERANCE and not tried
            if default and self._alike[kind] == in_a_row[hook] == FIRST_FAILURES:
                forget_traceback(error)  # which is in the log
                raise FatalSampleError(
                    f"{hook} failed {FIRST_FAILURES} times and never succeeded, each time in the same way, {last}; it "
                    f"fails every time, so it is probably a bug in the hook or in the data (the log has the traceback "
                    f"of the first failure). Fix it, or set how many failures are tolerated "
                    f"(`@stateless(failure_tolerance=…)`, `__default_failure_tolerance__`)"
                ) from error
        if tolerance and in_a_row[hook] >= tolerance:
            raise FatalSampleError(
                f"{hook} failed {in_a_row[hook]} times in a row, {last}; it is probably a bug in the hook or in the "
                f"data. Fix it, or raise the tolerance (`@stateless(failure_tolerance=…)`, "
                f"`__default_failure_tolerance__`)"
            ) from error

    def report(self, queued: int = 0, workers: int = 0, come: int = 0) -> LoaderStats:
        """The numbers as they are now.

        Args:
            queued: Batches that are ready.
            workers: That are at work.
            come: Steps that came, delivered or not, as the clock of waiting counts them.
        """
        with self.lock:
            dropped: dict[str, dict[str, int]] = {}
            drops = self._dropped + self._failed
            for (leaf, hook, reason), count in sorted(drops.items()):
                name = "batches" if leaf < 0 else self._leaf_names[leaf]
                dropped.setdefault(name, {})[f"{hook}: {reason}"] = count
            asked = self._asked_until_now()
            unknown: list[float | None] = [None] * len(self._read)
            expected = unknown if asked is None else asked.tolist()
            cost, targets = unknown, unknown
            if self._shares is not None:
                cost, targets = self._cost.tolist(), self._shares.targets(self._cost, self._read, asked)
            leaves = zip(self._leaf_names, self._read.tolist(), expected, cost, targets, strict=True)
            return LoaderStats(
                setup=replace(self.setup, workers=workers),
                seconds=self.waits.ran_ns(come) / 1e9,
                waiting_s=self.waits.waiting_ns / 1e9,
                starting_s=self.waits.starting_ns / 1e9,
                batches=self.batches,
                samples=self.samples,
                ready=self.waits.ready,
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
