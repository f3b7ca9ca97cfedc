# SPDX-License-Identifier: Apache-2.0
"""The processes of all hosts of a run, as loaders use them: to agree on ends, and to gather and broadcast states."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Protocol

from energon_grain.errors import StateError
from energon_grain.stream.cursor import Cursor, merge_cursors
from energon_grain.stream.worker_config import WorkerConfig


class HostProcesses(Protocol):
    """Processes that a distributed framework connects. All processes must call each method, except `rank`."""

    @property
    def rank(self) -> int:
        """Number of this process among all processes of the job."""
        ...

    def all_gather(self, data: bytes) -> list[bytes]:
        """The data of each process, in order. With data-parallel groups: of each process of this process's group."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        ...


def with_agreement(config: WorkerConfig, processes: HostProcesses | None) -> WorkerConfig:
    """The configuration, with `any_host` set from the processes, if it is not set and they exist."""
    if config.any_host is not None or config.world_size == 1 or processes is None:
        return config
    return dataclasses.replace(config, any_host=processes.any)


def gather_cursor(cursor: Cursor, processes: HostProcesses | None, framework: str) -> Cursor:
    """One cursor for all hosts, from each host's own. With several hosts, all processes must call this at one step.

    Args:
        cursor: The cursor of this host.
        processes: The processes of all hosts; None: they are not connected.
        framework: Name of the framework that would connect them, for messages.

    Raises:
        StateError: There are several hosts, and their processes are not connected, belong to another run, or are not at
            the same step.
    """
    hosts = cursor["host"][1]
    if hosts == 1:
        return merge_cursors([cursor])
    texts = [] if processes is None else processes.all_gather(json.dumps(cursor).encode())
    by_host: dict[int, Any] = {}
    for text in texts:
        other = json.loads(text)
        by_host.setdefault(other["host"][0], other)
    if len(by_host) != hosts:
        raise StateError(
            f"the states of {hosts} hosts can be gathered only by the processes of an initialised {framework} that run "
            f"all of them{f' (found hosts {sorted(by_host)})' if by_host else ''}; otherwise save each host's "
            f"`save_state_rank()` and pass all of them to `restore_state_global`"
        )
    return merge_cursors(list(by_host.values()))


def broadcast_state(state: Any, source: int, processes: HostProcesses | None, framework: str) -> Any:
    """The state of the process with rank `source`, on all processes.

    Raises StateError if the processes are not connected, or `source` is not one of them.
    """
    if processes is None:
        raise StateError(
            f"src_rank={source}: only the processes of an initialised {framework} can send a state to each other; "
            f"pass the state on every host, without src_rank"
        )
    states = processes.all_gather(json.dumps(state).encode())
    if not 0 <= source < len(states):
        raise StateError(f"src_rank={source}: expected 0 to {len(states) - 1}, there are {len(states)} processes")
    return json.loads(states[source])
