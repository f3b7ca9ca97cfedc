# SPDX-License-Identifier: Apache-2.0
"""The node whose streams are watched by a watchdog."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable
from dataclasses import KW_ONLY
from functools import partial

from energon_grain.datasets.dataset import OF_DATASET, SavableDataset, check_dataset, node, settle
from energon_grain.datasets.lowering import Lowering, Part, Steps
from energon_grain.errors import ConfigError
from energon_grain.stream.observer import ObservedStream, Observer
from energon_grain.stream.passes import Progress
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.watch.watchdog import Watchdog


@node
class WatchdogDataset(SavableDataset):
    """The same dataset, whose loader reports a batch that takes too long: by the stacks of all threads, and a warning.

    Stacks go to stderr, once for each batch that takes too long, the warning is a RuntimeWarning. Nothing is measured
    for it where batches come. What comes out does not change, nor does the state. Above a batch, and where nothing is
    batched, that is what is watched; it has no effect below one.

    Args:
        dataset: What is passed on.
        worker_config: Default: that of the dataset.
        timeout_seconds: For which a program may wait for a batch; None: for ever.
        initial_timeout_seconds: The same for the first one; default: no other.
        fail_on_timeout: Whether the process ends then, with status 1: nothing else ends a thread that hangs in C.

    Raises:
        ConfigError: A time is not positive.
    """

    dataset: SavableDataset
    _: KW_ONLY
    timeout_seconds: float | None = 60
    initial_timeout_seconds: float | None = None
    fail_on_timeout: bool = False
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self) -> None:
        check_dataset(self, self.dataset)
        for name in ("timeout_seconds", "initial_timeout_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ConfigError(f"WatchdogDataset: {name}={seconds!r}: expected a time above 0, in seconds")
        settle(self, self.dataset)

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        if self.timeout_seconds is not None:
            steps.observers[WatchdogDataset] = partial(
                Hang,
                timeout_seconds=self.timeout_seconds,
                initial_timeout_seconds=self.initial_timeout_seconds,
                fail_on_timeout=self.fail_on_timeout,
                report=WatchdogDataset._watchdog_trigger,
            )
        return self.dataset

    def lower(self, to: Lowering) -> Part:
        return to.lower(self.dataset)

    def _watchdog_trigger(self: WatchdogDataset | Hang) -> None:
        """Report that a batch takes too long; programs written for Energon may put a function of theirs here."""
        message = f"the program has waited for its next batch for more than {self.timeout_seconds:g} s"
        if self.fail_on_timeout:
            raise TimeoutError(f"{message}; the process ends, as fail_on_timeout asks for")
        # Where warnings are errors no program could catch this one, and a slow batch would end the process.
        with contextlib.suppress(RuntimeWarning):
            warnings.warn(f"{message}; the stacks of all threads are on stderr", RuntimeWarning, stacklevel=2)


class Hang(Observer):
    """Reports a step of one stream that does not come.

    Args:
        timeout_seconds: For which it may be waited for.
        initial_timeout_seconds: The same for the first one; None: no other.
        fail_on_timeout: Whether the process ends.
        tell: Called with this.
    """

    timed = False

    def __init__(
        self,
        *,
        timeout_seconds: float,
        initial_timeout_seconds: float | None,
        fail_on_timeout: bool,
        report: Callable[[Hang], object],
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self.initial_timeout_seconds = initial_timeout_seconds
        self.fail_on_timeout = fail_on_timeout
        self._report = report
        self._watchdog: Watchdog | None = None

    def begin(self, stream: ObservedStream, place: Progress) -> None:
        """Watch a stream that is about to make its first step, until it is closed or lost."""
        del place
        if self._watchdog is not None:
            return
        known = weakref.ref(stream)

        def awaited() -> object:
            stream = known()
            return None if stream is None else stream.awaited

        self._watchdog = watchdog = Watchdog(
            self.timeout_seconds,
            self.initial_timeout_seconds,
            partial(self._report, self),
            enabled=False,
            current_step=awaited,
            first=stream.next_step,
        )
        weakref.finalize(stream, watchdog.stop).atexit = False

    def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.finish()
