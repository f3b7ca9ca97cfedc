# SPDX-License-Identifier: Apache-2.0
"""From a device mesh to the processes that need the same batches."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from energon_grain.errors import ConfigError
from energon_grain.replicas.group import ReplicaGroup


def of_mesh(mesh: DeviceMesh, data: tuple[str, ...]) -> dict[str, Any]:
    """Return rank, world size, process group and replicas of this process.

    Args:
        mesh: The mesh.
        data: Names of its dimensions whose ranks read different data, or of one flattened dimension.

    Raises:
        ConfigError: The mesh has no such dimensions, or has no names.
    """
    names = mesh.mesh_dim_names or ()
    part = _submesh(mesh, data)
    me = dist.get_rank()
    here = _place(mesh, me)
    along = _varying(mesh, part.mesh.flatten().tolist())
    others = tuple(name for number, name in enumerate(names) if number not in along)
    index = tuple(slice(None) if number not in along else place for number, place in enumerate(here))
    ranks: list[int] = sorted(mesh.mesh[index].flatten().tolist())
    group = part.get_group() if part.ndim == 1 else part._flatten().get_group()  # no public name yet
    coordinates = {name: (here[number], int(mesh.mesh.shape[number])) for number, name in enumerate(names)}
    replicas = ReplicaGroup(ranks=tuple(ranks), rank=me, all_gather=_Gather(mesh, others), coordinates=coordinates)
    return {
        "rank": dist.get_rank(group),
        "world_size": dist.get_world_size(group),
        "data_parallel_group": group,
        "replicas": replicas,
    }


def _submesh(mesh: DeviceMesh, data: tuple[str, ...]) -> DeviceMesh:
    try:
        return mesh[data[0] if len(data) == 1 else data]
    except (KeyError, IndexError, RuntimeError) as error:
        raise ConfigError(
            f"WorkerConfig.of_mesh(data={data!r}): the dimensions of the mesh are {mesh.mesh_dim_names}; name those "
            f"whose ranks read different data ({error})"
        ) from error


def _place(mesh: DeviceMesh, rank: int) -> tuple[int, ...]:
    found = (mesh.mesh == rank).nonzero().tolist()
    if not found:
        raise ConfigError(f"WorkerConfig.of_mesh: rank {rank} is not in the mesh {mesh}")
    return tuple(found[0])


def _varying(mesh: DeviceMesh, ranks: list[int]) -> set[int]:
    """The dimensions of the mesh along which these ranks differ. A dimension of size 1 counts as none."""
    places = torch.tensor([_place(mesh, rank) for rank in ranks])
    return {number for number in range(mesh.ndim) if len(places[:, number].unique()) > 1}


class _Gather:
    """Gathers data of all replicas, one dimension after the other, over groups that the mesh has already."""

    def __init__(self, mesh: DeviceMesh, others: tuple[str, ...]) -> None:
        self._groups = [mesh.get_group(name) for name in others]

    def __call__(self, data: bytes) -> list[bytes]:
        found = [data]
        for group in self._groups:
            gathered: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(gathered, found, group=group)
            found = [entry for entries in gathered for entry in entries]
        return found
