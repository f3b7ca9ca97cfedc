# SPDX-License-Identifier: Apache-2.0
"""`EnergonTrainer`: the `Trainer` of Hugging Face's transformers on our loader, with exact resume."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.errors import ConfigError, StateError, public
from energon_grain.stream.passes import PassPlan
from energon_grain_torch.loader import SavableDataLoader, get_savable_loader
from energon_grain_torch.trainers.checks import (
    checked,
    data_parallel_size,
    data_ranks_of_all,
    rows_of_ranks,
    trainer_packages,
)

with trainer_packages("hf", transformers="transformers>=5", accelerate="accelerate>=1.10"):
    from accelerate.utils import recursively_apply
    from transformers import Trainer
    from transformers.trainer_utils import get_last_checkpoint

STATE_FILE = "energon_loader.json"
"""Name of the file with the loader's state in a checkpoint."""
_ADVICE = (
    "make the dataset after `TrainingArguments`, which starts torch.distributed, with "
    "worker_config=WorkerConfig.default_worker_config(…)"
)


class _Passes(IterableDataset[Any]):
    """Passes over a loader, one for each iteration."""

    def __init__(self, batches: Callable[[], Iterator[Any]], samples: int) -> None:
        self._batches = batches
        self._samples = samples

    def __iter__(self) -> Iterator[Any]:
        return self._batches()

    def __len__(self) -> int:
        """Samples of one pass on all ranks."""
        return self._samples


def _unchanged(batch: Any) -> Any:
    return batch


class _PassLoader(DataLoader[Any]):
    """The form in which a `Trainer` iterates over a loader: a `DataLoader` that leaves batches unchanged.

    Args:
        batches: Begins the next iteration.
        steps: Number of batches of one pass on one rank.
        samples: Number of samples of one pass on all ranks.
    """

    def __init__(self, batches: Callable[[], Iterator[Any]], steps: int, samples: int) -> None:
        super().__init__(_Passes(batches, samples), batch_size=None, collate_fn=_unchanged)
        self._steps = steps

    def __len__(self) -> int:
        return self._steps


