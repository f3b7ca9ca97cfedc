"""Fine-tuning with Hugging Face's Trainer, resumed exactly after a crash, on any number of ranks.

    torchrun --nproc-per-node 2 train_huggingface.py DATASET --checkpoints DIR [--steps N]

DATASET has images of 16 × 16 with labels, such as `energon_grain.testing.make_classification_dataset` makes.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from energon_grain_torch import DefaultTaskEncoder, WorkerConfig, get_train_dataset
from energon_grain_torch.trainers.hf import EnergonTrainer

GLOBAL_BATCH = 12


class Encoder(DefaultTaskEncoder):
    """Makes dictionaries whose keys are the arguments of the model."""

    def encode_sample(self, sample: Any) -> dict[str, torch.Tensor]:
        return {"pixels": sample.image.float().flatten() / 255, "labels": torch.tensor(int(sample.label))}


class Classifier(torch.nn.Module):
    """A model with the interface of transformers: it takes the batch as keyword arguments and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3 * 16 * 16, 10)

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(pixels)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    arguments = TrainingArguments(
        output_dir=options.checkpoints,
        max_steps=options.steps,
        save_steps=3,
        per_device_train_batch_size=GLOBAL_BATCH // int(os.environ.get("WORLD_SIZE", "1")),
        learning_rate=0.1,
        report_to=[],
        disable_tqdm=True,
    )
    dataset = get_train_dataset(
        options.data,
        worker_config=WorkerConfig.default_worker_config(num_workers=0),
        batch_size=arguments.per_device_train_batch_size,
        shuffle_buffer_size=50,
        max_samples_per_sequence=10,
        virtual_epoch_length=8,
        task_encoder=Encoder(),
        seed=1,
    )
    trainer = EnergonTrainer(model=Classifier(), args=arguments, train_dataset=dataset)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(options.checkpoints))


if __name__ == "__main__":
    main()
