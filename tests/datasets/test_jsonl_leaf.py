"""JSONL files as leaves: order, state, blends, hosts, workers, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from metadatasets import write_v2

from energon_grain import (
    ConfigError,
    Cooker,
    DatasetNotFoundError,
    DecodingError,
    DefaultTaskEncoder,
    EPath,
    StaleIndexError,
    TaskEncoder,
    WorkerConfig,
    cooker,
    get_val_dataset,
    stateless,
)
from energon_grain.testing import make_crude_dataset

ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "notes.jsonl", ({"n": i} for i in range(60)))


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path


def validated(path: Path, **options: Any) -> list[Any]:
    return list(get_val_dataset(path, worker_config=ONE, batch_size=None, **options))


def test_samples(notes: Path) -> None:
    samples = validated(notes, split_part="whatever")
    assert [sample["json"]["n"] for sample in samples] == list(range(60))
    third = samples[3]
    assert (third["__key__"], third["__shard__"], third["__subflavors__"]) == ("3", "notes.jsonl", {})
    (source,) = third["__sources__"]
    assert (source.dataset_path, source.index, source.file_names) == (EPath(notes), 3, ("3.json",))


def test_subset_and_subflavors(notes: Path, tmp_path: Path) -> None:
    path = write_v2(tmp_path, train="{path: notes.jsonl, subset: {range: [10%, 20]}, subflavors: {kind: note}}")
    with pytest.raises(ConfigError):
        validated(path, split_part="train")
    path = write_v2(tmp_path, train="{path: notes.jsonl, subset: {range: [10, 20]}, subflavors: {kind: note}}")
    samples = validated(path, split_part="train")
    assert [sample["json"]["n"] for sample in samples] == list(range(10, 20))
    assert samples[0]["__key__"] == "10"
    assert samples[0]["__subflavors__"] == {"kind": "note"}


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
        validated(write_v2(tmp_path, train="{path: notes.jsonl, dataset_config: d.yaml}"), split_part="train")
    make_crude_dataset(tmp_path / "crude", n=20, shards=2)
    for first, second in (("crude", "notes.jsonl"), ("notes.jsonl", "crude")):
        path = write_v2(tmp_path, train={"join": [{"path": first}, {"path": second}]})
        with pytest.raises(ConfigError, match=r"\d+ of \d+ keys of .* are not in"):
            validated(path, split_part="train")
    with pytest.raises(DatasetNotFoundError):
        validated(tmp_path / "none.jsonl")
    validated(notes)
    with notes.open("a") as file:
        file.write("{}\n")
    with pytest.raises(StaleIndexError, match="energon-grain prepare"):
        validated(notes)
