"""Orbax v0: `CheckpointManager` with Grain's arguments, and with ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import numpy as np
import orbax.checkpoint as ocp
import pytest

from energon_grain import ConfigError, FingerprintError, StateError, get_loader
from energon_grain.loader import EnergonCheckpointHandler, EnergonCheckpointRestore, EnergonCheckpointSave, to_device

BROKEN = frozenset({3, 11, 40})
Train = Callable[..., Any]


def keys(loader: Any, steps: int) -> list[list[str]]:
    return [list(next(loader).__key__) for _ in range(steps)]


def save(folder: Path, step: int, argument: Any) -> None:
    with ocp.CheckpointManager(folder) as manager:
        manager.save(step, args=ocp.args.Composite(state=ocp.args.StandardSave({"w": np.arange(3.0)}), data=argument))


def restore(folder: Path, step: int, argument: Any) -> Any:
    with ocp.CheckpointManager(folder) as manager:
        state = ocp.args.StandardRestore({"w": np.zeros(3)})
        restored = manager.restore(step, args=ocp.args.Composite(state=state, data=argument))
    assert restored["state"]["w"].tolist() == [0, 1, 2]
    return restored["data"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_grains_own_arguments_on_the_same_host_count(train: Train, tmp_path: Path, num_workers: int) -> None:
    with get_loader(train(broken=BROKEN, num_workers=num_workers)) as loader:
        keys(loader, 9)
        save(tmp_path, 9, grain.checkpoint.CheckpointSave(loader))
        expected = keys(loader, 9)
    assert (tmp_path / "9" / "data" / "process_0-of-1.json").exists()
    with get_loader(train(broken=BROKEN, num_workers=num_workers)) as other:
        assert restore(tmp_path, 9, grain.checkpoint.CheckpointRestore(other)) is other
        assert keys(other, 9) == expected


def test_our_arguments_and_another_batch_size(train: Train, tmp_path: Path) -> None:
    loader = get_loader(train(broken=BROKEN))
    keys(loader, 9)
    save(tmp_path, 9, EnergonCheckpointSave(loader))
    expected = sum(keys(loader, 6), [])
    assert "manifest" in json.loads((tmp_path / "9" / "data" / "energon_grain.json").read_text())
    other = get_loader(train(broken=BROKEN, batch_size=8, num_workers=1))
    assert restore(tmp_path, 9, EnergonCheckpointRestore(other)) is other
    assert sum(keys(other, 3), []) == expected
    other.close()


def test_another_stream_is_refused_by_name(train: Train, tmp_path: Path) -> None:
    loader = get_loader(train())
    keys(loader, 2)
    save(tmp_path, 2, EnergonCheckpointSave(loader))
    other = get_loader(train(seed=5))
    with pytest.raises(FingerprintError, match=r"seed: saved .*, now"):
        restore(tmp_path, 2, EnergonCheckpointRestore(other))
    restore(tmp_path, 2, EnergonCheckpointRestore(other, allow_changes=True))
    assert other.get_state()["step"] == 2


@pytest.mark.parametrize("argument", [EnergonCheckpointSave, EnergonCheckpointRestore])
def test_what_is_no_loader_is_refused(train: Train, argument: Any) -> None:
    with pytest.raises(ConfigError, match=f"{argument.__name__}: a loader is meant, .* not a RunSettings"):
        argument(train())
    with pytest.raises(ConfigError, match="loader: a dataset is meant, not a str"):
        get_loader("folder")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"to_device: a loader is meant, .* not a RunSettings"):
        to_device(train())


@pytest.mark.parametrize("saved", ["loader", "device"])
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "grains"])
def test_below_a_device_loader_the_last_delivered_batch_is_saved(
    train: Train, tmp_path: Path, saved: str, ours: bool
) -> None:
    loader = get_loader(train(broken=BROKEN))
    device = to_device(loader, buffer_size=3)
    keys(device, 4)
    item = {"loader": loader, "device": device}[saved]
    save(tmp_path, 4, EnergonCheckpointSave(item) if ours else grain.checkpoint.CheckpointSave(item))
    expected = keys(device, 4)
    other = get_loader(train(broken=BROKEN))
    other_device = to_device(other)
    keys(other_device, 1)
    item = {"loader": other, "device": other_device}[saved]
    argument = EnergonCheckpointRestore(item) if ours else grain.checkpoint.CheckpointRestore(item)
    assert restore(tmp_path, 4, argument) is item
    assert keys(other_device, 4) == expected


def grain_files(folder: Path, loaders: list[Any]) -> None:
    """What Grain's handler writes on several processes."""
    folder.mkdir()
    for host, loader in enumerate(loaders):
        path = folder / f"process_{host}-of-{len(loaders)}.json"
        path.write_text(json.dumps(loader.get_state(), indent=4))


def read_into(loader: Any, folder: Path) -> None:
    EnergonCheckpointHandler().restore(folder, EnergonCheckpointRestore(loader))


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_grains_files_are_read_on_another_number_of_hosts(train: Train, tmp_path: Path, hosts: int) -> None:
    saved = [get_loader(train(broken=BROKEN, rank=host, world_size=4, batch_size=3)) for host in range(4)]
    for loader in saved:
        keys(loader, 7)
    grain_files(tmp_path / "data", saved)
    expected = sorted(sum((sum(keys(loader, 2), []) for loader in saved), []))
    seen: list[str] = []
    for host in range(hosts):
        loader = get_loader(train(broken=BROKEN, rank=host, world_size=hosts, batch_size=12 // hosts))
        read_into(loader, tmp_path / "data")
        seen += sum(keys(loader, 2), [])
    assert sorted(seen) == expected


def test_missing_and_incomplete_states_are_named(train: Train, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    loaders = [get_loader(train(rank=host, world_size=2)) for host in range(2)]
    with pytest.raises(StateError, match=r"empty holds neither energon_grain\.json"):
        read_into(loaders[0], tmp_path / "empty")
    grain_files(tmp_path / "data", loaders)
    (tmp_path / "data" / "process_1-of-2.json").unlink()
    with pytest.raises(StateError, match=r"\[0\] of 2 processes"):
        read_into(loaders[0], tmp_path / "data")


@pytest.mark.parametrize("name", ["energon_grain.json", "process_0-of-1.json"])
@pytest.mark.parametrize("text", ['{"version": 1, "st', "", "null", "[1]", '{"version": 1}', "\0\0", "\xff"])
def test_a_damaged_state_is_named(train: Train, tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="latin-1")
    with pytest.raises(StateError, match=rf"{name} holds no usable state: .*restore another checkpoint"):
        read_into(get_loader(train()), tmp_path)
