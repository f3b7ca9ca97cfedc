# SPDX-License-Identifier: Apache-2.0
"""The reader configuration of `torch.distributed`."""

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

    Like `energon_grain.WorkerConfig`, with PyTorch's process group and kinds of workers.

    Example:
        WorkerConfig.default_worker_config(num_workers=4)  # this rank and the world of torch.distributed
        WorkerConfig(rank=0, world_size=1, num_workers="auto")

    Attributes:
        num_workers: Workers that read and encode ahead of the training loop. 0: `next` does all the work. "auto":
            the number of threads is tuned while the loader runs.
        data_parallel_group: The process group whose ranks read different data; None: all processes.
        worker_type: "dataloader" (default): processes started like those of a `torch.utils.data.DataLoader`. "thread":
            threads of this process, for reading, decoding and `thread_safe` hooks; the default with
            `num_workers="auto"`. "process": the core's own processes, which need no `__main__` guard. "ray": Ray
            actors, see `energon_grain.cluster.RayPool`.
    """

    worker_types: ClassVar[tuple[str, ...]] = ("dataloader", "thread", "process", "ray")

    worker_type: Literal["dataloader", "thread", "process", "ray"] = field(default="dataloader", compare=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        if self.num_workers == "auto" and self.worker_type == "dataloader":
            self.worker_type = "thread"  # pyright: ignore[reportIncompatibleVariableOverride]
        super().__post_init__()

    @classmethod
    def default_worker_config(
        cls, num_workers: int | Literal["auto"] = 4, data_parallel_group: Any = None, workers: Any = None
    ) -> Self:
        """Return the configuration of this process: rank and world of the group, if `torch.distributed` is initialised.

        Otherwise there is one rank.
        """
        rank, world_size = 0, 1
        if dist.is_available() and dist.is_initialized():
            rank, world_size = dist.get_rank(data_parallel_group), dist.get_world_size(data_parallel_group)
        return cls(
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
            data_parallel_group=data_parallel_group,
            workers=workers,
        )

    def global_rank(self) -> int:
        """Return the rank of this process in the whole job, not in the group."""
        if self.data_parallel_group is None:
            return self.rank
        return dist.get_global_rank(self.data_parallel_group, self.rank)
