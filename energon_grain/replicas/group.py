# SPDX-License-Identifier: Apache-2.0
"""The processes that need the same batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from energon_grain.errors import ConfigError
from energon_grain.stream.worker_config import WorkerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaGroup:
    """The processes of one data rank, which need the same batches.

    Attributes:
        ranks: Their ranks in the whole job, ascending.
        rank: This process's rank in the whole job.
        all_gather: Collective over at least these processes: returns the data of each. None: that of the framework,
            over all processes of the job.
        coordinates: (rank, size) of this process in each dimension of the mesh, by name.
        node: Name of the node of this process. None: found out; processes of a node have a network namespace in common.
    """

    ranks: tuple[int, ...]
    rank: int
    all_gather: Callable[[bytes], list[bytes]] | None = None
    coordinates: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    node: str | None = None


def broadcasts(config: WorkerConfig) -> bool:
    """Return whether one node reads for all others.

    Raises:
        ConfigError: The configuration is neither "read" nor "broadcast".
    """
    if config.across not in ("read", "broadcast"):
        raise ConfigError(f"WorkerConfig(across={config.across!r}): expected 'read' or 'broadcast'")
    return config.across == "broadcast"


def refuse_replicas(config: WorkerConfig, what: str, instead: str) -> None:
    """Refuse replicas where each process would read for itself.

    Args:
        config: The configuration of the dataset.
        what: The class or function that reads.
        instead: The alternative, which reads once for replicas.

    Raises:
        ConfigError: The configuration has replicas.
    """
    if config.replicas is not None and len(config.replicas.ranks) > 1:
        raise ConfigError(
            f"{what} reads in each process, but the WorkerConfig of the dataset has replicas {config.replicas.ranks}, "
            f"of which one reads: use {instead}, or let each process read with "
            f"WorkerConfig(rank={config.rank}, world_size={config.world_size})"
        )


def take_replicas(config: WorkerConfig) -> None:
    """Set rank, world size and replicas of a configuration from lists of ranks.

    Raises:
        ConfigError: The lists do not divide the ranks of the job.
    """
    broadcasts(config)
    if isinstance(config.replicas, ReplicaGroup):
        return
    rank, world_size = config.rank, config.world_size
    if rank < 0 or world_size < 0:
        rank, world_size = config.process_of_job()
    lists = _checked(config.replicas, world_size)
    mine = next(number for number, ranks in enumerate(lists) if rank in ranks)
    config.rank, config.world_size = mine, len(lists)
    config.replicas = ReplicaGroup(ranks=tuple(sorted(lists[mine])), rank=rank)


def _checked(lists: Sequence[Sequence[int]], world_size: int) -> list[list[int]]:
    where = f"WorkerConfig(replicas={lists!r})"
    try:
        taken = [[int(rank) for rank in ranks] for ranks in lists]
    except TypeError as error:
        raise ConfigError(f"{where}: expected lists of ranks, such as [[0, 1], [2, 3]]") from error
    found = sorted(rank for ranks in taken for rank in ranks)
    if found != list(range(world_size)) or not all(taken):
        raise ConfigError(
            f"{where}: each of the ranks 0 to {world_size - 1} of this job must be in exactly one list; initialise the "
            f"distributed framework first, or pass rank= and world_size= of the whole job"
        )
    return taken
