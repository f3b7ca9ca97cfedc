"""What is the same for leaves of every kind: their order, hosts, workers, state, and samples made again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import numbered, write_array, write_group
from metadatasets import write_v2
from records import msgpack_record, write_shards

from energon_grain import (
    Cooker,
    DefaultTaskEncoder,
    SavableDataset,
    Stream,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

COUNT = 60
ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)
SAMPLES = [{"__key__": f"{number:03d}", "json": b'{"n": %d}' % number} for number in range(COUNT)]
CRUDE: dict[str, Any] = {"split_ratio": {"train": 1}, "crude": True, "num_workers": 0}


def write_tar_dataset(path: Path) -> None:
    write_tars(path, SAMPLES, shards=3)
    prepare_dataset(path, **CRUDE)


def write_array_records(path: Path) -> None:
    write_shards(path, [msgpack_record(sample) for sample in SAMPLES], 3)
    prepare_dataset(path, records="msgpack", **CRUDE)


WRITERS: dict[str, Callable[[Path], object]] = {
    "bare": lambda path: write_tars(path, SAMPLES, shards=3),
    "group.zarr": lambda path: write_group(path, n=np.arange(COUNT), image=numbered(COUNT, 3, 2)),
    "n": lambda path: write_array(path, np.arange(COUNT)),
    "notes.jsonl": lambda path: path.write_text("".join(f"{json.dumps({'n': n})}\n" for n in range(COUNT))),
    "records": write_array_records,
}


@pytest.fixture(params=WRITERS)
def leaf(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A leaf with the numbers up to 60."""
    path = tmp_path / request.param
    WRITERS[request.param](path)
    return path


def dataset(path: Path, config: WorkerConfig = ONE, **options: Any) -> SavableDataset:
    given = {"batch_size": 4, "shuffle_buffer_size": 20, "max_samples_per_sequence": 5, **options}
    return get_train_dataset(path, worker_config=config, **given)


def numbers(batch: Any) -> list[int]:
    return [int(number) for number in (batch["n"] if "n" in batch else batch["json"]["n"])]


def trained(path: Path, steps: int, *config: WorkerConfig, **options: Any) -> list[list[int]]:
    with Stream.of(dataset(path, *config, **options)) as stream:
        return [numbers(next(stream)) for _ in range(steps)]


def test_the_order_is_that_of_tars(leaf: Path, tmp_path: Path) -> None:
    """The same samples under the same name come in the same order from any container."""
    write_tar_dataset(tmp_path / "tars")
    here, there = (
        trained(write_v2(tmp_path, train={"path": name, "name": "same"}), 40) for name in (leaf.name, "tars")
    )
    assert here == there
    assert sorted(number for batch in here[:15] for number in batch) == list(range(COUNT))


def test_hosts_share_the_batches_of_one(leaf: Path) -> None:
    hosts = [trained(leaf, 10, WorkerConfig(rank=rank, world_size=3, num_workers=0)) for rank in range(3)]
    alone = trained(leaf, 10, batch_size=12)
    assert [sorted(sum(parts, [])) for parts in zip(*hosts, strict=True)] == [sorted(batch) for batch in alone]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers(leaf: Path, worker_type: Any) -> None:
    """This process has read the leaf before they start: processes come from a fork server, or are spawned."""
    here = trained(leaf, 5)
    config = WorkerConfig(rank=0, world_size=1, num_workers=2, worker_type=worker_type)
    with get_savable_loader(dataset(leaf, config)) as loader:
        batches = iter(loader)
        assert [numbers(next(batches)) for _ in range(5)] == here


@stateless
def only_keys(sample: Any) -> Any:
    return {name: sample[name] for name in ("__key__", "__restore_key__")}


class KeysOnly(DefaultTaskEncoder):
    cookers = (Cooker(only_keys),)


def test_state_and_which_and_samples_made_again(leaf: Path, tmp_path: Path) -> None:
    """In a blend with tars."""
    write_tar_dataset(tmp_path / "tars")
    blend = [{"weight": 3, "path": leaf.name}, {"weight": 1, "path": "tars"}]
    path = write_v2(tmp_path, train={"blend": blend})

    def opened() -> Stream:
        return Stream.of(
            dataset(path, shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=KeysOnly())
        )

    with opened() as stream:
        for _ in range(3):
            next(stream)
        state = stream.cursor()
        expected = next(stream)
        records = stream.which(3)
    assert [record.key for record in records] == list(expected["__key__"])
    shards = {record.shard for record in records if record.dataset == str(leaf)}
    assert shards
    assert all(shard == leaf.name or Path(shard).suffix in (".array_record", ".tar") for shard in shards)
    with opened() as stream:
        stream.restore(state)
        again = next(stream)
        assert list(again["__key__"]) == list(expected["__key__"])
        assert list(stream.restore_sample(again["__restore_key__"])["__key__"]) == list(expected["__key__"])
