"""Output of the demos: timed chapters, the commands that run, and a summary of the checks."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from checks import Checks, Notes
from ranks import run_ranks
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
SAVE_AT, DIE_AT, STEPS = 300, 303, 600
REQUIRED_ACCURACY = 0.95

console = Console()
_seconds: dict[str, float] = {}


@contextmanager
def chapter(title: str) -> Iterator[None]:
    """Print the title of a chapter and measure its duration."""
    console.rule(f"[bold]{title}", align="left")
    start = time.perf_counter()
    yield
    _seconds[title] = time.perf_counter() - start


def prepare(path: Path, *options: str) -> None:
    """Print and run `energon-grain prepare`."""
    command = [Path(sys.executable).with_name("energon-grain"), "prepare", path, "--non-interactive", *options]
    console.print("$ energon-grain", *(str(word) for word in command[1:]), style="dim", highlight=False, soft_wrap=True)
    subprocess.run(command, check=True)


def prepare_digits(path: Path) -> None:
    """Prepare the tars of digits, with four fifths of the shards for training."""
    options = ("--sample-type", "ImageClassificationSample", "--field-map", '{"image": "png", "label": "cls"}')
    prepare(path, "--split-ratio", "train=8,val=2", "--shuffle-tars", *options)


def train(script: str, dataset: Path, run: Path, name: str, *options: object, ranks: int = 1) -> Notes:
    """Run a training script in one process per rank. With `--die-at` the run must be killed."""
    run.mkdir(parents=True, exist_ok=True)
    notes = [run / f"{name}-{rank}.jsonl" for rank in range(ranks)]
    common = (sys.executable, HERE / script, dataset, "--steps", STEPS, "--checkpoints", run / "checkpoints", *options)
    status = run_ranks([(*common, "--notes", path) for path in notes])
    expected = -signal.SIGKILL if "--die-at" in options else 0
    if status != expected:
        console.print(f"[red]{script} exited with status {status}, expected {expected}")
        sys.exit(1)
    return Notes.read(*notes)


def conclude(title: str, checks: Checks, facts: dict[str, str]) -> NoReturn:
    """Print the facts, the checks and the durations. Exit with status 1 if a check failed."""
    table = Table(title=title, show_header=False, title_style="bold")
    for name, fact in facts.items():
        table.add_row(name, fact)
    table.add_section()
    for what, holds in checks.results:
        table.add_row("[green]passed[/]" if holds else "[bold red]FAILED[/]", what)
    table.add_section()
    for part, duration in _seconds.items():
        table.add_row(f"{duration:6.1f} s", part)
    console.print(table)
    sys.exit(0 if checks.passed else 1)
