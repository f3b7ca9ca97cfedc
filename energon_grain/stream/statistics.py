"""What a stream delivered and what it dropped, and when failures become too many."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from typing import Any

from energon_grain.datasets.worker_config import ErrorHandler, forget_traceback, log_exception, named, traceback_text
from energon_grain.errors import FatalSampleError, SkipSample
from energon_grain.stream.dropped import Dropped, release_frames
from energon_grain.stream.spec import DEFAULT_FAILURE_TOLERANCE

Drops = Counter[tuple[int, str, str]]
"""How many were dropped, by leaf (-1: batches), hook and reason."""

PATIENCE_BATCHES = 1000
"""Batches in a row that hooks may drop, on purpose or not."""

FIRST_FAILURES = 5
"""Failures of a hook that never worked, all with the same error, that end a run by default."""

_SAMPLES = ""  # stands for all hooks on single samples: where one of them fails, none of the others is known to
_PLACE = re.compile(r'^ *File "(.*)", line ([0-9]+)', re.MULTILINE)
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+")
_Kind = tuple[str, str, str]
_logger = logging.getLogger("energon_grain")


class Statistics:
    """Counts of one stream, and the error policy.

    Drops are met in the order of items, so that the budget of failures in a row does not depend on who read ahead how
    far. They are counted when the step is delivered that they made room in, so that neither does the report, and what
    was read ahead in vain is not counted twice.

    By default, where neither another handler nor another tolerance was chosen, a hook that fails on the first samples
    that it gets, with the same error each time, ends the run at once: that is a mistake of a program, of which more
    samples do not tell more. Failures are logged once a kind, and then their number as it grows.

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
        self._logged: Counter[_Kind] = Counter()
        self._untried = True  # no step was made yet
        self._worked: set[str] = set()  # what worked before that
        self._alike: Counter[_Kind] = Counter()
        self._lock = threading.Lock()

    def begin(self, *, first: bool) -> None:
        """Begin to make steps, at the place behind the last delivered one; `first`: there is none."""
        self._untried = first
        self._worked.clear()
        self._alike.clear()
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
        self._untried = False
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
        self._worked.add(_SAMPLES)
        if self._in_a_row:
            self._in_a_row.clear()

    def worked(self, hook: str) -> bool:
        """The same for one hook of lanes, or, with "", for those on single samples; whether to tell of others, too."""
        self._worked.add(hook)
        if hook:
            self._items_in_a_row.pop(hook, None)
        else:
            self._in_a_row.clear()
        return bool(self._in_a_row or self._items_in_a_row or self._untried)

    def drop(self, dropped: Dropped) -> None:
        """Count a dropped sample and tell the error handler.

        Raises:
            FatalSampleError: A hook failed more often in a row than it tolerates.
            Exception: What the handler raises.
        """
        self.record(dropped.leaf, dropped.hook, dropped.error)
        if dropped.skipped:
            return
        kind = self._tell(dropped.hook, dropped.error, dropped.sample, dropped.sources)
        where = f"{dropped.shard}: {dropped.key}"
        self._fail(self._in_a_row, dropped.hook, dropped.failure_tolerance, dropped.error, where, kind, _SAMPLES)
        release_frames(dropped.error)

    def drop_item(self, leaf: int, hook: str, failure_tolerance: int, error: Exception, value: Any) -> None:
        """Count an item that a hook of a lane dropped, whose first sample is of `leaf`. Raises as `drop` does."""
        self.record(leaf, hook, error)
        if not isinstance(error, SkipSample):
            kind = self._tell(hook, error, value, getattr(value, "__sources__", None))
            self._fail(self._items_in_a_row, hook, failure_tolerance, error, f"an item ({named(value)})", kind, hook)
            release_frames(error)

    def drop_batch(self, hook: str, failure_tolerance: int, error: Exception, samples: Any) -> None:
        """Count a dropped batch, and tell the error handler unless it was dropped on purpose. Raises as `drop` does."""
        self.record(-1, hook, error)
        if not isinstance(error, SkipSample):
            kind = self._tell(hook, error, samples, None)
            self._fail(
                self._batches_in_a_row, hook, failure_tolerance, error, f"a batch ({named(samples)})", kind, hook
            )
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

    def _tell(self, hook: str, error: Exception, value: Any, sources: Any) -> _Kind | None:
        """Call the handler. Returns the kind of the failure where that is the default one."""
        if self._handler is not log_exception:
            self._handler(error, value, sources)
            return None
        places: list[tuple[str, str]] = _PLACE.findall(traceback_text(error))
        raised_at = ":".join(places[-1]) if places else _NUMBER.sub("#", str(error))
        kind = hook, type(error).__name__, raised_at
        self._logged[kind] += 1
        count = self._logged[kind]
        if count == 1:
            log_exception(error, value, sources)
        elif count == 10 ** (len(str(count)) - 1):
            _logger.warning(
                "%s was dropped, as %d others before by the same kind of failure in %s: %s: %s",
                *(named(value), count - 1, hook, type(error).__name__, error),
            )
        return kind

    def _fail(
        self,
        in_a_row: Counter[str],
        hook: str,
        failure_tolerance: int,
        error: Exception,
        where: str,
        kind: _Kind | None,
        what: str,
    ) -> None:
        in_a_row[hook] += 1
        if kind is not None and self._untried:
            self._alike[kind] += 1
            default = failure_tolerance == DEFAULT_FAILURE_TOLERANCE and what not in self._worked
            if default and self._alike[kind] == in_a_row[hook] == FIRST_FAILURES:
                forget_traceback(error)  # which is in the log
                raise FatalSampleError(
                    f"{hook} failed {FIRST_FAILURES} times and never worked, each time in the same way, the last time "
                    f"on {where}: {type(error).__name__}: {error}; that is no accident of some samples. Mend the hook "
                    f"or the data (the log has the traceback of the first failure), or choose how much is tolerated "
                    f"(`@stateless(failure_tolerance=…)`, `__default_failure_tolerance__`)"
                ) from error
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
