"""Train the digit classifier from tars, with checkpoints of model and loader.

    python train.py DATASET --notes notes.jsonl --checkpoints DIR [--save-at STEP] [--die-at STEP]

Starts from the newest checkpoint in DIR, if there is one. `--notes` records what was in every batch, for the demo to
compare.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from classifier import count_correct, init_model, train_step
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from energon_grain import (
    DefaultTaskEncoder,
    ImageClassificationSample,
    SampleDecoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_grain.loader import EnergonCheckpointRestore, EnergonCheckpointSave

BATCH_SIZE = 32


class DigitEncoder(DefaultTaskEncoder):
    """Grey images in 0..1 as (8, 8) float32 and labels as int32; digits vary a little in training."""

    decoder = SampleDecoder(image_decode="l")

    def __init__(self, *, augment: bool) -> None:
        super().__init__()
        self.augment = augment

    def encode_sample(self, sample: ImageClassificationSample) -> ImageClassificationSample:
        """Called for every sample. `self.rng` is the sample's own generator: replayed samples vary in the same way."""
        sample.label = np.asarray(sample.label, np.int32)
        if self.augment:
            sample.image = vary(sample.image, self.rng)
        return sample


def vary(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shift an image by up to 0.7 pixels in each direction, change its contrast, and add noise."""
    down, right = rng.uniform(-0.7, 0.7, 2)
    top, left = int(np.floor(down)), int(np.floor(right))
    down, right = down - top, right - left
    framed = np.pad(image, 2)
    corner = framed[2 + top : 11 + top, 2 + left : 11 + left]  # (9, 9): neighbours to interpolate between
    rows = (1 - down) * corner[:-1] + down * corner[1:]
    shifted = (1 - right) * rows[:, :-1] + right * rows[:, 1:]
    return (shifted * rng.uniform(0.7, 1.3) + rng.normal(0, 0.08, image.shape)).astype(np.float32)


def train_dataset(path: Path, worker_config: WorkerConfig, batch_size: int = BATCH_SIZE):
    """The training stream: the same samples in the same batches on any number of hosts."""
    return get_train_dataset(
        path,
        worker_config=worker_config,
        batch_size=batch_size,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,  # full shuffle: the data is small and local
        task_encoder=DigitEncoder(augment=True),
        seed=7,
    )


def accuracy(parameters, path: Path) -> float:
    """Share of right answers on the held-out split part."""
    right = total = 0
    for batch in get_val_dataset(path, batch_size=64, task_encoder=DigitEncoder(augment=False)):
        right += int(count_correct(parameters, batch.image, batch.label))
        total += len(batch.label)
    return right / total


def digest(arrays) -> str:
    """A hash of arrays, bit by bit."""
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def main() -> None:
    """Train, note, save, and perhaps die."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--save-at", type=int, default=None)
    parser.add_argument("--die-at", type=int, default=None)
    args = parser.parse_args()

    model = init_model(seed=0)
    loader = get_savable_loader(train_dataset(args.dataset, WorkerConfig.default_worker_config(num_workers=2)))
    manager = ocp.CheckpointManager(args.checkpoints.resolve())
    first_step = 0
    if (step := manager.latest_step()) is not None:
        restore = ocp.args.Composite(model=ocp.args.StandardRestore(model), loader=EnergonCheckpointRestore(loader))
        model, first_step = manager.restore(step, args=restore)["model"], step

    progress = Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with progress, args.notes.open("w") as notes:
        task = progress.add_task("training", total=args.steps, completed=first_step, loss="-")
        for step in range(first_step + 1, args.steps + 1):
            batch = next(loader)
            learning_rate = 0.06 * (1 - step / args.steps)
            model, loss = train_step(model, batch, learning_rate)
            print(
                json.dumps({"step": step, "keys": batch.__key__, "arrays": digest([batch.image, batch.label])}),
                file=notes,
            )
            if step % 25 == 0:
                progress.update(task, completed=step, loss=f"{float(loss):.3f}")
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
