"""Lightning: a data module that keeps the loader's state.

    torchrun --nproc-per-node 2 train_lightning.py DATASET --checkpoints DIR --notes NOTES [--die-at STEP]

The module saves the loader itself, in the middle of an epoch and at its end; Lightning alone does the former. What
Lightning loses in the middle of an epoch is its own: averages logged with `on_epoch=True` begin anew, gradients that
were accumulated and not yet applied are gone, so save at steps where `accumulate_grad_batches` is complete.
"""

from __future__ import annotations

import os
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from notes import Notes, parse_options
from task import new_classifier, train_dataset

from energon_grain_torch import get_savable_loader

options = parse_options()


class Data(lightning.LightningDataModule):
    """Lightning calls these on every rank, and the state is that of all of them."""

    loader: Any = None
    saved: dict[str, Any] | None = None

    def train_dataloader(self) -> Any:
        self.loader = get_savable_loader(train_dataset(options.data, options.global_batch))
        if self.saved:
            self.loader.load_state_dict(self.saved)
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        return {} if self.loader is None else self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.saved = state_dict


class Model(lightning.LightningModule):
    """The classifier, and notes of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.model = new_classifier(train_dataset(options.data, options.global_batch))
        self.notes = Notes(options)

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        self.notes.add(self.global_step, batch)
        return self.model(**batch)["loss"]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    saved = sorted(options.checkpoints.glob("*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        max_steps=options.steps,
        callbacks=[ModelCheckpoint(options.checkpoints, filename="{step}", every_n_train_steps=3, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), Data(), ckpt_path=saved[-1] if saved else None, weights_only=False)


if __name__ == "__main__":
    main()
