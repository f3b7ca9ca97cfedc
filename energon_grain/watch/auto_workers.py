# SPDX-License-Identifier: Apache-2.0
"""`num_workers="auto"`: the number of threads and of prefetched batches, chosen while the loop runs.

The best choice depends on the data, the hooks and the machine. Threads that decode images run in parallel. Threads that
run Python take turns at the GIL, and passing it on costs time. If samples are only short texts, the loop itself is the
fastest worker. So the rate of the loop is measured, over windows of about a second in which the loop waited for data. A
number of threads is compared with twice or half that number, in the order A, B, B, A, so that a temporary load on the
machine affects both. A clear result needs only the first two windows; if the second pair contradicts the first, up to
four pairs are measured. Numbers in between, zero threads, and more prefetched batches are tried at the end. Going from
two threads to 64 takes about 15 s. More threads than cores are tried while they wait more than they compute.

    threads  2    4    4    2 (no gain: try 1)       1 (clearly worse)   3    3    2   (no gain)   0 (clearly worse)
    rate    100  101  99   103                       50                  102  99   101             48

Then it pauses, and searches again after half a minute, a minute, two minutes, …, or as soon as the rate has fallen. A
loop that does not wait is left unchanged, because a faster loader would not help it.

The output does not depend on this: threads affect speed, never the order. The workers of a `Resizable` pool, such as
Ray actors, are chosen in the same way.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator
from typing import Any, NamedTuple, Protocol, runtime_checkable

from energon_grain.storage.cores import usable_cores
from energon_grain.stream.background import Background

FIRST_THREADS = 2
WINDOW_SECONDS, WINDOW_STEPS = 0.8, 8
"""Minimum length of a window."""
_WARM_SECONDS = 0.5
"""Time to skip at the beginning, because chunks start small and grow."""
_GAIN = 1.03
"""Minimum gain of a change. Without it, the choice would alternate between two numbers."""
_PAIRS = 4
"""Maximum number of comparisons of two numbers, if the first two disagree."""
_CLEAR = 1.5
"""A ratio that is clear without repetition, in either direction."""
_ENOUGH = 0.03
"""A loop that waits for a smaller share of its time is not limited by its data."""
_FALLEN = 0.7
_REST_WINDOWS, _LONGEST_REST_WINDOWS = 32, 1024
_UNEVEN = 0.05
"""If a loop waits for this share of its time, and its data waits as long for it, more prefetched batches may help."""
_DEEPEST = 16
_ONE_CORE = (0.8, 1.3)
MOST_WAITING = 32
"""Maximum number of threads per core, up to 64, that wait more than they compute."""

_logger = logging.getLogger("energon_grain")


@runtime_checkable
class Resizable(Protocol):
    """A `stream.workers.WorkerPool` that can change its number of workers while it runs."""

    @property
    def settled(self) -> bool:
        """Whether the workers of the last `resize` have started, and chunks taken now were begun by them."""
        ...

    def resize(self, workers: int) -> None:
        """Set the number of workers. Chunks that are under way are finished."""
        ...


class Window(NamedTuple):
    """The measurement of a period with one number of threads.

    Attributes:
        rate: Samples per second that the loop took.
        waited: Share of the time that the loop waited for samples.
        full: Share of the time that the queue of batches was full, and no further batch was made.
        cores: CPU time of this process, in cores.
    """

    rate: float
    waited: float = 1.0
    full: float = 0.0
    cores: float = 0.0

    @property
    def enough(self) -> bool:
        """Whether the loop is not limited by its data."""
        return self.waited < _ENOUGH

    @property
    def uneven(self) -> bool:
        """Whether the loop and the maker of its batches alternately wait for each other."""
        return min(self.waited, self.full) > _UNEVEN


class Setting(NamedTuple):
    """The next setting to measure.

    Attributes:
        threads: Number of threads or other workers; 0: the loop makes its batches itself.
        depth: Number of waiting batches per thread, in units of `prefetch_factor`.
        chosen: Whether it is the result of a search.
    """

    threads: int
    depth: int = 1
    chosen: bool = False


def climb(most: int, first: int, most_waiting: int = 0, *, least: int = 0) -> Generator[Setting, Window, None]:
    """Searches for the setting with the highest rate. Yields settings to measure, and receives the measurements.

    Args:
        most: Maximum number of threads that compute.
        first: Initial number of threads.
        most_waiting: Maximum number of threads that use less than half of their time to compute.
        least: Minimum number of threads.
    """
    current = Setting(first)
    now, rest = (yield current), _REST_WINDOWS

    def better(*others: Setting) -> Generator[Setting, Window, bool]:
        """Whether one of some settings is better. It then becomes the current one."""
        nonlocal current, now
        for other in others:
            if other != current and not now.enough:
                won, now = yield from _compared(current, other, now)
                if won:
                    current = other
                    return True
        return False

    def up_to(threads: int) -> Setting:
        """The current setting with up to this many threads."""
        waits = now.cores < min(current.threads, most) / 2
        return current._replace(threads=min(threads, max(most, most_waiting) if waits else max(most, current.threads)))

    while True:
        before = current
        while (yield from better(up_to(2 * current.threads or 1))):
            pass
        while (yield from better(current._replace(threads=max(least, current.threads // 2)))):
            pass
        threads = current.threads
        more = up_to(threads + threads // 2).threads
        between = {more, threads - threads // 4} if threads > 1 else set[int]()
        yield from better(*(current._replace(threads=number) for number in sorted(between, reverse=True)))
        while (
            now.uneven and current.depth < _DEEPEST and (yield from better(current._replace(depth=2 * current.depth)))
        ):
            pass
        if not least:
            yield from better(current._replace(threads=0))  # last: without a handover it differs from the others
        rest = min(2 * rest, _LONGEST_REST_WINDOWS) if current == before else _REST_WINDOWS
        fallen, now = yield from _rested(current, now, rest)
        rest = _REST_WINDOWS if fallen else rest


def _rested(current: Setting, now: Window, rest: int) -> Generator[Setting, Window, tuple[bool, Window]]:
    """Whether the rate has fallen during a number of windows, and the last window."""
    usual, slow = now.rate, 0
    for _ in range(rest):
        now = yield current._replace(chosen=True)
        slow = slow + 1 if now.rate < _FALLEN * usual and not now.enough else 0
        if slow == 2:
            return True, now
    return False, now


def _compared(current: Setting, candidate: Setting, now: Window) -> Generator[Setting, Window, tuple[bool, Window]]:
    """Whether another setting is better than the current one, and the last window of the better one."""
    first = yield candidate
    ratio = first.rate / now.rate
    if first.enough or not 1 / _CLEAR < ratio < _CLEAR:
        won = first.enough or ratio > 1
        return won, first if won else now
    ratios = [ratio]
    while len(ratios) == 1 or (len(ratios) < _PAIRS and min(ratios) < 1 < max(ratios)):
        first = yield candidate
        if len(ratios) % 2:
            now = yield current
        ratios.append(first.rate / now.rate)
    won = math.prod(ratios) ** (1 / len(ratios)) > _GAIN
    return won, first if won else now


class AutoWorkers:
    """Sets the number of threads of a pool, and of prefetched batches, from the rate of the loop.

    Args:
        prefetch_factor: Initial number of prefetched batches per thread. If it helps, this grows to up to 16 times as
            many, within `WorkerConfig.prefetch_bytes`.
        hooks: Whether the program has hooks on samples, which may hold the GIL.
        pool: The `stream.workers.Pool` of the workers, which begins with its number of workers and goes up to its
            `max_workers`; None: threads, at most one for each core.
    """

    def __init__(self, prefetch_factor: int, *, hooks: bool, pool: Any = None) -> None:
        most = usable_cores() if pool is None else max(pool.workers, getattr(pool, "max_workers", 0))
        self._most = most
        self._kind = "threads" if pool is None else "workers"
        if pool is None:
            self._search = climb(most, min(FIRST_THREADS, most), max(most, min(64, MOST_WAITING * most)))
        else:
            self._search, hooks = climb(most, pool.workers, least=1), False
        self._setting = next(self._search)
        self._prefetch_factor = prefetch_factor
        self._pool: Resizable | None = None
        self._ahead: Background[Any] | None = None
        self._logged: int | None = None
        self._advises = hooks and most > 1
        self._waiting = 0  # batches made before the last change
        self._not_before = time.perf_counter() + _WARM_SECONDS
        self._window: _Measuring | None = None

    @property
    def threads(self) -> int:
        """Current number of threads, or the initial one."""
        return self._setting.threads

    @property
    def capacity(self) -> int:
        """Maximum number of waiting batches."""
        return self._prefetch_factor * self._setting.depth * self._setting.threads

    def runs(self, pool: Resizable, ahead: Background[Any] | None) -> None:
        """Set the running pool and the background thread that makes batches, if there is one."""
        if ahead is not None and ahead is not self._ahead:
            ahead.resize(self.capacity)
        self._pool, self._ahead = pool, ahead

    def took(self, steps: int, samples: int, waited_s: float) -> None:
        """Record batches that the loop received, and how long it waited for them."""
        now = time.perf_counter()
        pool, window = self._pool, self._window
        assert pool is not None
        if window is None:
            self._waiting -= steps
            if self._waiting < 0 and pool.settled and now >= self._not_before:
                self._window = _Measuring(now, self._full_s)
            return
        window.add(now, steps, samples, waited_s)
        if window.steps < WINDOW_STEPS or now - window.began < WINDOW_SECONDS:
            return
        self._window = None if window.interrupted else _Measuring(now, self._full_s)
        if window.interrupted:
            return
        found = window.result(now, self._full_s)
        before, self._setting = self._setting, self._search.send(found)
        if self._setting[:2] != before[:2]:
            self._window = None
            pool.resize(self.threads)
            if self._ahead is not None:
                self._waiting = self._ahead.waiting
                self._ahead.resize(self.capacity)
        elif self._setting.chosen:
            self._log(found)

    @property
    def _full_s(self) -> float:
        return 0.0 if self._ahead is None else self._ahead.full_s

    def _log(self, found: Window) -> None:
        if self.threads != self._logged:
            self._logged = self.threads
            _logger.info(
                "num_workers='auto': %d %s and %d batches ahead: %.3g samples a second; the loop waits for %d%% "
                "of its time",
                *(self.threads, self._kind, self.capacity, found.rate, round(100 * found.waited)),
            )
        one_core = _ONE_CORE[0] < found.cores < _ONE_CORE[1]
        if one_core and self._advises and found.waited > 0.5:
            self._advises = False
            _logger.warning(
                "num_workers='auto': the loop waits for %d%% of its time while one of %d cores is busy, and more "
                "threads than %d do not help: hooks hold Python's lock, or run one at a time. If they spend their time "
                "in code that releases the lock, set `thread_safe = True` on the task encoder; otherwise use worker "
                "processes: worker_type='process', num_workers=%d",
                *(round(100 * found.waited), self._most, self.threads, self._most),
            )


class _Measuring:
    """A window being measured."""

    def __init__(self, now: float, full_s: float) -> None:
        self.began = self._last = now
        self._cpu_s, self._full_s = time.process_time(), full_s
        self.steps = self._samples = 0
        self._waited_s = self._longest_s = 0.0

    def add(self, now: float, steps: int, samples: int, waited_s: float) -> None:
        self.steps += steps
        self._samples += samples
        self._waited_s += waited_s
        self._longest_s = max(self._longest_s, now - waited_s - self._last)
        self._last = now

    @property
    def interrupted(self) -> bool:
        """Whether the loop did something else for most of the time, for example a validation."""
        return self._longest_s > (self._last - self.began) / 2

    def result(self, now: float, full_s: float) -> Window:
        seconds = now - self.began
        return Window(
            rate=max(1, self._samples) / seconds,
            waited=self._waited_s / seconds,
            full=(full_s - self._full_s) / seconds,
            cores=(time.process_time() - self._cpu_s) / seconds,
        )