@public
class EnergonTrainer(Trainer):
    """A `transformers.Trainer` whose datasets are those of `energon_grain_torch`.

    The loader's batches reach the model without further batching, sharding or shuffling: `data_collator` and the
    `dataloader_*` arguments have no effect on them. A typed batch becomes the dictionary `batch.as_dict()`. Fields
    that the model's `forward` does not take are removed unless `remove_unused_columns=False`.

    Each checkpoint holds the state of the loaders of all ranks in `energon_loader.json`.
    `train(resume_from_checkpoint=…)` restores it on any number of ranks and continues with the next batch, without
    reading the batches before it. With `max_steps` unset, an epoch is one pass: `virtual_epoch_length` batches, or one
    pass over the data.

    Make the dataset after the `TrainingArguments`, which start `torch.distributed`, and take the batch size from them:
    `get_train_dataset(…, batch_size=args.per_device_train_batch_size)`. Datasets of other libraries are treated as by
    `Trainer`.

    For another trainer class, inherit from both: `class Mine(EnergonTrainer, Seq2SeqTrainer)`.

    In an evaluation on several ranks the last batch is padded. Padded rows are left out of predictions and metrics.

    Args:
        *args: The arguments of `Trainer`.
        **kwargs: The keyword arguments of `Trainer`.

    Attributes:
        energon_loader: The loader of the training dataset, for `stats()` and `which(step)`. None before `train`.

    Raises:
        ConfigError: The batch size of the training dataset is not that of the arguments, or `auto_find_batch_size` is
            set, which cannot change the batch size of a dataset.
    """

    energon_loader: SavableDataLoader[Any] | None = None
    _checkpoint: Path | None = None
    _resumes = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if _is_ours(self.train_dataset):
            if self.args.auto_find_batch_size:
                raise ConfigError("auto_find_batch_size=True cannot change the batches of this dataset: leave it out")
            _check_batch_size(self.train_dataset, self.args.train_batch_size, "per_device_train_batch_size")

    def make_energon_loader(self, dataset: Any) -> SavableDataLoader[Any]:
        """The loader of a dataset. Override it to pass options to `get_savable_loader`."""
        return get_savable_loader(dataset)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as `Trainer.train` does, with the loader at the position of the checkpoint.

        Args:
            resume_from_checkpoint: Folder of a checkpoint; True: the last one in `output_dir`.
            *args: Further arguments of `Trainer.train`.
            **kwargs: Further keyword arguments of `Trainer.train`.

        Raises:
            StateError: The checkpoint has no state of the loader, or the state cannot be continued.
        """
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(str(self.args.output_dir)) or True
        if self.energon_loader is not None:
            self.energon_loader.close()
            self.energon_loader = None
        self._checkpoint = Path(folder) if isinstance(folder, str) else None
        self._resumes = self._checkpoint is not None
        return super().train(folder, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as `Trainer.save_model` does; a checkpoint also gets the loader's state.

        The state is written first, so that a complete checkpoint has one.
        """
        if _internal_call and output_dir is not None and self.is_in_train and self.energon_loader is not None:
            (state,) = self.energon_loader.state_dict().values()  # collective: all ranks save a checkpoint
            if self.args.should_save:
                Path(output_dir).mkdir(parents=True, exist_ok=True)
                Path(output_dir, STATE_FILE).write_text(state)
        super().save_model(output_dir, _internal_call=_internal_call)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader of the training dataset in the form that `Trainer` expects."""
        dataset: Any = self.train_dataset
        if not _is_ours(dataset):
            return super().get_train_dataloader()
        if self.energon_loader is None:
            self.energon_loader = self._open(dataset)
            if self._checkpoint is not None:
                self.energon_loader.restore_state_global(_read_state(self._checkpoint))
        loader, steps = self.energon_loader, len(dataset)

        def batches() -> Iterator[Any]:
            # `Trainer` drops the batches before its position in the epoch. The loader is past them.
            yield from repeat({}, self._to_skip(steps))
            for batch in loader:  # not `yield from`, which would close the loader at the end of each iteration
                yield self._inputs(batch)

        return _PassLoader(batches, steps, steps * self._global_batch(loader))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """The loader of an evaluation dataset, which has workers only during an evaluation."""
        dataset: Any = eval_dataset
        if dataset is None:
            dataset = self.eval_dataset
        elif isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]  # pyright: ignore[reportOptionalSubscript, reportArgumentType, reportCallIssue]
        return self._evaluation(dataset) if _is_ours(dataset) else super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """The loader of a dataset for predictions."""
        return self._evaluation(test_dataset) if _is_ours(test_dataset) else super().get_test_dataloader(test_dataset)

    def _evaluation(self, dataset: Any) -> DataLoader[Any]:
        _check_batch_size(dataset, self.args.eval_batch_size, "per_device_eval_batch_size")
        config, steps = dataset.worker_config, len(dataset)
        plan = PassPlan.of(dataset.compiled(), config.world_size)
        samples = steps * plan.global_batch if plan.length is None else plan.length
        valid = samples - (steps - 1) * plan.global_batch
        ranks = data_ranks_of_all(config)

        def gather_once(values: Any) -> Any:
            return recursively_apply(lambda rows: rows_of_ranks(rows, ranks), self.accelerator.gather(values))

        def gather_last(values: Any) -> Any:
            return recursively_apply(lambda rows: _valid_rows(rows, valid, config.world_size), gather_once(values))

        def batches() -> Iterator[Any]:
            with self._open(dataset) as loader:
                for number, batch in enumerate(loader, 1):
                    if number == steps and (ranks or config.world_size == self.args.world_size):
                        self.gather_function = gather_last  # `Trainer` resets it after each evaluation
                    elif ranks:
                        self.gather_function = gather_once
                    yield self._inputs(batch)

        return _PassLoader(batches, steps, samples)

    def _open(self, dataset: Any) -> SavableDataLoader[Any]:
        loader = self.make_energon_loader(dataset)
        config, parallelism = loader.stream.config, getattr(self.accelerator, "parallelism_config", None)
        return checked(loader, data_parallel_size(parallelism, self.args.world_size, config), _ADVICE)

    def _global_batch(self, loader: SavableDataLoader[Any]) -> int:
        return (loader.batch_size or 1) * loader.stream.config.world_size

    def _to_skip(self, steps: int) -> int:
        """Number of batches that `Trainer` drops at the beginning of this epoch: those before the checkpoint."""
        resumes, self._resumes = self._resumes, False
        if not resumes or self.args.ignore_data_skip:
            return 0
        accumulated = self.args.gradient_accumulation_steps
        updates = max(1, -(-steps // accumulated))
        return self.state.global_step % updates * accumulated

    def _inputs(self, batch: Any) -> Any:
        """The arguments of the model."""
        values: Any = batch if isinstance(batch, Mapping) or not hasattr(batch, "as_dict") else batch.as_dict()
        if not (self.args.remove_unused_columns and isinstance(values, Mapping)):
            return values
        self._set_signature_columns_if_needed()
        taken = frozenset(self._signature_columns or ())
        return {name: value for name, value in values.items() if name in taken}


def _is_ours(dataset: object) -> bool:
    return isinstance(dataset, SavableDataset)


def _check_batch_size(dataset: Any, of_arguments: int, name: str) -> None:
    batch = dataset.compiled().batch
    if batch is not None and batch.size != of_arguments:
        raise ConfigError(
            f"the dataset has batches of {batch.size} and the TrainingArguments have batches of {of_arguments}, which "
            f"learning-rate schedules, DeepSpeed and logs use: write batch_size=args.{name}"
        )


def _read_state(checkpoint: Path) -> Any:
    file = checkpoint / STATE_FILE
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        raise StateError(
            f"{file} does not exist: this checkpoint was not saved by EnergonTrainer; to begin with the first batch, "
            f"load its model and call train() without resume_from_checkpoint"
        ) from None


def _valid_rows(rows: torch.Tensor, valid: int, ranks: int) -> torch.Tensor:
    """The rows of a last batch that are no padding, of the gathered rows of all ranks.

    Item q of a global batch is row q div ranks of rank q mod ranks.
    """
    number = torch.arange(len(rows), device=rows.device)
    size = len(rows) // ranks
    return rows[number % size * ranks + number // size < valid]
