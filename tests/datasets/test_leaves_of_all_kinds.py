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
from parquet_files import write_numbers
from records import msgpack_record, write_shards
from table_forms import write_arrow, write_feather, write_mds, write_tokens

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
ENDINGS = (".array_record", ".tar", ".parquet", ".arrow", ".feather", ".zstd", ".bin")
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
    "rows.parquet": lambda path: write_numbers(path, COUNT, row_group_size=7),
    "arrow": lambda path: write_arrow(path / "x.arrow", {"n": range(COUNT)}),
    "x.feather": lambda path: write_feather(path, {"n": range(COUNT)}, compression="zstd"),
    "mds": lambda path: write_mds(path, {"n": list(range(COUNT))}, shards=3, compression="zstd"),
    "ids.bin": lambda path: write_tokens(path.with_suffix(""), [[number] for number in range(COUNT)]),
    "files.parquet": lambda path: write_numbers(path, COUNT, files=3, row_group_size=7),
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
    if "tokens" in batch:
        return [int(tokens[0]) for tokens in batch["tokens"]]
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
    assert all(shard == leaf.name or Path(shard).suffix in ENDINGS for shard in shards)
    with opened() as stream:
        stream.restore(state)
        again = next(stream)
        assert list(again["__key__"]) == list(expected["__key__"])
        assert list(stream.restore_sample(again["__restore_key__"])["__key__"]) == list(expected["__key__"])


@pytest.mark.parametrize("hosts", [2, 4])
def test_all_forms_in_one_mixture(tmp_path: Path, hosts: int) -> None:
    """Blended, joined and packed, saved on one host and restored on several: the same packs of the same samples."""
    for name, write in WRITERS.items():
        write(tmp_path / name)
    blend: list[Any] = [{"weight": 1, "path": name} for name in WRITERS]
    tables = [{"path": "rows.parquet", "keys": "n"}, {"path": "arrow", "keys": "n"}, {"path": "mds", "keys": "n"}]
    blend.append(
        {"weight": 3, "join": [*tables, {"path": "ids.bin", "by": "row"}, {"path": "notes.jsonl", "by": "row"}]}
    )
    path = write_v2(tmp_path, train={"blend": blend})

    def fleet(count: int) -> list[Stream]:
        given: dict[str, Any] = {"packing_buffer_size": 5, "batch_size": 4 // count, "lanes": 8}
        given |= {"task_encoder": Packs(), "shuffle_buffer_size": None, "max_samples_per_sequence": None}
        configs = [WorkerConfig(rank=rank, world_size=count, num_workers=0) for rank in range(count)]
        return [Stream.of(get_train_dataset(path, worker_config=config, **given)) for config in configs]

    def step(streams: list[Stream]) -> list[Any]:
        return sorted(keys for stream in streams for keys in next(stream))

    (alone,) = fleet(1)
    for _ in range(5):
        next(alone)
    state = alone.cursor()
    expected = [step([alone]) for _ in range(10)]
    alone.close()
    several = fleet(hosts)
    for stream in several:
        stream.restore(state)
    assert [step(several) for _ in range(10)] == expected
    assert len({key for batch in expected for pack in batch for key in pack}) > 20
    for stream in several:
        stream.close()


class Packs(KeysOnly):
    """Three keys to a pack."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return [sample["__key__"] for sample in samples]

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return samples
