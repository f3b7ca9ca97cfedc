# SPDX-License-Identifier: Apache-2.0
"""Checks that the trainer modules share: installed packages, and the ranks of a dataset."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from energon_grain.errors import ConfigError, MissingPackageError
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain_torch.loader import SavableDataLoader


@contextmanager
def trainer_packages(module: str, **packages: str) -> Generator[None]:
    """A context for the imports of a trainer module: a missing package raises an error with the command to install it.

    Args:
        module: Name of the module below `energon_grain_torch.trainers`.
        **packages: Name of each package as it is imported, and its requirement.

    Raises:
        MissingPackageError: One of the packages is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in packages:
            raise
        requirements = " ".join(f"'{requirement}'" for requirement in packages.values())
        raise MissingPackageError(
            f"energon_grain_torch.trainers.{module} needs the package {missing}, which is not installed: "
            f"pip install {requirements}"
        ) from error


def check_ranks(config: WorkerConfig, processes: int | None, advice: str) -> None:
    """Check that processes that train with data parallelism get different batches.

    Args:
        config: The worker configuration of the dataset.
        processes: Number of processes that train on different data. None: unknown.
        advice: How to make the dataset for all ranks.

    Raises:
        ConfigError: Several of them would train on the same batches.
    """
    if processes is None:
        return
    if config.replicas is not None and config.world_size != processes:
        raise ConfigError(
            f"the dataset has {config.world_size} data ranks of {len(config.replicas.ranks)} replicas and {processes} "
            f"processes train with data parallelism: replicas are for ranks of tensor, context or pipeline "
            f"parallelism. Configure the trainer for these, or {advice}"
        )
    if processes > 1 and config.world_size == 1 and config.data_parallel_group is None:
        raise ConfigError(
            f"the dataset is made for 1 rank and {processes} processes train: each of them would get the same batches; "
            f"{advice}"
        )


def checked(loader: SavableDataLoader[Any], processes: int | None, advice: str) -> SavableDataLoader[Any]:
    """Return a loader after `check_ranks`. Closes it if that raises."""
    try:
        check_ranks(loader.stream.config, processes, advice)
    except ConfigError:
        loader.close()
        raise
    return loader


def data_parallel_size(parallelism: Any, processes: int, config: WorkerConfig) -> int | None:
    """Return the number of processes that train on different data with accelerate.

    Args:
        parallelism: Its `ParallelismConfig`, if any.
        processes: Number of processes.
        config: The worker configuration of the dataset.

    Returns:
        None: with a `ParallelismConfig` but without replicas, where each rank may read what it likes.
    """
    if parallelism is None:
        return processes
    return None if config.replicas is None else int(parallelism.data_parallel_size)


def data_ranks_of_all(config: WorkerConfig) -> list[int]:
    """Return the data rank of each process, if the configuration has replicas; otherwise nothing. Collective."""
    if config.replicas is None or not dist.is_initialized():
        return []
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, config.rank)
    return found


def rows_of_ranks(rows: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """Return the gathered rows of one process of each data rank, in the order of data ranks.

    Args:
        rows: (processes * n, …): rows of all processes.
        ranks: Data rank of each process; none: each has its own.
    """
    if not ranks:
        return rows
    of_process = rows.reshape(len(ranks), -1, *rows.shape[1:])
    chosen = [ranks.index(rank) for rank in range(max(ranks) + 1)]
    return of_process[chosen].flatten(0, 1)
