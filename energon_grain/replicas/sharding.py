# SPDX-License-Identifier: Apache-2.0
"""From a JAX sharding to the processes that need the same rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from energon_grain.errors import ConfigError
from energon_grain.replicas.group import ReplicaGroup
from energon_grain.stream.worker_config import WorkerConfig


class Sharding(Protocol):
    """The part of `jax.sharding.Sharding` that is used."""

    def devices_indices_map(self, global_shape: tuple[int, ...], /) -> Mapping[Any, tuple[slice, ...] | None]:
        """The part of the global array that each device holds."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRanks:
    """Which processes read which rows.

    Attributes:
        replicas: For each data rank, in the order of rows: its processes, ascending.
    """

    replicas: tuple[tuple[int, ...], ...]

    def of(self, process: int) -> int:
        """Return the data rank of a process. Raises ConfigError if it has no device in the sharding."""
        for rank, processes in enumerate(self.replicas):
            if process in processes:
                return rank
        raise ConfigError(f"process {process} has no device in this sharding, so it needs no data")


def data_ranks(
    sharding: Sharding, global_shape: Sequence[int], process_of: Callable[[Any], int] | None = None
) -> DataRanks:
    """Return the data ranks of all processes of a sharding.

    Args:
        sharding: Sharding of the global batch.
        global_shape: Its shape; the first dimension is samples.
        process_of: The process of a device. Default: its `process_index`.

    Raises:
        ConfigError: The rows of two processes overlap in part, differ in number, or are not one range.
    """
    rows: dict[int, set[tuple[int, int]]] = {}
    for device, index in sharding.devices_indices_map(tuple(global_shape)).items():
        begin, end, _ = (index[0] if index else slice(None)).indices(global_shape[0])
        process = device.process_index if process_of is None else process_of(device)
        rows.setdefault(process, set()).add((begin, end))
    spans = {process: _span(process, pieces) for process, pieces in rows.items()}
    kinds = sorted(set(spans.values()))
    overlap = any(before[1] > after[0] for before, after in itertools.pairwise(kinds))
    if overlap or len({end - begin for begin, end in kinds}) > 1:
        raise ConfigError(
            f"WorkerConfig.of_sharding: processes need the rows {kinds} (begin, end), which overlap in part or differ "
            f"in number; order the devices of the mesh so that processes need either the same rows or separate ones"
        )
    return DataRanks(
        replicas=tuple(tuple(sorted(process for process, span in spans.items() if span == kind)) for kind in kinds)
    )


def _span(process: int, pieces: set[tuple[int, int]]) -> tuple[int, int]:
    ordered = sorted(pieces)
    if any(before[1] != after[0] for before, after in itertools.pairwise(ordered)):
        raise ConfigError(
            f"WorkerConfig.of_sharding: process {process} needs the rows {ordered} (begin, end), which are not one "
            f"range without overlap; order the devices of the mesh so that those of one process are adjacent in the "
            f"axes of the data"
        )
    return ordered[0][0], ordered[-1][1]


def of_sharding(sharding: Sharding, global_shape: Sequence[int]) -> dict[str, Any]:
    """Return rank, world size and replicas of this process.

    Raises:
        ConfigError: See `data_ranks`; or this process has no device in the sharding.
    """
    process, _ = WorkerConfig.process_of_job()
    found = data_ranks(sharding, global_shape)
    rank = found.of(process)
    group = ReplicaGroup(ranks=found.replicas[rank], rank=process)
    return {"rank": rank, "world_size": len(found.replicas), "replicas": group}
