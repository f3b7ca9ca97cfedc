"""What the PyTorch programs of this folder share: the data and a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from energon_grain_torch import DefaultTaskEncoder, WorkerConfig, get_train_dataset


class Encoder(DefaultTaskEncoder):
    """Samples as dictionaries, of which batches are dictionaries of tensors: what these trainers are made for."""

    def encode_sample(self, sample: Any) -> dict[str, torch.Tensor]:
        return {
            "number": torch.tensor(int(sample.__key__)),
            "pixels": sample.image.float().flatten(),
            "labels": torch.tensor(int(sample.label)),
        }


def train_dataset(path: Path, global_batch: int) -> Any:
    """An endless stream, cut into epochs of eight steps for trainers that think in epochs."""
    worker_config = WorkerConfig.default_worker_config(num_workers=0)
    return get_train_dataset(
        path,
        worker_config=worker_config,
        batch_size=global_batch // worker_config.world_size,
        shuffle_buffer_size=50,
        max_samples_per_sequence=10,
        virtual_epoch_length=8,
        task_encoder=Encoder(),
        seed=1,
    )


class Classifier(nn.Module):
    """As Hugging Face's models: takes a batch by name, and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(10)

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        logits = self.layer(pixels / 255)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def new_classifier(dataset: Any) -> Classifier:
    """A model as wide as the data."""
    model = Classifier()
    model(**next(iter(dataset.dataset)))
    return model
