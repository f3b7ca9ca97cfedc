"""Orbax: `CheckpointManager` with Grain's arguments and with ours, and checkpointables of `orbax.checkpoint.v1`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1

from energon_grain import ConfigError, FingerprintError, StateError, get_loader
from energon_grain.loader import (
    BatchIterDataset,
    EnergonCheckpointHandler,
    EnergonCheckpointRestore,
    EnergonCheckpointSave,
    to_device,
)

BROKEN = frozenset({3, 11, 40})
Train = Callable[..., Any]


Api = tuple[Callable[[Path, Any], None], Callable[..., Any]]


def keys(loader: Any, steps: int) -> list[list[str]]:
    return [list(next(loader).__key__) for _ in range(steps)]


def by_manager(save: Any, restore: Any) -> Api:
    """Saving and restoring by `CheckpointManager`, beside the weights, with arguments of a handler."""

    def saving(folder: Path, item: Any) -> None:
        with ocp.CheckpointManager(folder) as manager:
            state = ocp.args.StandardSave({"w": np.arange(3.0)})
            manager.save(9, args=ocp.args.Composite(state=state, data=save(item)))

    def restoring(folder: Path, item: Any, **options: Any) -> Any:
        with ocp.CheckpointManager(folder) as manager:
            state = ocp.args.StandardRestore({"w": np.zeros(3)})
            restored = manager.restore(9, args=ocp.args.Composite(state=state, data=restore(item, **options)))
        assert restored["state"]["w"].tolist() == [0, 1, 2]
        return restored["data"]

    return saving, restoring


def save_checkpointables(folder: Path, item: Any) -> None:
    v1.save_checkpointables(folder / "saved", {"pytree": {"w": np.arange(3.0)}, "data": item})


def load_checkpointables(folder: Path, item: Any) -> Any:
    loaded = v1.load_checkpointables(folder / "saved", {"pytree": {"w": np.zeros(3)}, "data": item})
    assert loaded["pytree"]["w"].tolist() == [0, 1, 2]
    return loaded["data"]


OURS = by_manager(EnergonCheckpointSave, EnergonCheckpointRestore)
APIS: dict[str, Api] = {
    "ours": OURS,
    "grain's": by_manager(grain.checkpoint.CheckpointSave, grain.checkpoint.CheckpointRestore),
    "v1": (save_checkpointables, load_checkpointables),
}


@pytest.mark.parametrize("place", ["alone", "below a device loader", "device loader"])
@pytest.mark.parametrize("api", APIS)
def test_the_last_delivered_batch_is_saved(train: Train, tmp_path: Path, api: str, place: str) -> None:
    save, restore = APIS[api]

    def opened(num_workers: int) -> tuple[Any, Any]:
        """A loader, and what is saved of it."""
        loader = get_loader(train(broken=BROKEN, num_workers=num_workers))
        if place == "alone":
            return loader, loader
        device = to_device(loader, buffer_size=3)
        return device, device if place == "device loader" else loader

    loader, item = opened(2)
    keys(loader, 9)
    save(tmp_path, item)
    expected = keys(loader, 9)
    other, other_item = opened(0)
    keys(other, 1)
    assert restore(tmp_path, other_item) is other_item
    assert keys(other, 9) == expected
    loader.close()
    assert (tmp_path / "9" / "data" / "process_0-of-1.json").exists() == (api == "grain's")


@pytest.mark.parametrize("place", [lambda loader: loader, to_device], ids=["loader", "device"])
def test_the_async_checkpointer_writes_the_state_at_the_call(
    train: Train, tmp_path: Path, place: Callable[[Any], Any]
) -> None:
    loader = place(get_loader(train(broken=BROKEN, num_workers=2)))
    with v1.training.Checkpointer(tmp_path) as checkpointer:
        keys(loader, 6)
        response = checkpointer.save_checkpointables_async(6, {"data": loader})
        expected = keys(loader, 6)  # goes on while the files are written
        assert response is not None
        response.result()
        other = place(get_loader(train(broken=BROKEN)))
        assert checkpointer.latest is not None
        checkpointer.load_checkpointables(checkpointer.latest.step, {"data": other})
    assert keys(other, 6) == expected
    loader.close()


class Counted:
    """`GrainCheckpointable_v1` of MaxText (`src/maxtext/common/grain_utility.py`), for as many processes as saved."""

    def __init__(self, item: Any) -> None:
        self.item = item

    async def save(self, directory: Any) -> Any:
        return await self.item.save(directory)

    async def load(self, directory: Any) -> Any:
        return await self.item.load(directory)

    @classmethod
    def for_restore(cls, folder: Path, item: Any) -> Counted:
        stored = len(list(folder.glob("process_*-of-*.json")))
        if stored != jax.process_count():
            raise ValueError(f"{stored} stored checkpoint files")
        return cls(item)


@pytest.mark.parametrize("kind", [get_loader, lambda dataset: iter(BatchIterDataset(dataset))])
def test_maxtext_counts_the_files_of_processes(train: Train, tmp_path: Path, kind: Callable[[Any], Any]) -> None:
    loader, other = kind(train(broken=BROKEN)), kind(train(broken=BROKEN))
    keys(loader, 5)
    v1.save_checkpointables(tmp_path / "saved", {"data": Counted(loader)})
    v1.load_checkpointables(tmp_path / "saved", {"data": Counted.for_restore(tmp_path / "saved" / "data", other)})
    expected = keys(loader, 5)
    assert keys(other, 5) == expected
    (tmp_path / "saved" / "data" / "energon_grain.json").unlink()
    again = get_loader(train(broken=BROKEN))
    read_into(again, tmp_path / "saved" / "data")
    assert keys(again, 5) == expected


def test_our_arguments_and_another_batch_size(train: Train, tmp_path: Path) -> None:
    save, restore = OURS
    loader = get_loader(train(broken=BROKEN))
    keys(loader, 9)
    save(tmp_path, loader)
    expected = sum(keys(loader, 6), [])
    assert "manifest" in json.loads((tmp_path / "9" / "data" / "energon_grain.json").read_text())
    with get_loader(train(broken=BROKEN, batch_size=8, num_workers=1)) as other:
        assert restore(tmp_path, other) is other
        assert sum(keys(other, 3), []) == expected


def test_another_stream_is_refused_by_name(train: Train, tmp_path: Path) -> None:
    save, restore = OURS
    loader = get_loader(train())
    keys(loader, 2)
    save(tmp_path, loader)
    v1.save_checkpointables(tmp_path / "v1", {"data": loader})
    other = get_loader(train(seed=5))
    with pytest.raises(FingerprintError, match=r"seed: saved .*, now"):
        restore(tmp_path, other)
    with pytest.raises(FingerprintError, match=r"seed: saved .*, now"):
        v1.load_checkpointables(tmp_path / "v1", {"data": other})
    restore(tmp_path, other, allow_changes=True)
    assert other.get_state()["step"] == 2


@pytest.mark.parametrize("argument", [EnergonCheckpointSave, EnergonCheckpointRestore])
def test_what_is_no_loader_is_refused(train: Train, argument: Any) -> None:
    with pytest.raises(ConfigError, match=f"{argument.__name__}: expected a loader .* got a SeededDataset"):
        argument(train())
    with pytest.raises(ConfigError, match="loader: expected a dataset, got a str"):
        get_loader("folder")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"to_device: expected a loader .* got a SeededDataset"):
        to_device(train())


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
    with pytest.raises(StateError, match=r"empty: contains neither energon_grain\.json"):
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
    with pytest.raises(StateError, match=rf"{name}: not a usable state: .*Restore another checkpoint"):
        read_into(get_loader(train()), tmp_path)
