"""Results of worker processes, handed over as files in memory.

A worker writes an encoded chunk into an anonymous file and sends its descriptor, as PyTorch does with tensors; but the
file has no name (`memfd`), so `/dev/shm` may be small, and nothing is left behind when a process is killed. The
receiver maps it: arrays of the result lie in the mapping and are not copied.
"""

from __future__ import annotations

import os
from multiprocessing import reduction
from typing import Any

import torch

from energon_grain.sources.source import Source
from energon_grain.stream.worker_process import SampleUnpickler, memory_file, part_offsets, write_parts


class SharedResult:
    """A result on its way from a worker process.

    Attributes:
        seconds: What making the result took.
    """

    def __init__(self, descriptor: int, sizes: list[int], seconds: float) -> None:
        self._descriptor = descriptor
        self._sizes = sizes
        self.seconds = seconds

    @classmethod
    def write(cls, parts: list[memoryview], *, seconds: float) -> SharedResult:
        """Write a result, in the worker.

        Args:
            parts: What `WorkerStage.answer` returned.
            seconds: What making the result took.
        """
        sizes = [part.nbytes for part in parts]
        _, total = part_offsets(sizes)
        descriptor = memory_file()
        os.ftruncate(descriptor, total)
        write_parts(descriptor, parts)
        return cls(descriptor, sizes, seconds)

    def read(self, sources: list[Source]) -> Any:
        """The result, in the main process.

        Args:
            sources: The main process's.
        """
        offsets, total = part_offsets(self._sizes)
        # The mapping lives as long as an array in it does. That of Python's `mmap` would keep the file open so long.
        mapping = torch.from_file(f"/dev/fd/{self._descriptor}", shared=True, size=total, dtype=torch.uint8)
        memory = mapping.numpy().data
        parts = [memory[offset : offset + size] for offset, size in zip(offsets, self._sizes, strict=True)]
        return SampleUnpickler(parts[0], parts[1:], sources).load()

    def __reduce__(self) -> tuple[Any, ...]:
        # The sending process keeps the duplicate until it is fetched.
        return _received, (reduction.DupFd(self._descriptor), self._sizes, self.seconds)

    def __del__(self) -> None:
        os.close(self._descriptor)


def _received(descriptor: Any, sizes: list[int], seconds: float) -> SharedResult:
    return SharedResult(descriptor.detach(), sizes, seconds)
