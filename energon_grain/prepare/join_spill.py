"""Records set aside by partition: in memory where there is one partition, else in a file for each."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

_RECORD_WORDS = 2


class Spill:
    """Pairs of 64-bit numbers, taken in any order and given back partition by partition.

    Args:
        folder: Where the files lie.
        name: Begins their names.
        partitions: At most a few hundred, as every one is an open file while records are taken.
    """

    def __init__(self, folder: Path, name: str, partitions: int) -> None:
        self.partitions = partitions
        self._paths = [folder / f"{name}-{number}" for number in range(partitions)]
        self._kept: list[npt.NDArray[np.uint64]] = []
        self._stack = contextlib.ExitStack()
        self._files: list[BinaryIO] = []
        for path in self._paths if partitions > 1 else ():
            file = open(path, "wb", buffering=1 << 16)  # noqa: SIM115 (closed by `finish`)
            self._files.append(self._stack.enter_context(file))

    def add(
        self, partition: npt.NDArray[np.int64], first: npt.NDArray[np.uint64], second: npt.NDArray[np.int64]
    ) -> None:
        """Set pairs aside; `partition` says of each where."""
        if not len(first):
            return
        records = np.empty((len(first), _RECORD_WORDS), np.uint64)
        if self.partitions == 1:
            records[:, 0], records[:, 1] = first, second.view(np.uint64)
            self._kept.append(records)
            return
        order = np.argsort(partition.astype(np.uint16), kind="stable")
        records[:, 0], records[:, 1] = first[order], second.view(np.uint64)[order]
        ends = np.cumsum(np.bincount(partition, minlength=self.partitions)).tolist()
        begin = 0
        for number, end in enumerate(ends):
            if end > begin:
                self._files[number].write(records[begin:end].data.cast("B"))
            begin = end

    def finish(self) -> None:
        """No more records will come."""
        self._stack.close()

    def take(self, partition: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """The pairs of a partition, in the order in which they came."""
        if self.partitions == 1:
            records = np.concatenate(self._kept) if self._kept else np.zeros((0, _RECORD_WORDS), np.uint64)
            self._kept = [records]
        else:
            records = np.fromfile(self._paths[partition], np.uint64).reshape(-1, _RECORD_WORDS)
        return np.ascontiguousarray(records[:, 0]), np.ascontiguousarray(records[:, 1]).view(np.int64)

    def replace(self, partition: int, first: npt.NDArray[np.uint64], second: npt.NDArray[np.int64]) -> None:
        """Put other pairs in the place of those of a partition."""
        records = np.stack([first, second.view(np.uint64)], axis=1)
        if self.partitions == 1:
            self._kept = [records]
        else:
            records.tofile(self._paths[partition])

    def remove(self) -> None:
        """Delete everything."""
        self._stack.close()
        self._kept = []
        for path in self._paths if self.partitions > 1 else ():
            path.unlink(missing_ok=True)
