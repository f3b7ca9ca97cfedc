"""The whole demo: write tars, prepare, train, kill, resume on one host and on several. `make demo` runs this script."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from checks import Checks
from digits import BATCH_SIZE
from hosts import resumed_on_hosts
from photographs import read_photographs
from story import DIE_AT, REQUIRED_ACCURACY, SAVE_AT, STEPS, chapter, conclude, prepare, prepare_digits, train
from write_tars import write_digits, write_photographs

from energon_grain.loader import EnergonCheckpointRestore, EnergonDataSource

SCRIPT = "train.py"


def restore_newest(checkpoints: Path, loader: Any) -> None:
    """Restore a loader from the newest checkpoint."""
    with ocp.CheckpointManager(checkpoints.resolve()) as manager:
        manager.restore(manager.latest_step(), args=ocp.args.Composite(loader=EnergonCheckpointRestore(loader)))


def main() -> None:
    """Run the demo. Exit with status 1 if a check fails."""
    root = Path(".demo")
    shutil.rmtree(root, ignore_errors=True)
    digits, photographs = root / "digits", root / "photographs"
    checks, facts = Checks(), {}

    with chapter("Write tars"):
        scans, tiles = write_digits(digits), write_photographs(photographs)
        facts["digits"] = f"{scans:,} scans as PNG + class label"
        facts["photographs"] = f"{tiles:,} tiles as JPEG + caption"
    with chapter("Prepare"):
        prepare_digits(digits)
        captioning = ("--sample-type", "CaptioningSample", "--field-map", '{"image": "jpg", "caption": "txt"}')
        prepare(photographs, "--split-ratio", "train=1", *captioning)

    with chapter("Train without interruption"):
        whole = train(SCRIPT, digits, root / "uninterrupted", "whole")
    with chapter(f"Train, save at step {SAVE_AT}, get killed at step {DIE_AT}"):
        killed = train(SCRIPT, digits, root / "killed", "killed", "--save-at", SAVE_AT, "--die-at", DIE_AT)
    with chapter("Resume in a new process"):
        resumed = train(SCRIPT, digits, root / "killed", "resumed")
    with chapter("Resume on 2 and on 4 hosts"):
        restore = partial(restore_newest, root / "killed" / "checkpoints")
        same = {hosts: resumed_on_hosts(digits, restore, hosts, steps=50) for hosts in (1, 2, 4)}
    with chapter("Read the photographs"):
        reading = read_photographs(photographs, expected=tiles)

    epoch, place = divmod(SAVE_AT * BATCH_SIZE, len(EnergonDataSource(digits, split_part="train")))
    facts["checkpoint"] = f"step {SAVE_AT}: {place:,} samples into epoch {epoch + 1}"
    facts["held-out accuracy"] = f"{resumed.result['accuracy']:.2%} (uninterrupted: {whole.result['accuracy']:.2%})"
    facts["photographs read"] = f"{reading.rate:,.0f} decoded tiles per second"
    checks.expect("checkpoint in the middle of an epoch", place > 0)
    checks.same_batches("until the kill", whole, killed, range(1, DIE_AT + 1))
    checks.same_batches("resumed", whole, resumed, range(SAVE_AT + 1, STEPS + 1))
    checks.expect("parameters equal bit for bit", whole.result["parameters"] == resumed.result["parameters"])
    checks.expect("resumed on 2 hosts: 50 global batches, equal samples", same[1] == same[2])
    checks.expect("resumed on 4 hosts: 50 global batches, equal samples", same[1] == same[4])
    checks.expect("one pass over the photographs: every tile read once", reading.every_tile_once)
    checks.expect(
        f"held-out accuracy at least {REQUIRED_ACCURACY:.0%}", resumed.result["accuracy"] >= REQUIRED_ACCURACY
    )
    conclude("energon-grain demo", checks, facts)


if __name__ == "__main__":
    main()
