"""Train the digit classifier from tars, with checkpoints of model and loader.

    python train.py DATASET --notes notes.jsonl --checkpoints DIR [--save-at STEP] [--die-at STEP]

Training starts from the newest checkpoint in DIR, if one exists. `--notes` records the contents of every batch for the
comparisons of the demo.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from bookkeeping import TrainingProgress, parse_options
from classifier import count_correct, init_model, train_step
from digits import DigitEncoder, digest, train_dataset

from energon_grain import WorkerConfig, get_savable_loader, get_val_dataset
from energon_grain.loader import EnergonCheckpointRestore, EnergonCheckpointSave


def accuracy(parameters, path: Path) -> float:
    """Return the share of correct predictions on the held-out split part."""
    right = total = 0
    for batch in get_val_dataset(path, batch_size=64, task_encoder=DigitEncoder(augment=False)):
        right += int(count_correct(parameters, batch.image, batch.label))
        total += len(batch.label)
    return right / total


def main() -> None:
    """Train, record every batch, save a checkpoint, and kill the process at `--die-at`."""
    args = parse_options(__doc__)
    model = init_model(seed=0)
    loader = get_savable_loader(
        train_dataset(args.dataset, DigitEncoder(augment=True), WorkerConfig.default_worker_config(num_workers=2))
    )
    manager = ocp.CheckpointManager(args.checkpoints.resolve())
    first_step = 0
    if (step := manager.latest_step()) is not None:
        restore = ocp.args.Composite(model=ocp.args.StandardRestore(model), loader=EnergonCheckpointRestore(loader))
        model, first_step = manager.restore(step, args=restore)["model"], step

    with TrainingProgress(first_step, args.steps) as progress, args.notes.open("w") as notes:
        for step in range(first_step + 1, args.steps + 1):
            batch = next(loader)
            learning_rate = 0.06 * (1 - step / args.steps)
            model, loss = train_step(model, batch, learning_rate)
            seen = f"{batch.__key__} {digest([batch.image, batch.label])}"  # in order
            print(json.dumps({"step": step, "batch": [seen]}), file=notes)
            progress.show(step, loss)
            if step == args.save_at:
                save = ocp.args.Composite(model=ocp.args.StandardSave(model), loader=EnergonCheckpointSave(loader))
                manager.save(step, args=save)
                manager.wait_until_finished()
            if step == args.die_at:
                notes.flush()
                progress.stop()
                os.kill(os.getpid(), signal.SIGKILL)
        result = {
            "accuracy": accuracy(model["parameters"], args.dataset),
            "parameters": digest(jax.tree.leaves(model)),
        }
        print(json.dumps(result), file=notes)
    loader.close()
    manager.close()


if __name__ == "__main__":
    main()
