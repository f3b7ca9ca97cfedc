"""What loaders note for those who debug: one JSON object a line, in a file for each process or through logging."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LOGGER = logging.getLogger("energon_grain.worker")
_worker_number: int | None = None


def this_is_worker(number: int) -> None:
    """Say that this process is worker `number` (0, 1, …) of a host, for `{worker_id}` in the names of its files."""
    global _worker_number
    _worker_number = number


@dataclass(frozen=True, slots=True)
class WorkerLog:
    """Where lines go. Picklable: in another process they go into that process's file.

    Lines are appended, each in one piece, so several processes and runs may share a file.

    Attributes:
        path: `{worker_id}` and `{pid}` in it are filled in; None: lines go to the logger `energon_grain.worker`.
        rank: This host.
        num_workers: Its workers.
    """

    path: str | None
    rank: int
    num_workers: int

    @property
    def worker_id(self) -> int:
        """Different in every process of all hosts: that of host r is r · (num_workers + 1), its workers' follow."""
        return self.rank * (self.num_workers + 1) + (0 if _worker_number is None else 1 + _worker_number)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write a line.

        Raises:
            OSError: The file cannot be written.
        """
        line = json.dumps(entry)
        if self.path is None:
            _LOGGER.info("%s", line)
            return
        path = self.path.format(worker_id=self.worker_id, pid=os.getpid())
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)
