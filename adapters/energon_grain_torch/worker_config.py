# SPDX-License-Identifier: Apache-2.0
"""Who reads, as `torch.distributed` says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import torch.distributed as dist

from energon_grain.errors import public
from energon_grain.stream import worker_config


@public
@dataclass
class WorkerConfig(worker_config.WorkerConfig):
    """One data-parallel rank and its workers.

    As `energon_grain.WorkerConfig`, but for what workers are.

    Attributes:
        num_workers: Workers that read and encode ahead of the training loop; 0: everything happens inside `next`;
            "auto": as many threads as turn out to be best while it runs.
        data_parallel_group: The process group whose ranks read different data; None: all processes.
        worker_type: "dataloader" (default): processes as a `torch.utils.data.DataLoader` starts them. "thread": threads
            of this process, which suit reading and decoding and hooks that say `thread_safe`; the default with
            `num_workers="auto"`. "process": the core's own processes, which need no `__main__` guard.
    """

    worker_types: ClassVar[tuple[str, ...]] = ("dataloader", "thread", "process")

    worker_type: Literal["dataloader", "thread", "process"] = field(default="dataloader", compare=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        if self.num_workers == "auto" and self.worker_type == "dataloader":
            self.worker_type = "thread"  # pyright: ignore[reportIncompatibleVariableOverride]
        super().__post_init__()

    @classmethod
    def default_worker_config(cls, num_workers: int | Literal["auto"] = 4, data_parallel_group: Any = None) -> Self:
        """The configuration of this process: rank and world of the group, where `torch.distributed` is initialised.

        Without it there is one rank.
        """
        rank, world_size = 0, 1
        if dist.is_available() and dist.is_initialized():
            rank, world_size = dist.get_rank(data_parallel_group), dist.get_world_size(data_parallel_group)
        return cls(rank=rank, world_size=world_size, num_workers=num_workers, data_parallel_group=data_parallel_group)

    def global_rank(self) -> int:
        """Number of this process among all of the job, not of the group."""
        if self.data_parallel_group is None:
            return self.rank
        return dist.get_global_rank(self.data_parallel_group, self.rank)
