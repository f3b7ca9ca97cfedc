"""JSONL files as leaves: order, state, blends, hosts, workers, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from energon_grain import (
    Cooker,
    DefaultTaskEncoder,
    Stream,
    TaskEncoder,
    WorkerConfig,
    cooker,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_grain.errors import ConfigError, DatasetNotFoundError, DecodingError, StaleIndexError
from energon_grain.testing import make_crude_dataset, write_tars

ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)
V2 = "__module__: megatron.energon\n__class__: MetadatasetV2\n"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "notes.jsonl", ({"n": i} for i in range(60)))


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path


def metadataset(folder: Path, train: str) -> Path:
    path = folder / "meta.yaml"
    path.write_text(f"{V2}splits: {{train: {train}}}\n")
    return path


def validated(path: Path, **options: Any) -> list[Any]:
    return list(get_val_dataset(path, worker_config=ONE, batch_size=None, **options))


def trained(path: Path, steps: int, config: WorkerConfig = ONE, **options: Any) -> list[list[int]]:
    given = {"batch_size": 4, "shuffle_buffer_size": 20, "max_samples_per_sequence": 5, **options}
    with Stream.of(get_train_dataset(path, worker_config=config, **given)) as stream:
        return [[int(number) for number in next(stream)["json"]["n"]] for _ in range(steps)]


def test_samples(notes: Path) -> None:
    samples = validated(notes, split_part="whatever")
    assert [sample["json"]["n"] for sample in samples] == list(range(60))
    third = samples[3]
    assert (third["__key__"], third["__shard__"], third["__subflavors__"]) == ("3", "notes.jsonl", None)
    (source,) = third["__sources__"]
    assert (source.dataset_path, source.index, source.file_names) == (str(notes), 3, ("3.json",))


def test_subset_and_subflavors(notes: Path, tmp_path: Path) -> None:
    path = metadataset(tmp_path, "{path: notes.jsonl, subset: {range: [10%, 20]}, subflavors: {kind: note}}")
    with pytest.raises(ConfigError):
        validated(path, split_part="train")
    path = metadataset(tmp_path, "{path: notes.jsonl, subset: {range: [10, 20]}, subflavors: {kind: note}}")
    samples = validated(path, split_part="train")
    assert [sample["json"]["n"] for sample in samples] == list(range(10, 20))
    assert samples[0]["__key__"] == "10"
    assert samples[0]["__subflavors__"] == {"kind": "note"}


def test_the_order_of_a_tar_dataset(notes: Path, tmp_path: Path) -> None:
    """The same samples under the same name come in the same order from either container."""
    from energon_grain.prepare import prepare_dataset

    (tmp_path / "tars").mkdir()
    write_tars(tmp_path / "tars", ({"__key__": f"{i:03d}", "json": {"n": i}} for i in range(60)), shards=3)
    prepare_dataset(tmp_path / "tars", split_ratio={"train": 1}, crude=True, num_workers=0)
    here = trained(metadataset(tmp_path, "{path: notes.jsonl, name: same}"), 40)
    assert here == trained(metadataset(tmp_path, "{path: tars, name: same}"), 40)
    assert sorted(number for batch in here[:15] for number in batch) == list(range(60))


def test_hosts_share_the_batches_of_one(notes: Path) -> None:
    hosts = [
        trained(notes, 10, WorkerConfig(rank=rank, world_size=3, num_workers=0), batch_size=4) for rank in range(3)
    ]
    alone = trained(notes, 10, batch_size=12)
    assert [sorted(sum(parts, [])) for parts in zip(*hosts, strict=True)] == [sorted(batch) for batch in alone]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers(notes: Path, worker_type: Any) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=2, worker_type=worker_type)
    dataset = get_train_dataset(
        notes, worker_config=config, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=5
    )
    with get_savable_loader(dataset) as loader:
        batches = iter(loader)
        assert [next(batches)["json"]["n"] for _ in range(5)] == trained(notes, 5)


def test_state_and_which_and_restored_samples(notes: Path, tmp_path: Path) -> None:
    make_crude_dataset(tmp_path / "crude", n=20, shards=2)
    path = metadataset(tmp_path, "{blend: [{weight: 3, path: notes.jsonl}, {weight: 1, path: crude}]}")

    def opened() -> Stream:
        return Stream.of(
            get_train_dataset(
                path, worker_config=ONE, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None
            )
        )

    with opened() as stream:
        for _ in range(3):
            next(stream)
        state = stream.cursor()
        expected = next(stream)
        records = stream.which(3)
    assert [record.key for record in records] == list(expected["__key__"])
    assert {record.shard for record in records if record.dataset.endswith(".jsonl")} == {"notes.jsonl"}
    with opened() as stream:
        stream.restore(state)
        again = next(stream)
        assert list(again["__key__"]) == list(expected["__key__"])
        assert list(stream.restore_sample(again["__restore_key__"])["__key__"]) == list(expected["__key__"])


@stateless
@cooker(need_primary=True)
def cook(sample: Any, primary: Any) -> Any:
    return {**sample, "own": primary.get(".json")}


class Primary(DefaultTaskEncoder):
    cookers = (Cooker(cook),)


def test_the_file_as_its_own_store(notes: Path) -> None:
    assert [sample["own"] for sample in validated(notes, task_encoder=Primary())] == [{"n": i} for i in range(60)]


class Undecoded(TaskEncoder[Any, Any, Any, Any]):
    decoder = None


def test_lines_are_always_decoded(notes: Path) -> None:
    assert validated(notes, task_encoder=Undecoded())[0]["json"] == {"n": 0}


def test_malformed_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('\n{"n": 0}\n\n{"n": }\n{"n": 2}\n')
    told: list[tuple[str, str]] = []
    config = WorkerConfig(
        rank=0,
        world_size=1,
        num_workers=0,
        global_error_handler=lambda error, sample, sources: told.append((type(error).__name__, str(error))),
    )
    samples = list(get_val_dataset(path, worker_config=config, batch_size=None))
    assert [sample["json"]["n"] for sample in samples] == [0, 2]
    ((kind, message),) = told
    assert kind == "DecodingError"
    assert message.startswith("x.jsonl:4: part 'json'")
    path.write_text('{"n": 0}\n["n"]\n')
    (tmp_path / "x.jsonl.idx").unlink()
    with pytest.raises(DecodingError, match=r"x.jsonl:2: b'\[\"n\"\]'"):
        validated(path)


def test_what_is_refused(notes: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a JSONL file has no split_config"):
        validated(notes, split_config="other.yaml")
    with pytest.raises(ConfigError, match="a JSONL file has no `dataset_config`"):
        validated(metadataset(tmp_path, "{path: notes.jsonl, dataset_config: d.yaml}"), split_part="train")
    make_crude_dataset(tmp_path / "crude", n=20, shards=2)
    for first, second in (("crude", "notes.jsonl"), ("notes.jsonl", "crude")):
        with pytest.raises(ConfigError, match="only prepared WebDataset folders can be joined"):
            validated(metadataset(tmp_path, f"{{join: [{{path: {first}}}, {{path: {second}}}]}}"), split_part="train")
    with pytest.raises(DatasetNotFoundError):
        validated(tmp_path / "none.jsonl")
    validated(notes)
    with notes.open("a") as file:
        file.write("{}\n")
    with pytest.raises(StaleIndexError, match="energon-grain prepare"):
        validated(notes)
