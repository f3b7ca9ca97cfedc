"""What a stream delivered and what it dropped, and when failures become too many."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from energon_grain.datasets.worker_config import ErrorHandler
from energon_grain.errors import FatalSampleError, SkipSample
from energon_grain.stream.dropped import Dropped, release_frames

Drops = Counter[tuple[int, str, str]]
"""How many were dropped, by leaf (-1: batches), hook and reason."""

PATIENCE_BATCHES = 1000
"""Batches in a row that hooks may drop, on purpose or not."""


class Statistics:
    """Counts of one stream, and the error policy.

    Drops are met in the order of items, so that the budget of failures in a row does not depend on who read ahead how
    far. They are counted when the step is delivered that they made room in, so that neither does the report, and what
    was read ahead in vain is not counted twice.

    Args:
        leaf_names: Name of each leaf.
        handler: `WorkerConfig.global_error_handler`.
    """

    def __init__(self, leaf_names: list[str], handler: ErrorHandler) -> None:
        self._leaf_names = leaf_names
        self._handler = handler
        self._dropped: Drops = Counter()
        self._open: Drops = Counter()  # of the step in the making
        self._failed: Drops = Counter()  # of the step that failed last, until one succeeds
        self._in_a_row: Counter[str] = Counter()
        self._items_in_a_row: Counter[str] = Counter()
        self._batches_in_a_row: Counter[str] = Counter()
        self._samples = 0
        self._batches = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin to make steps, at the place behind the last delivered one."""
        with self._lock:
            self._open.clear()
        self._in_a_row.clear()
        self._items_in_a_row.clear()
        self._batches_in_a_row.clear()

    def made(self) -> Drops:
        """What was dropped for the step that was just made."""
        with self._lock:
            drops, self._open = self._open, Counter()
        self._batches_in_a_row.clear()
        return drops

    def delivered(self, samples: int, drops: Drops) -> None:
        """Count one batch, and what was dropped for it."""
        with self._lock:
            self._samples += samples
            self._batches += 1
            self._dropped.update(drops)
            self._failed.clear()

    def failed(self) -> None:
        """The step in the making failed: report what it dropped, until another one is delivered."""
        with self._lock:
            self._failed, self._open = self._open, Counter()

    def settle(self) -> None:
        """Count what was dropped so far, where no step comes behind it."""
        with self._lock:
            self._dropped.update(self._open)
            self._open.clear()

    def succeeded(self) -> None:
        """A sample came through: failures before it are no longer in a row."""
        if self._in_a_row:
            self._in_a_row.clear()

    def worked(self, hook: str) -> bool:
        """The same for one hook of lanes, or, with "", for those on single samples; whether any other still fails."""
        if hook:
            self._items_in_a_row.pop(hook, None)
        else:
            self._in_a_row.clear()
        return bool(self._in_a_row or self._items_in_a_row)

    def drop(self, dropped: Dropped) -> None:
        """Count a dropped sample and tell the error handler.

        Raises:
            FatalSampleError: A hook failed more often in a row than it tolerates.
            Exception: What the handler raises.
        """
        self.record(dropped.leaf, dropped.hook, dropped.error)
        if dropped.skipped:
            return
        self._handler(dropped.error, dropped.sample, dropped.sources)
        where = f"{dropped.shard}: {dropped.key}"
        self._fail(self._in_a_row, dropped.hook, dropped.failure_tolerance, dropped.error, where)
        release_frames(dropped.error)

    def drop_item(self, leaf: int, hook: str, failure_tolerance: int, error: Exception, value: Any) -> None:
        """Count an item that a hook of a lane dropped, whose first sample is of `leaf`. Raises as `drop` does."""
        self.record(leaf, hook, error)
        if not isinstance(error, SkipSample):
            self._handler(error, value, getattr(value, "__sources__", None))
            self._fail(self._items_in_a_row, hook, failure_tolerance, error, "an item")
            release_frames(error)

    def drop_batch(self, hook: str, failure_tolerance: int, error: Exception, samples: Any) -> None:
        """Count a dropped batch, and tell the error handler unless it was dropped on purpose. Raises as `drop` does."""
        self.record(-1, hook, error)
        if not isinstance(error, SkipSample):
            self._handler(error, samples, None)
            self._fail(self._batches_in_a_row, hook, failure_tolerance, error, "a batch")
        self._batches_in_a_row[""] += 1
        if self._batches_in_a_row[""] >= PATIENCE_BATCHES:
            raise FatalSampleError(
                f"hooks dropped {PATIENCE_BATCHES} batches in a row, {hook} the last one: {type(error).__name__}: "
                f"{error}; drop samples in `encode_sample`, or filter the dataset instead"
            ) from error

    def record(self, leaf: int, hook: str, error: Exception) -> None:
        """Count without consequences; leaf -1 stands for batches."""
        with self._lock:
            self._open[leaf, hook, type(error).__name__] += 1

    def _fail(self, in_a_row: Counter[str], hook: str, failure_tolerance: int, error: Exception, where: str) -> None:
        in_a_row[hook] += 1
        if failure_tolerance and in_a_row[hook] >= failure_tolerance:
            raise FatalSampleError(
                f"{hook} failed {in_a_row[hook]} times in a row, the last time on {where}: "
                f"{type(error).__name__}: {error}; that many failures are no accident. Mend the hook or the data, or "
                f"raise the tolerance (`@stateless(failure_tolerance=…)`, `__default_failure_tolerance__`)"
            ) from error

    def report(self) -> dict[str, Any]:
        """JSON-native counts: samples and batches delivered, and what was dropped by leaf, hook and reason."""
        with self._lock:
            dropped: dict[str, dict[str, int]] = {}
            drops = self._dropped + self._failed
            for (leaf, hook, reason), count in sorted(drops.items()):
                name = "batches" if leaf < 0 else self._leaf_names[leaf]
                dropped.setdefault(name, {})[f"{hook}: {reason}"] = count
            return {
                "samples": self._samples,
                "batches": self._batches,
                "dropped": dropped,
                "dropped_total": drops.total(),
            }
