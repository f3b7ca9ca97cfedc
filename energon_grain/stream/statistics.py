"""What a stream delivered and what it dropped, and when failures become too many."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from energon_grain.datasets.worker_config import ErrorHandler
from energon_grain.errors import FatalSampleError
from energon_grain.stream.dropped import Dropped


class Statistics:
    """Counts of one stream, and the error policy.

    Drops are counted once each, in the order of items, so that the budget of failures in a row does not depend on who
    read ahead how far.

    Args:
        leaf_names: Name of each leaf.
        handler: `WorkerConfig.global_error_handler`.
    """

    def __init__(self, leaf_names: list[str], handler: ErrorHandler) -> None:
        self._leaf_names = leaf_names
        self._handler = handler
        self._dropped: Counter[tuple[int, str, str]] = Counter()
        self._in_a_row: Counter[str] = Counter()
        self._samples = 0
        self._batches = 0
        self._lock = threading.Lock()

    def delivered(self, samples: int) -> None:
        """Count one batch."""
        with self._lock:
            self._samples += samples
            self._batches += 1

    def succeeded(self) -> None:
        """A sample came through: failures before it are no longer in a row."""
        if self._in_a_row:
            self._in_a_row.clear()

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
        self._fail(dropped.hook, dropped.failure_tolerance, dropped.error, f"{dropped.shard}: {dropped.key}")

    def fail_batch(self, hook: str, failure_tolerance: int, error: Exception, samples: Any) -> None:
        """Count a batch whose hook failed. Raises as `drop` does."""
        self.record(-1, hook, error)
        self._handler(error, samples, None)
        self._fail(hook, failure_tolerance, error, "a batch")

    def record(self, leaf: int, hook: str, error: Exception) -> None:
        """Count without consequences; leaf -1 stands for batches."""
        with self._lock:
            self._dropped[leaf, hook, type(error).__name__] += 1

    def _fail(self, hook: str, failure_tolerance: int, error: Exception, where: str) -> None:
        self._in_a_row[hook] += 1
        if failure_tolerance and self._in_a_row[hook] >= failure_tolerance:
            raise FatalSampleError(
                f"{hook} failed {self._in_a_row[hook]} times in a row, the last time on {where}: "
                f"{type(error).__name__}: {error}; that many failures are no accident. Mend the hook or the data, or "
                f"raise the tolerance (`@stateless(failure_tolerance=…)`, `__default_failure_tolerance__`)"
            ) from error

    def report(self) -> dict[str, Any]:
        """JSON-native counts: samples and batches delivered, and what was dropped by leaf, hook and reason."""
        with self._lock:
            dropped: dict[str, dict[str, int]] = {}
            for (leaf, hook, reason), count in sorted(self._dropped.items()):
                name = "batches" if leaf < 0 else self._leaf_names[leaf]
                dropped.setdefault(name, {})[f"{hook}: {reason}"] = count
            return {
                "samples": self._samples,
                "batches": self._batches,
                "dropped": dropped,
                "dropped_total": sum(self._dropped.values()),
            }
