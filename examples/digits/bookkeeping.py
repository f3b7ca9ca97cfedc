"""Options and progress bar of both training scripts."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def parse_options(description: str | None) -> argparse.Namespace:
    """Parse the options of a training script."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--save-at", type=int, default=None)
    parser.add_argument("--die-at", type=int, default=None)
    return parser.parse_args()


class TrainingProgress(Progress):
    """A progress bar over the steps that shows the loss.

    Args:
        first_step: Steps completed before this run.
        steps: Total number of steps.
        disable: Show nothing.
    """

    def __init__(self, first_step: int, steps: int, *, disable: bool = False) -> None:
        columns = BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}"), TimeRemainingColumn()
        super().__init__(TextColumn("training"), *columns, disable=disable)
        self._task = self.add_task("training", total=steps, completed=first_step, loss="-")

    def show(self, step: int, loss) -> None:
        """Show every 25th step. The value of `loss` is read only for these steps."""
        if step % 25 == 0:
            self.update(self._task, completed=step, loss=f"{float(loss):.3f}")
