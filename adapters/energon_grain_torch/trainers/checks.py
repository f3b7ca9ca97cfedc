# SPDX-License-Identifier: Apache-2.0
"""Checks that the trainer modules share: installed packages, and the ranks of a dataset."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from energon_grain.errors import ConfigError, MissingPackageError
from energon_grain.stream.worker_config import WorkerConfig


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


def check_ranks(config: WorkerConfig, processes: int, advice: str) -> None:
    """Check that a dataset is not made for one rank where several processes train with data parallelism.

    Args:
        config: The worker configuration of the dataset.
        processes: Number of processes that train on different data.
        advice: How to make the dataset for all ranks.

    Raises:
        ConfigError: Every process would train on the same batches.
    """
    if processes > 1 and config.world_size == 1 and config.data_parallel_group is None:
        raise ConfigError(
            f"the dataset is made for 1 rank and {processes} processes train: each of them would get the same batches; "
            f"{advice}"
        )
