"""The processes of all hosts, as far as the state of a loader needs them: the seam to distributed frameworks."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Protocol

from energon_grain.errors import StateError
from energon_grain.stream.cursor import Cursor, merge_cursors
from energon_grain.stream.worker_config import WorkerConfig


class HostProcesses(Protocol):
    """Processes that a distributed framework connects. All methods but `rank` are called by every one of them."""

    @property
    def rank(self) -> int:
        """Number of this process among all of the job."""
        ...

    def all_gather(self, data: bytes) -> list[bytes]:
        """What each process brings, in their order. Of data-parallel groups: each process of this one's."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any of them."""
        ...


def with_agreement(config: WorkerConfig, processes: HostProcesses | None) -> WorkerConfig:
    """The configuration, with `any_host` where processes can provide it and nothing else does."""
    if config.any_host is not None or config.world_size == 1 or processes is None:
        return config
    return dataclasses.replace(config, any_host=processes.any)


def gather_cursor(cursor: Cursor, processes: HostProcesses | None, framework: str) -> Cursor:
    """One cursor for all hosts, from each host's own; with several hosts, every process calls this at the same step.

    Args:
        cursor: Of this host.
        processes: Those of all hosts; None: they are not connected.
        framework: What would connect them, for messages.

    Raises:
        StateError: There are several hosts, and their processes are not connected, or are others; or they are not at
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
            f"`save_state_rank()` and give all of them to `restore_state_global`"
        )
    return merge_cursors(list(by_host.values()))


def broadcast_state(state: Any, source: int, processes: HostProcesses | None, framework: str) -> Any:
    """The state that the process at place `source` has, on all of them.

    Raises:
        StateError: The processes are not connected, or `source` is none of them.
    """
    if processes is None:
        raise StateError(
            f"src_rank={source}: only the processes of an initialised {framework} can pass a state on to each other; "
            f"give every host the state, without src_rank"
        )
    states = processes.all_gather(json.dumps(state).encode())
    if not 0 <= source < len(states):
        raise StateError(f"src_rank={source}: there are {len(states)} processes, 0 … {len(states) - 1}")
    return json.loads(states[source])
