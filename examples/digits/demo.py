"""The whole story in one go: tars, prepare, train, kill, resume, on one host and on several. `make demo` runs this."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checks import Checks, Notes
from hosts import resumed_on_hosts
from photographs import read_photographs
from rich.console import Console
from rich.table import Table
from train import BATCH_SIZE
from write_tars import write_digits, write_photographs

from energon_grain.loader import EnergonDataSource

HERE = Path(__file__).parent
SAVE_AT, DIE_AT, STEPS = 400, 403, 900
REQUIRED_ACCURACY = 0.95

console = Console()
seconds: dict[str, float] = {}


@contextmanager
def chapter(title: str) -> Iterator[None]:
    """Announce a part of the story and take its time."""
    console.rule(f"[bold]{title}", align="left")
    start = time.perf_counter()
    yield
    seconds[title] = time.perf_counter() - start


def prepare(path: Path, *options: str) -> None:
    """`energon-grain prepare`, as typed into a shell."""
    command = [Path(sys.executable).with_name("energon-grain"), "prepare", path, "--non-interactive", *options]
    console.print("$ energon-grain", *(str(word) for word in command[1:]), style="dim", highlight=False, soft_wrap=True)
    subprocess.run(command, check=True)


def train(dataset: Path, run: Path, notes: str, *options: object) -> Notes:
    """Run train.py in a process of its own; with --die-at it must not survive."""
    run.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, HERE / "train.py", dataset, "--steps", STEPS]
    command += ["--notes", run / notes, "--checkpoints", run / "checkpoints", *options]
    status = subprocess.run([str(word) for word in command], check=False).returncode
    expected = -signal.SIGKILL if "--die-at" in options else 0
    if status != expected:
        console.print(f"[red]train.py ended with status {status}; expected was {expected}")
        sys.exit(1)
    return Notes.read(run / notes)


def summary(checks: Checks, facts: dict[str, str]) -> None:
    """Print what was done, what was checked, and how long it took."""
    table = Table(title="energon-grain demo", show_header=False, title_style="bold")
    for name, fact in facts.items():
        table.add_row(name, fact)
    table.add_section()
    for what, holds in checks.results:
        table.add_row("[green]passed[/]" if holds else "[bold red]FAILED[/]", what)
    table.add_section()
    for title, duration in seconds.items():
        table.add_row(f"{duration:6.1f} s", title)
    console.print(table)


def main() -> None:
    """Tell the story; exit with 1 if a check fails."""
    root = Path(".demo")
    shutil.rmtree(root, ignore_errors=True)
    digits, photographs = root / "digits", root / "photographs"
    checks, facts = Checks(), {}

    with chapter("Write tars"):
        scans, tiles = write_digits(digits), write_photographs(photographs)
        facts["digits"] = f"{scans:,} scans as PNG + class label"
        facts["photographs"] = f"{tiles:,} tiles as JPEG + caption"
    with chapter("Prepare"):
        image_class = ("--sample-type", "ImageClassificationSample", "--field-map", '{"image": "png", "label": "cls"}')
        prepare(digits, "--split-ratio", "train=8,val=2", "--shuffle-tars", *image_class)
        captioning = ("--sample-type", "CaptioningSample", "--field-map", '{"image": "jpg", "caption": "txt"}')
        prepare(photographs, "--split-ratio", "train=1", *captioning)

    with chapter("Train without interruption"):
        whole = train(digits, root / "uninterrupted", "notes.jsonl")
    with chapter(f"Train, save at step {SAVE_AT}, be killed at step {DIE_AT}"):
        killed = train(digits, root / "killed", "killed.jsonl", "--save-at", SAVE_AT, "--die-at", DIE_AT)
    with chapter("Resume in a new process"):
        resumed = train(digits, root / "killed", "resumed.jsonl")
    with chapter("Resume on 2 and on 4 hosts"):
        same = {
            hosts: resumed_on_hosts(digits, root / "killed" / "checkpoints", hosts, steps=50) for hosts in (1, 2, 4)
        }
    with chapter("Read the photographs"):
        reading = read_photographs(photographs, expected=tiles)

    epoch, place = divmod(SAVE_AT * BATCH_SIZE, len(EnergonDataSource(digits, split_part="train")))
    facts["checkpoint"] = f"step {SAVE_AT}: {place:,} samples into epoch {epoch + 1}"
    facts["held-out accuracy"] = f"{resumed.result['accuracy']:.2%} (uninterrupted: {whole.result['accuracy']:.2%})"
    facts["photographs read"] = f"{reading.rate:,.0f} decoded tiles a second"
    checks.expect("the checkpoint lies inside an epoch", place > 0)
    checks.same_batches("until the kill", whole, killed, range(1, DIE_AT + 1))
    checks.same_batches("resumed", whole, resumed, range(SAVE_AT + 1, STEPS + 1))
    checks.expect("parameters equal bit by bit", whole.result["parameters"] == resumed.result["parameters"])
    checks.expect("resumed on 2 hosts: 50 global batches, equal samples", same[1] == same[2])
    checks.expect("resumed on 4 hosts: 50 global batches, equal samples", same[1] == same[4])
    checks.expect("one pass over the photographs: every tile once", reading.every_tile_once)
    checks.expect(
        f"held-out accuracy at least {REQUIRED_ACCURACY:.0%}", resumed.result["accuracy"] >= REQUIRED_ACCURACY
    )
    summary(checks, facts)
    sys.exit(0 if checks.passed else 1)


if __name__ == "__main__":
    main()
