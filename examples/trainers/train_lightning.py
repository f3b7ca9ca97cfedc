"""Training with Lightning, resumed exactly after a crash, on any number of ranks.

    torchrun --nproc-per-node 2 train_lightning.py DATASET --checkpoints DIR [--steps N]

DATASET has images of 16 × 16 with labels, such as `energon_grain.testing.make_classification_dataset` makes.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from energon_grain_torch import DefaultTaskEncoder, WorkerConfig, get_train_dataset
from energon_grain_torch.trainers.lightning import EnergonDataModule

GLOBAL_BATCH = 12


class Encoder(DefaultTaskEncoder):
    """Makes dictionaries of tensors."""

    def encode_sample(self, sample: Any) -> dict[str, torch.Tensor]:
        return {"pixels": sample.image.float().flatten() / 255, "labels": torch.tensor(int(sample.label))}


class Classifier(lightning.LightningModule):
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3 * 16 * 16, 10)

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layer(batch["pixels"]), batch["labels"])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))

    def train_dataset() -> Any:
        return get_train_dataset(
            options.data,
            worker_config=WorkerConfig.default_worker_config(num_workers=0),
            batch_size=GLOBAL_BATCH // ranks,
            shuffle_buffer_size=50,
            max_samples_per_sequence=10,
            virtual_epoch_length=8,
            task_encoder=Encoder(),
            seed=1,
        )

    trainer = lightning.Trainer(
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        max_steps=options.steps,
        callbacks=[ModelCheckpoint(options.checkpoints, filename="{step}", every_n_train_steps=3, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    saved = sorted(options.checkpoints.glob("*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))
    trainer.fit(Classifier(), EnergonDataModule(train_dataset), ckpt_path=saved[-1] if saved else None)


if __name__ == "__main__":
    main()
