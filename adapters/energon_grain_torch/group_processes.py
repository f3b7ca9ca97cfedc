"""The processes of a `torch.distributed` group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class GroupProcesses:
    """The processes of a group. See `energon_grain.stream.cursor.HostProcesses`.

    Args:
        group: Their process group; None: all processes.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    @property
    def rank(self) -> int:
        """Number of this process among all of the job."""
        return dist.get_rank()

    def all_gather(self, data: bytes) -> list[bytes]:
        """What each process of the group brings, in the order of their ranks."""
        gathered: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(gathered, data, group=self._group)
        return gathered

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process of the group."""
        # Tensors must live where the backend can reach them.
        device = "cuda" if dist.get_backend(self._group) == "nccl" else "cpu"
        flags = torch.tensor([int(flag)], device=device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        return bool(flags.item())


def group_processes(group: Any) -> GroupProcesses | None:
    """The processes, where the program initialised `torch.distributed`."""
    return GroupProcesses(group) if dist.is_available() and dist.is_initialized() else None
