# SPDX-License-Identifier: Apache-2.0
"""A line that shows the progress and speed of a loop."""

from __future__ import annotations

import time
from collections import deque
from datetime import timedelta
from typing import Any, TextIO

from energon_grain.watch.stream import Stream

_REDRAWN_S = 0.5
_MARKS = 20
"""On a terminal, a line covers the last ten seconds; elsewhere, the time since the previous line."""


class ProgressLine:
    """Shows the progress of a stream: one line that is updated on a terminal, or one line after the other elsewhere."""

    def __init__(self, stream: Stream, every_s: float, file: TextIO) -> None:
        self._stream = stream
        self._file = file
        self._progress: Any = None
        self._waited_s, self._steps = 0.0, 0
        terminal = file.isatty()
        self._every_s = _REDRAWN_S if terminal else every_s
        self._marks: deque[tuple[float, int, int, float]] = deque([self._mark()], _MARKS if terminal else 1)
        if stream.config.rank:
            self._every_s = float("inf")
        elif terminal:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._progress = Progress(
                TextColumn("{task.description}"), BarColumn(), console=Console(file=file), auto_refresh=False
            )  # without a thread, because processes that are forked later would lack it
            self._task = self._progress.add_task("", total=None)
            self._progress.start()

    def _mark(self) -> tuple[float, int, int, float]:
        return time.perf_counter(), self._stream.samples, self._steps, self._waited_s

    def took(self, waited_s: float) -> None:
        """Record that the loop received a batch after waiting."""
        self._waited_s += waited_s
        self._steps += 1
        if time.perf_counter() - self._marks[-1][0] >= self._every_s:
            self._show()

    def _show(self) -> None:
        now, samples, steps, waited_s = self._mark()
        then, samples_then, steps_then, waited_then = self._marks[0]
        self._marks.append((now, samples, steps, waited_s))
        seconds = max(now - then, 1e-9)
        stream = self._stream
        place, total = stream.place, len(stream)
        step = place.pass_step
        endless = stream.spec.endless and stream.plan.remaining(step, place.item) is None
        if endless:
            text = f"step {step:,} (epoch {step / total:.2f})"
        else:
            text = f"epoch {place.pass_number + 1}, step {step:,} of {total:,}"
        text += (
            f": {(samples - samples_then) / seconds:,.0f} samples/s, waited {(waited_s - waited_then) / seconds:.0%}"
        )
        if not endless and steps > steps_then:
            left_s = (total - step) * seconds / (steps - steps_then)
            text += f", {timedelta(seconds=round(left_s))} left"
        if self._progress is None:
            print(text, file=self._file, flush=True)
        else:
            done = step % total if endless else step
            self._progress.update(self._task, description=text, completed=done, total=total, refresh=True)

    def end(self) -> None:
        """Show the final progress, and release the terminal."""
        if self._steps > self._marks[-1][2] and self._every_s < float("inf"):
            self._show()
        if self._progress is not None:
            self._progress.stop()
