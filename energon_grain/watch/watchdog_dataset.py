# SPDX-License-Identifier: Apache-2.0
"""The node that watches streams with a watchdog."""

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
    """The same dataset. Its loader reports a batch that takes too long, with the stacks of all threads and a warning.

    Stacks are written to stderr, once per slow batch. The warning is a RuntimeWarning. Fast batches cost nothing. The
    output and the state do not change. The node has an effect above a batch, or if nothing is batched; it has none
    below a batch.

    Args:
        dataset: The dataset below.
        worker_config: Default: that of the dataset.
        timeout_seconds: Time that a program may wait for a batch; None: no limit.
        initial_timeout_seconds: Time for the first batch; default: `timeout_seconds`.
        fail_on_timeout: Whether the process then ends, with status 1: nothing else ends a thread that hangs in C code.

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
        """Report that a batch takes too long. Programs written for Energon may replace this function."""
        message = f"the program has waited for its next batch for more than {self.timeout_seconds:g} s"
        if self.fail_on_timeout:
            raise TimeoutError(f"{message}; the process ends, because fail_on_timeout is set")
        # If warnings are errors, no program could catch this one, and a slow batch would end the process.
        with contextlib.suppress(RuntimeWarning):
            warnings.warn(f"{message}; the stacks of all threads are on stderr", RuntimeWarning, stacklevel=2)


class Hang(Observer):
    """Reports a step of one stream that does not arrive.

    Args:
        timeout_seconds: Maximum time to wait for it.
        initial_timeout_seconds: Maximum time for the first step; None: `timeout_seconds`.
        fail_on_timeout: Whether the process ends.
        report: Called with this object.
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
        """Watch a stream that is about to make its first step, until it is closed or collected."""
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
