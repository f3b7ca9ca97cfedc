"""Tiny models and runs for `tests/torch/test_trainers.py`, some of which run on several ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from energon_grain_torch import (
    Batch,
    ConfigError,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
)


class Encoder(DefaultTaskEncoder):
    """Dictionaries of tensors, with the number of each sample."""

    def encode_sample(self, sample: Any) -> Any:
        return {
            "number": torch.tensor(int(sample.__key__)),
            "pixels": sample.image.float().flatten() / 255,
            "labels": torch.tensor(int(sample.label)),
        }


@dataclass(kw_only=True)
class Row(Sample):
    pixels: torch.Tensor
    labels: torch.Tensor
    extra: torch.Tensor


@dataclass(kw_only=True)
class Rows(Batch):
    pixels: torch.Tensor
    labels: torch.Tensor
    extra: torch.Tensor


class Typed(DefaultTaskEncoder):
    """The same in types, with a field that the model does not take."""

    def encode_sample(self, sample: Any) -> Any:
        pixels, label = sample.image.float().flatten() / 255, torch.tensor(int(sample.label))
        return Row.derive_from(sample, pixels=pixels, labels=label, extra=label)

    def batch(self, samples: list[Any]) -> Any:
        return Rows.from_samples(samples)


def train(
    data: Path, *, batch_size: int = 4, virtual_epoch_length: int = 7, encoder: Any = None, **options: Any
) -> Any:
    return get_train_dataset(
        data,
        worker_config=options.pop("worker_config", None) or WorkerConfig.default_worker_config(num_workers=0),
        batch_size=batch_size,
        shuffle_buffer_size=20,
        max_samples_per_sequence=5,
        virtual_epoch_length=virtual_epoch_length,
        task_encoder=encoder or Encoder(),
        **options,
    )


def validation(data: Path, batch_size: int = 4) -> Any:
    """The training split, each sample once."""
    return get_val_dataset(
        data,
        split_part="train",
        worker_config=WorkerConfig.default_worker_config(num_workers=0),
        batch_size=batch_size,
        task_encoder=Encoder(),
    )


class Model(torch.nn.Module):
    """Notes the numbers of the samples that it trains on; its predictions are numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(768, 10)
        self.seen: list[list[int]] = []
        self.got: dict[str, Any] = {}

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor, number: Any = None) -> Any:
        self.got = {"pixels": pixels, "labels": labels} | ({} if number is None else {"number": number})
        if self.training and number is not None:
            self.seen.append(number.tolist())
        loss = torch.nn.functional.cross_entropy(self.layer(pixels), labels)
        return {"loss": loss, "logits": torch.zeros(len(labels), 1) if number is None else number[:, None]}


def trainer_of(dataset: Any, folder: Path, *, evaluated: Any = None, **arguments: Any) -> Any:
    from transformers import TrainingArguments

    from energon_grain_torch.trainers.hf import EnergonTrainer

    given = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "save_steps": 1,
        "learning_rate": 0.1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    numbers: list[int] = []

    def metrics(found: Any) -> dict[str, float]:
        numbers.extend(found.predictions[:, 0].astype(int).tolist())
        return {"labels": float(len(found.label_ids))}

    trainer = EnergonTrainer(
        model=Model(),
        args=TrainingArguments(output_dir=str(folder), **given | arguments),
        train_dataset=dataset,
        eval_dataset=evaluated,
        compute_metrics=metrics,
    )
    trainer.numbers = numbers  # type: ignore[attr-defined]
    return trainer


OF_DATASETS = ("virtual_epoch_length", "encoder", "repeat", "worker_config")


def trainer(data: Path, folder: Path, **options: Any) -> Any:
    of_dataset = {name: options.pop(name) for name in OF_DATASETS if name in options}
    return trainer_of(train(data, **of_dataset), folder, **options)


def evaluate(data: Path, folder: Path) -> tuple[float, list[int], int]:
    """Rows of an evaluation, the numbers of its samples, and rows of a prediction."""
    as_launched()
    dataset = validation(data)
    made = trainer_of(None, folder, evaluated={"all": dataset})
    found = made.evaluate()["eval_all_labels"]
    numbers = sorted(made.numbers)
    return found, numbers, len(made.predict(dataset).predictions)


def as_launched() -> None:
    """Set the variables by which accelerate finds the process group that is there already."""
    if dist.is_initialized():
        rank, ranks = str(dist.get_rank()), str(dist.get_world_size())
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def for_one_rank(data: Path, folder: Path) -> dict[str, str]:
    """The errors about a dataset that is made for one rank."""
    as_launched()
    from accelerate import Accelerator

    from energon_grain_torch.trainers.accelerate import prepare

    def dataset() -> Any:
        return train(data, worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0))

    errors: dict[str, str] = {}
    runs: dict[str, Any] = {
        "hf": lambda: trainer_of(dataset(), folder, max_steps=1).train(),
        "accelerate": lambda: prepare(Accelerator(cpu=True), dataset()),
    }
    for name, run in runs.items():
        try:
            run()
        except ConfigError as error:
            errors[name] = str(error)
    return errors


def fit(data: Path, folder: Path, *, validated: bool = False, ckpt_path: Any = None, **options: Any) -> Any:
    """Fit a module of Lightning that notes the numbers of the samples that it gets."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from energon_grain_torch.trainers.lightning import EnergonDataModule

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()
            self.seen: list[list[int]] = []
            self.validated: list[list[int]] = []

        def training_step(self, batch: dict[str, Any], _: int) -> Any:
            self.seen.append(batch["number"].tolist())
            return self.model(**batch)["loss"]

        def validation_step(self, batch: dict[str, Any], _: int) -> None:
            self.validated.append(batch["number"].tolist())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    fitter = lightning.Trainer(
        accelerator="cpu",
        callbacks=[ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"devices": 1} | options,
    )
    module = Module()
    datasets = EnergonDataModule(
        lambda: train(data, virtual_epoch_length=5), (lambda: validation(data)) if validated else None
    )
    fitter.fit(module, datasets, ckpt_path=ckpt_path)
    assert datasets.loader is not None
    datasets.loader.close()
    return module
