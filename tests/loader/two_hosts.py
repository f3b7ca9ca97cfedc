"""The training program of `test_device.py`, run on two processes of `jax.distributed`: `two_hosts.py DIR PORT RANK`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from energon_grain import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energon_grain.loader import DeviceLoader, SavableDataLoader, to_device

GLOBAL_BATCH = 12


class Digits(DefaultTaskEncoder):
    """Batches that are dictionaries with arrays and texts; `id` tells the sample and its random number."""

    def encode_sample(self, sample: Any) -> dict[str, Any]:
        noise = self.rng.integers(0, 1000)
        return {"id": np.int64(sample.__key__) * 1000 + noise, "mean": sample.image.mean(), "key": sample.__key__}

    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": np.stack([sample["id"] for sample in samples]),
            "mean": np.stack([sample["mean"] for sample in samples]),
            "key": [sample["key"] for sample in samples],
        }


def ignore(error: Exception, sample: Any, sources: Any = None) -> None:
    """Let broken samples go without a word."""


def host_loader(data: Path) -> SavableDataLoader:
    """This process's rows."""
    config = WorkerConfig.default_worker_config(num_workers=1)
    config.global_error_handler = ignore
    assert config.world_size == jax.process_count()
    dataset = get_train_dataset(
        data,
        worker_config=config,
        batch_size=GLOBAL_BATCH // config.world_size,
        shuffle_buffer_size=20,
        max_samples_per_sequence=4,
        task_encoder=Digits(),
    )
    return get_loader(dataset)


def on_all_devices(loader: SavableDataLoader) -> DeviceLoader:
    """Global arrays, their rows spread over the devices of all processes."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    return to_device(loader, NamedSharding(mesh, PartitionSpec("data")))


def global_batches(loader: DeviceLoader, steps: int) -> list[list[list[float]]]:
    """(id, mean) of each row of the next global batches, sorted; the same on every process."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    replicate = jax.jit(lambda arrays: arrays, out_shardings=NamedSharding(mesh, PartitionSpec()))
    found: list[list[list[float]]] = []
    for _ in range(steps):
        batch = next(loader)
        assert batch["id"].shape == (GLOBAL_BATCH,)
        assert len(batch["key"]) == GLOBAL_BATCH // jax.process_count()
        ids, means = replicate((batch["id"], batch["mean"]))
        rows = zip(np.asarray(ids).tolist(), np.asarray(means).tolist(), strict=True)
        found.append(sorted([number, round(mean, 5)] for number, mean in rows))
    return found


class Packs(DefaultTaskEncoder):
    """Packs of up to three samples, as many as their numbers say, and batches of them with a mask."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        groups: list[list[Any]] = []
        for sample in samples:
            if not groups or len(groups[-1]) > int(groups[-1][0].__key__) % 3:
                groups.append([])
            groups[-1].append(sample)
        return groups

    def pack_selected_samples(self, samples: list[Any]) -> dict[str, Any]:
        return {"keys": [sample.__key__ for sample in samples]}

    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {"keys": [sample["keys"] for sample in samples]}


def packed_pass(data: Path) -> list[list[list[str]]]:
    """The packs of each of this process's batches of one pass, padding left out."""
    config = WorkerConfig.default_worker_config(num_workers=1)
    config.global_error_handler = ignore
    dataset = get_train_dataset(
        data,
        worker_config=config,
        batch_size=GLOBAL_BATCH // config.world_size,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        packing_buffer_size=5,
        repeat=False,
        last_batch="pad",
        lanes=8,
        task_encoder=Packs(),
    )
    with get_loader(dataset) as loader:
        return [[keys for keys, valid in zip(b["keys"], b["__valid__"], strict=True) if valid] for b in loader]


def train(folder: Path, rank: int) -> dict[str, Any]:
    """Five steps, save in every way, five steps more."""
    import orbax.checkpoint as ocp_v0
    from orbax.checkpoint import v1 as ocp

    from energon_grain.loader import EnergonCheckpointSave

    loader = on_all_devices(host_loader(folder / "data"))
    result: dict[str, Any] = {"first": global_batches(loader, 5)}
    assert "drops" in loader.get_state()
    with ocp_v0.CheckpointManager(folder / "v0") as manager:
        manager.save(5, args=ocp_v0.args.Composite(data=EnergonCheckpointSave(loader)))
        manager.wait_until_finished()
    ocp.save_checkpointables(folder / "v1", {"data": loader})
    # Only process 1 gets the state of all hosts, and gives it back to all.
    other = host_loader(folder / "data")
    other.restore_state_rank(loader.save_state_rank())
    state = other.save_state_global(global_dst_rank=1)
    assert (state is None) == (rank == 0)
    other.close()
    again = host_loader(folder / "data")
    again.restore_state_global(state, src_rank=1)
    result["rest"] = global_batches(loader, 5)
    result["again"] = global_batches(on_all_devices(again), 5)
    result["packs"] = packed_pass(folder / "data")
    return result


def main() -> None:
    """Be one of the two processes."""
    folder, port, rank = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    (folder / f"{rank}.json").write_text(json.dumps(train(folder, rank)))


if __name__ == "__main__":
    main()
