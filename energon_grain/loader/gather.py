"""Bringing the states of all hosts together."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import numpy as np

from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import StateError
from energon_grain.stream.cursor import Cursor, merge_cursors


def gather_cursor(cursor: Cursor) -> Cursor:
    """One cursor for all hosts, from each host's own; every host calls this at the same step.

    With several hosts it is a collective operation of `jax.distributed`.

    Raises:
        StateError: There are several hosts, but they are not the processes of an initialised `jax.distributed`; or they
            are not at the same step.
    """
    hosts = cursor["host"][1]
    if hosts == 1:
        return merge_cursors([cursor])
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized() or jax.process_count() % hosts:
        raise StateError(
            f"the states of {hosts} hosts can be gathered only by the processes of an initialised `jax.distributed`; "
            f"otherwise save each host's `save_state_rank()` and give all of them to `restore_state_global`"
        )
    texts = all_gather(json.dumps(cursor).encode())
    by_host: dict[int, Any] = {}
    for text in texts:
        other = json.loads(text)
        by_host.setdefault(other["host"][0], other)
    return merge_cursors(list(by_host.values()))


def all_gather(data: bytes) -> list[bytes]:
    """The bytes that each process of `jax.distributed` brings, in the order of processes."""
    from jax.experimental import multihost_utils

    lengths = np.asarray(multihost_utils.process_allgather(np.array([len(data)], np.int32))).reshape(-1)
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(lengths), -1)
    return [rows[number, :length].tobytes() for number, length in enumerate(lengths.tolist())]


def with_agreement(config: WorkerConfig) -> WorkerConfig:
    """The configuration, with `any_host` where processes of `jax.distributed` can provide it and nothing else does."""
    jax = sys.modules.get("jax")
    if config.any_host is not None or config.world_size == 1 or jax is None or not jax.distributed.is_initialized():
        return config
    return dataclasses.replace(config, any_host=any_process)


def any_process(flag: bool) -> bool:
    """Whether the flag is set on any process of `jax.distributed`. Each process calls it."""
    from jax.experimental import multihost_utils

    return bool(np.asarray(multihost_utils.process_allgather(np.array([flag]))).any())


def is_primary() -> bool:
    """Whether this process writes what is written once: process 0 of `jax.distributed`, or the only one."""
    jax = sys.modules.get("jax")
    return jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0
