"""The demo in PyTorch: train, lose a rank, resume on more ranks, read with the core. `make demo-torch` runs it."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from backends import same_in_both
from checks import Checks
from digits import BATCH_SIZE
from hosts import resumed_on_hosts
from story import DIE_AT, REQUIRED_ACCURACY, SAVE_AT, STEPS, chapter, conclude, prepare_digits, train
from write_tars import write_digits

SCRIPT = "train_torch.py"


def main() -> None:
    """Run the demo. Exit with status 1 if a check fails."""
    root = Path(".demo-torch")
    shutil.rmtree(root, ignore_errors=True)
    digits = root / "digits"
    checks, facts = Checks(), {}

    with chapter("Write tars, prepare"):
        facts["digits"] = f"{write_digits(digits):,} scans as PNG + class label"
        prepare_digits(digits)
    with chapter("Train on one rank without interruption"):
        whole = train(SCRIPT, digits, root / "uninterrupted", "whole")
    with chapter(f"Train on 2 ranks, save at step {SAVE_AT}, lose a rank at step {DIE_AT}"):
        killed = train(SCRIPT, digits, root / "killed", "killed", "--save-at", SAVE_AT, "--die-at", DIE_AT, ranks=2)
    with chapter("Resume on 4 ranks"):
        resumed = train(SCRIPT, digits, root / "killed", "resumed", ranks=4)
    with chapter("Read the same batches with the core alone"):
        saved = torch.load(root / "killed" / "checkpoints" / "checkpoint.pt")["loader"]
        facts["state of the loader"] = f"step {SAVE_AT}, {SAVE_AT * BATCH_SIZE:,} samples: {len(str(saved))} characters"
        core = resumed_on_hosts(digits, lambda loader: loader.restore_state_global(saved), hosts=2, steps=50)
        checks.expect("100 batches in both backends: equal bit for bit", same_in_both(digits, None, steps=100))
        checks.expect("100 from the state of 2 ranks: equal bit for bit", same_in_both(digits, saved, steps=100))
    then = range(SAVE_AT + 1, SAVE_AT + 51)
    checks.expect("50 from it on 2 hosts of the core: equal samples", core == [whole.batches[step] for step in then])
    checks.same_batches("2 ranks until the kill", whole, killed, range(1, DIE_AT + 1))
    checks.same_batches("resumed on 4 ranks", whole, resumed, range(SAVE_AT + 1, STEPS + 1))
    facts["held-out accuracy"] = f"{resumed.result['accuracy']:.2%} (uninterrupted: {whole.result['accuracy']:.2%})"
    checks.expect(
        f"held-out accuracy at least {REQUIRED_ACCURACY:.0%}", resumed.result["accuracy"] >= REQUIRED_ACCURACY
    )
    conclude("energon-grain demo in PyTorch", checks, facts)


if __name__ == "__main__":
    main()
