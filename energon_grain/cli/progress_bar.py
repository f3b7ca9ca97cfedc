"""A progress bar on stderr with rate and remaining time, where stderr is a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING

from energon_grain.cli.sizes import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from energon_grain.prepare.scan import PrepareProgress


class ProgressBar:
    """Shows how far work is; does nothing where nobody would see it."""

    def __init__(self, label: str, *, shown: bool) -> None:
        self._label = label
        self._wanted = shown and sys.stderr.isatty()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started_s = time.monotonic()

    def advance_to(self, done: float, total: float, detail: str, label: str | None = None) -> None:
        """Show that `done` of `total` bytes, samples or whatever it is are done.

        The bar appears with the first call: drawing it takes a thread, and `prepare` forks before that.
        """
        if not self._wanted:
            return
        if self._progress is None:
            self._progress, self._started_s = _start(), time.monotonic()
            self._task = self._progress.add_task(self._label, detail="")
        assert self._task is not None
        self._progress.update(self._task, completed=done, total=total, detail=detail, description=label or self._label)

    def show_prepare(self, now: PrepareProgress) -> None:
        """Show the progress of `prepare_dataset`; the bar runs over bytes, where known: shards differ in size."""
        detail = f"{now.shards_done:,}/{now.shards_total:,} shards, {now.samples:,} samples"
        elapsed_s = time.monotonic() - self._started_s
        if now.stage == "scan" and now.bytes_done:
            detail += f", {format_bytes(now.bytes_done / elapsed_s)}/s"
        label = {"scan": None, "index": "Writing the index", "commit": "Putting it in place"}[now.stage]
        done, total = (now.bytes_done, now.bytes_total) if now.bytes_total else (now.shards_done, now.shards_total)
        self.advance_to(done, total, detail, label)

    def show_join(self, place: str, keys: int, total: int) -> None:
        """Show the progress of `prepare_metadataset`; the bar runs over the keys of all joined datasets."""
        self.advance_to(keys, total, f"{keys:,}/{total:,} keys, {place}")

    def stop(self) -> None:
        """Leave the terminal to whoever writes next."""
        self._wanted = False
        if self._progress is not None:
            self._progress.stop()


@contextlib.contextmanager
def progress_bar(label: str, *, shown: bool = True) -> Generator[ProgressBar]:
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
