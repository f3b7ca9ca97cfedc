"""A training loop with accelerate, resumed exactly after a crash, on any number of ranks.

    accelerate launch train_accelerate.py DATASET --checkpoints DIR [--steps N]

DATASET has images of 16 × 16 with labels, such as `energon_grain.testing.make_classification_dataset` makes.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from energon_grain_torch import DefaultTaskEncoder, WorkerConfig, get_train_dataset
from energon_grain_torch.trainers.accelerate import prepare

GLOBAL_BATCH = 12


class Encoder(DefaultTaskEncoder):
    """Makes dictionaries of tensors."""

    def encode_sample(self, sample: Any) -> dict[str, torch.Tensor]:
        return {"pixels": sample.image.float().flatten() / 255, "labels": torch.tensor(int(sample.label))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    accelerator = Accelerator()
    dataset = get_train_dataset(
        options.data,
        worker_config=WorkerConfig.default_worker_config(num_workers=0),
        batch_size=GLOBAL_BATCH // accelerator.num_processes,
        shuffle_buffer_size=50,
        max_samples_per_sequence=10,
        task_encoder=Encoder(),
        seed=1,
    )
    model = torch.nn.Linear(3 * 16 * 16, 10)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = prepare(accelerator, dataset)

    done = 0
    saved = sorted(options.checkpoints.glob("step*"), key=lambda path: int(path.name[4:]))
    if saved:
        accelerator.load_state(str(saved[-1]))
        done = int(saved[-1].name[4:])
    for step, batch in zip(range(done + 1, options.steps + 1), loader, strict=False):
        loss = torch.nn.functional.cross_entropy(model(batch["pixels"]), batch["labels"])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            save(accelerator, options.checkpoints, step)
    accelerator.end_training()


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Save into a temporary folder, and rename it when it is complete."""
    unfinished = folder / "unfinished"
    accelerator.save_state(str(unfinished))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.move(unfinished, folder / f"step{step}")
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
