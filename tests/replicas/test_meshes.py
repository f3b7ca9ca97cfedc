"""Replicas on the device meshes of PyTorch, in processes that gloo connects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import replica_ranks as programs
from forking import may_fork
from replica_loaders import LENGTH, Rows
from torch_ranks import on_ranks

from energon_grain import ConfigError
from energon_grain.replicas.sequence_slice import slice_indices
from energon_grain_torch import WorkerConfig

pytestmark = [pytest.mark.slow, may_fork]


@pytest.fixture(scope="module")
def path(text_dataset: Callable[..., Path]) -> Path:
    return text_dataset(97)


def alone(path: Path, count: int) -> list[Rows]:
    with programs.open_loader(path, WorkerConfig(rank=0, world_size=1, num_workers=0)) as loader:
        return [sorted(programs.rows(next(loader))) for _ in range(count)]


def joined(found: list[dict[str, Any]], name: str) -> list[Rows]:
    """Global batches of one replica of each data rank, after a check that all replicas have the same."""
    by_rank: dict[int, Any] = {}
    for entry in found:
        assert by_rank.setdefault(entry["rank"], entry[name]) == entry[name]
    return [sorted(sum(step, [])) for step in zip(*by_rank.values(), strict=True)]


def readers(found: list[dict[str, Any]]) -> list[int]:
    return [number for number, entry in enumerate(found) if entry["decoded"]]


def check(path: Path, found: list[dict[str, Any]], begin: int = 0) -> None:
    expected = alone(path, begin + 12)[begin:]
    assert joined(found, "before") + joined(found, "after") == expected
    assert readers(found) == sorted({entry["replicas"][0] for entry in found})
    for entry in found:
        same = [other["state"] for other in found if other["rank"] == entry["rank"]]
        assert same == [entry["state"]] * len(same)


def test_runs_continue_on_other_meshes(path: Path) -> None:
    meshes = on_ranks(4, programs.runs, path, [{"dp": 2, "tp": 2}, {"tp": 2, "dp": 1, "cp": 2}, {"cp": 2, "dp": 2}])
    first, *_ = by_mesh = [list(found) for found in zip(*meshes, strict=True)]
    assert [(entry["rank"], entry["world"], entry["replicas"]) for entry in first] == [
        (0, 2, (0, 1)),
        (0, 2, (0, 1)),
        (1, 2, (2, 3)),
        (1, 2, (2, 3)),
    ]
    assert [entry["everyone"] for entry in first] == [first[0]["everyone"]] * 4
    for number, found in enumerate(by_mesh):
        check(path, found, begin=6 * number)


def test_eight_ranks_of_four_nodes(path: Path) -> None:
    shapes = [{"dp": 2, "cp": 2, "tp": 2}, {"dp": 4, "tp": 2}, {"dp": 1, "cp": 4}]
    meshes = on_ranks(8, programs.runs, path, shapes, 2)
    for number, found in enumerate(zip(*meshes, strict=True)):
        check(path, [entry for entry in found if entry], begin=6 * number)


@pytest.mark.parametrize("worker_type", ["dataloader", "process"])
def test_worker_processes_make_batches(path: Path, worker_type: str) -> None:
    found = on_ranks(2, _with_workers, path, worker_type)
    assert found == [alone(path, 5)] * 2


def _with_workers(path: Path, worker_type: str) -> list[Rows]:
    config: Any = programs.on_mesh({"dp": 1, "tp": 2}, "dp", num_workers=2)
    with programs.open_loader(path, config, worker_type=worker_type) as loader:
        return [sorted(programs.rows(next(loader))) for _ in range(5)]


def test_slices_follow_the_mesh(path: Path) -> None:
    for cp, found in on_ranks(2, programs.slices, path, {"dp": 1, "cp": 2}):
        for kind, positions in zip(("zigzag", "contiguous"), found, strict=True):
            assert positions == [slice_indices(LENGTH, cp, 2, kind).tolist()] * 8  # pyright: ignore[reportArgumentType]


def test_several_dimensions_of_data(path: Path) -> None:
    assert on_ranks(4, programs.flattened, path) == [
        (0, 0, (0, 1), (0, 1)),
        (0, 0, (0, 1), (0, 1)),
        (1, 1, (2, 3), (2, 3)),
        (1, 1, (2, 3), (2, 3)),
    ]


def test_lists_of_ranks(path: Path) -> None:
    found = on_ranks(4, programs.of_lists, path)
    assert [entry[:3] for entry in found] == [(0, 2, 0), (1, 2, 1), (0, 2, 2), (1, 2, 3)]
    assert found[0][3] == found[2][3]
    assert found[1][3] == found[3][3]
    steps = zip(found[0][3], found[1][3], strict=True)
    assert [sorted(first + second) for first, second in steps] == alone(path, 5)


def test_an_unknown_dimension_names_those_of_the_mesh(path: Path) -> None:
    for message in on_ranks(2, _unknown, path):
        assert "the dimensions of the mesh are ('dp', 'tp')" in message


def _unknown(path: Path) -> str:
    try:
        programs.on_mesh({"dp": 1, "tp": 2}, "fsdp")
    except ConfigError as error:
        return str(error)
    return ""
