# SPDX-License-Identifier: Apache-2.0
"""Dropped samples, and the error policy: how many failures are too many."""

from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from energon_grain.errors import (
    ConfigError,
    FatalSampleError,
    IndexFileError,
    ReadError,
    SkipSample,
    UntrustedCodeError,
)
from energon_grain.stream.hooks import DEFAULT_FAILURE_TOLERANCE
from energon_grain.stream.observer import Outlet
from energon_grain.stream.worker_config import ErrorHandler, forget_traceback, log_exception, named, traceback_text

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
"""Exceptions that indicate a broken program or a failing disk, not a broken sample.

They end the iteration at once: a network problem must not change the stream."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dropped:
    """A dropped sample, item or batch. In a chunk it takes the place of the sample.

    Attributes:
        leaf: Number of the leaf of the sample, or of the first sample; -1: several leaves.
        hook: Where it was dropped: "decode", or the name of a hook.
        failure_tolerance: Tolerance of that hook.
        error: The error that was raised; a `SkipSample` if the hook dropped it on purpose.
        key: Key of the sample; "" for items and batches.
        shard: Shard of the sample; "" for items and batches.
        sample: The argument of the hook, for the error handler; None if it was dropped on purpose.
        sources: Provenance of the sample.
        what: A sample as it is read, an item made by a lane, or a batch of a step.
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
        """Description for messages."""
        if self.what == "sample":
            return f"{self.shard}: {self.key}"
        return f"{'an item' if self.what == 'item' else 'a batch'} ({named(self.sample)})"

    @property
    def skipped(self) -> bool:
        """Whether it was dropped on purpose."""
        return isinstance(self.error, SkipSample)


@dataclass(frozen=True, slots=True, eq=False)
class PartialItem:
    """A pack that was made without some of its samples, which were dropped. In a chunk it takes the place of the pack.

    Attributes:
        value: The pack; `Dropped`: nothing of it is left.
        dropped: The dropped samples.
    """

    value: Any
    dropped: tuple[Dropped, ...]


def release_frames(error: BaseException | None) -> None:
    """Remove the traceback of an error that is kept: its frames hold the whole chunk that was being encoded."""
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


PATIENCE_BATCHES = 1000
"""Batches in a row that hooks may drop, on purpose or not."""

FIRST_FAILURES = 5
"""Failures of a hook that never succeeded, all with the same error, that end a run by default."""

_SAMPLES = ""  # all hooks on single samples: if one of them fails, it is unknown whether the others work
_PLACE = re.compile(r'^ *File "(.*)", line ([0-9]+)', re.MULTILINE)
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+")
_Kind = tuple[str, str, str]
_logger = logging.getLogger("energon_grain")


class DropBudget:
    """The error policy of one stream: how many failures it survives.

    Drops are processed in the order of items, so the count of failures in a row does not depend on how far workers read
    ahead.

    By default (no other handler and no other tolerance), a hook that fails on its first samples with the same error
    each time ends the run at once: that is a bug in the program, and more samples show nothing new. The first failure
    of each kind is logged; later ones are logged as a count that grows.

    Args:
        handler: `WorkerConfig.global_error_handler`.
        outlet: Receives reports of drops.

    Attributes:
        any_dropped: Whether anything was dropped, delivered or not.
    """

    def __init__(self, handler: ErrorHandler, outlet: Outlet | None = None) -> None:
        self._handler = handler
        self._outlet = Outlet() if outlet is None else outlet
        self.any_dropped = False
        self._in_a_row: defaultdict[str, Counter[str]] = defaultdict(Counter)  # failures, by `Dropped.what` and hook
        self._batches_in_a_row = 0  # dropped, on purpose or not
        self._logged: Counter[_Kind] = Counter()
        self._current_step: Callable[[], int] = lambda: 0
        self._first: int | None = 0  # first step that was made
        self._last = 0  # step of the last drop
        self._worked: set[str] = set()  # hooks that worked before the first step was made
        self._same_failures: Counter[_Kind] = Counter()

    def begin(self, current_step: Callable[[], int] = lambda: 0, *, first: bool) -> None:
        """Start making steps.

        Args:
            current_step: Returns the number of the step being made, at any time.
            first: No step was made before.
        """
        step = current_step()
        self._current_step, self._first, self._last = current_step, step if first else None, step
        self._worked.clear()
        self._same_failures.clear()
        self._in_a_row.clear()
        self._batches_in_a_row = 0

    def stop(self) -> int:
        """Stop making steps, and release their maker. Returns the number of the step that was being made."""
        step = self._current_step()
        self._current_step = lambda: step
        return step

    def succeeded(self) -> None:
        """A sample succeeded: failures before it are no longer in a row."""
        self._worked.add(_SAMPLES)
        if self._in_a_row:
            self._in_a_row.pop("sample", None)

    def worked(self, hook: str) -> bool:
        """A lane's hook ("": the hooks on single samples) succeeded. Returns whether to report later successes."""
        self._worked.add(hook)
        if hook:
            self._in_a_row["item"].pop(hook, None)
        else:
            self._in_a_row.pop("sample", None)
        return bool(self._in_a_row["sample"] or self._in_a_row["item"] or self._current_step() == self._first)

    def drop(self, dropped: Dropped) -> None:
        """Count a drop, call the error handler unless the drop was on purpose, and apply the limits.

        Raises:
            FatalSampleError: A hook failed more often in a row than it tolerates, or too many batches were dropped.
            Exception: Any error that the handler raises.
        """
        error, step = dropped.error, self._current_step()
        if step != self._last:  # a step was made since
            self._in_a_row.pop("batch", None)
            self._batches_in_a_row = 0
            self._last = step
        self.any_dropped = True
        self._outlet.dropped(step, dropped)
        if not dropped.skipped:
            self._fail(dropped, self._report(dropped))
        if dropped.what == "batch":
            self._batches_in_a_row += 1
            if self._batches_in_a_row >= PATIENCE_BATCHES:
                raise FatalSampleError(
                    f"hooks dropped {PATIENCE_BATCHES} batches in a row, {dropped.hook} the last one: "
                    f"{type(error).__name__}: {error}; drop samples in `encode_sample`, or filter the dataset instead"
                ) from error
        if not dropped.skipped:
            release_frames(error)

    def _report(self, dropped: Dropped) -> _Kind | None:
        """Call the handler. Returns the kind of the failure if the handler is the default one."""
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
                "%s was dropped, like %d others before by the same kind of failure in %s: %s: %s",
                *(named(dropped.sample), count - 1, dropped.hook, type(error).__name__, error),
            )
        return kind

    def _fail(self, dropped: Dropped, kind: _Kind | None) -> None:
        hook, error, tolerance = dropped.hook, dropped.error, dropped.failure_tolerance
        in_a_row = self._in_a_row[dropped.what]
        in_a_row[hook] += 1
        last = f"the last time on {dropped.where}: {type(error).__name__}: {error}"
        if kind is not None and self._last == self._first:
            self._same_failures[kind] += 1
            tried = (_SAMPLES if dropped.what == "sample" else hook) in self._worked
            default = tolerance == DEFAULT_FAILURE_TOLERANCE and not tried
            if default and self._same_failures[kind] == in_a_row[hook] == FIRST_FAILURES:
                forget_traceback(error)  # it is in the log
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
