"""The core's entry points, with this backend's defaults: ranks of `torch.distributed`, and tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from energon_grain.datasets import get_datasets
from energon_grain_torch.iterable_dataset import StreamDataset
from energon_grain_torch.task_encoder import DefaultTaskEncoder
from energon_grain_torch.worker_config import WorkerConfig

F = TypeVar("F", bound=Callable[..., Any])


def _with_defaults(function: F) -> F:
    @wraps(function)
    def call(path: Any, **options: Any) -> Any:
        if options.get("worker_config") is None:
            options["worker_config"] = WorkerConfig.default_worker_config(num_workers=0)
        if options.get("task_encoder") is None:
            options["task_encoder"] = DefaultTaskEncoder()
        return _for_torch(function(path, **options))

    return cast("F", call)


def _for_torch(made: Any) -> Any:
    """Datasets as PyTorch's: one, or those of a list of (dataset, leaf)."""
    if isinstance(made, list):
        return [(_for_torch(dataset), leaf) for dataset, leaf in cast("list[tuple[Any, Any]]", made)]
    return StreamDataset(worker_config=made.worker_config, dataset=made)


get_dataset_from_config = _with_defaults(get_datasets.get_dataset_from_config)
get_train_dataset = _with_defaults(get_datasets.get_train_dataset)
get_val_dataset = _with_defaults(get_datasets.get_val_dataset)
get_val_datasets = _with_defaults(get_datasets.get_val_datasets)
