"""A progress bar on stderr with rate and remaining time, where stderr is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from energon_grain.cli.sizes import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from energon_grain.prepare.report import PrepareProgress


class ProgressBar:
    """Shows how far work is; does nothing where nobody would see it."""

    def __init__(self, label: str, *, shown: bool) -> None:
        self._progress: Progress | None = _start() if shown and sys.stderr.isatty() else None
        self._task: TaskID | None = None if self._progress is None else self._progress.add_task(label, detail="")

    def advance_to(self, done: float, total: float, detail: str) -> None:
        """Show that `done` of `total` bytes, samples or whatever it is are done."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total, detail=detail)

    def show_prepare(self, now: PrepareProgress) -> None:
        """Show the progress of `prepare_dataset`; the bar runs over bytes, because shards differ in size."""
        if self._progress is None or self._task is None:
            return
        if now.stage == "scan":
            elapsed_s = self._progress.tasks[0].elapsed or 0.0
            rate = f"{format_bytes(now.bytes_done / elapsed_s)}/s" if elapsed_s > 0 else ""
            shards = f"{now.shards_done:,}/{now.shards_total:,} shards"
            self.advance_to(now.bytes_done, now.bytes_total, f"{shards}, {now.samples:,} samples, {rate}")
        else:
            label = "Writing the index" if now.stage == "index" else "Putting it in place"
            self._progress.update(self._task, description=label)

    def stop(self) -> None:
        """Leave the terminal to whoever writes next."""
        if self._progress is not None:
            self._progress.stop()


@contextlib.contextmanager
def progress_bar(label: str, *, shown: bool = True) -> Iterator[ProgressBar]:
    """Show a bar while the block runs."""
    bar = ProgressBar(label, shown=shown)
    try:
        yield bar
    finally:
        bar.stop()


def _start() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        redirect_stdout=False,
        redirect_stderr=False,
    )
    progress.start()
    return progress
