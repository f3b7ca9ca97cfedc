"""The processes of `jax.distributed`."""

from __future__ import annotations

import sys

import numpy as np

from energon_grain.stream.cursor import Cursor, gather_cursor


class JaxProcesses:
    """All processes of an initialised `jax.distributed`. See `stream.cursor.HostProcesses`."""

    @property
    def rank(self) -> int:
        """This process's index."""
        return int(sys.modules["jax"].process_index())

    def all_gather(self, data: bytes) -> list[bytes]:
        """What each process brings, in the order of processes."""
        from jax.experimental import multihost_utils

        lengths = np.asarray(multihost_utils.process_allgather(np.array([len(data)], np.int32))).reshape(-1)
        padded = np.zeros(int(lengths.max()), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(lengths), -1)
        return [rows[number, :length].tobytes() for number, length in enumerate(lengths.tolist())]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        from jax.experimental import multihost_utils

        return bool(np.asarray(multihost_utils.process_allgather(np.array([flag]))).any())


def jax_processes() -> JaxProcesses | None:
    """The processes, where the program initialised `jax.distributed`; jax is not imported for the question."""
    jax = sys.modules.get("jax")
    return None if jax is None or not jax.distributed.is_initialized() else JaxProcesses()


def gather_over_jax(cursor: Cursor) -> Cursor:
    """One cursor for all hosts, from each host's own. See `gather_cursor`."""
    return gather_cursor(cursor, jax_processes(), "`jax.distributed`")


def is_primary() -> bool:
    """Whether this process writes what is written once: process 0 of `jax.distributed`, or the only one."""
    processes = jax_processes()
    return processes is None or processes.rank == 0
