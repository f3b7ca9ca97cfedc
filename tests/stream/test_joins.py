"""Joined datasets in streams: rows, joiners, and that they run as any other leaf does."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from metadatasets import write_v2
from stream_hosts import config, train_on

from energon_grain import (
    ConfigError,
    Cooker,
    DefaultTaskEncoder,
    Sample,
    Stream,
    TaskEncoder,
    TextSample,
    UntrustedCodeError,
    basic_sample_keys,
    get_val_dataset,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

Folder = Callable[..., Path]
KEYS = {"ds1": "s1 s2 s3 s5 s6", "ds2": "s7 s1 s3 s4 s6", "ds3": "s100 s3 s2 s1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The three datasets of Energon's page on joining, their shards cut and their keys ordered differently."""
    for shards, (name, keys) in enumerate(KEYS.items(), 1):
        write(tmp_path / name, {key: {"txt": f"{name}:{key}"} for key in keys.split()}, shards=shards)
    return tmp_path


def write(root: Path, samples: dict[str, dict[str, Any]], *, shards: int = 1, crude: bool = False) -> None:
    root.mkdir()
    write_tars(root, [{"__key__": key, **parts} for key, parts in samples.items()], shards=shards)
    typed: dict[str, Any] = {"crude": True} if crude else {"sample_type": "TextSample", "field_map": {"text": "txt"}}
    prepare_dataset(root, split_ratio=(1, 0, 0), **typed)


@dataclass(kw_only=True)
class Row(Sample):
    """What the datasets have for a key."""

    first: Any
    second: Any
    third: Any = None

    @classmethod
    def from_joined(cls, ds1: Any, ds2: Any = None, ds3: Any = None) -> Row:
        texts = [None if sample is None else sample.text for sample in (ds1, ds2, ds3)]
        return cls.derive_from(ds1, first=texts[0], second=texts[1], third=texts[2])


def in_a_tuple(*samples: Any, **named: Any) -> Row:
    assert not named
    return Row.from_joined(*samples)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    made = ModuleType("joiners_of_a_test")
    vars(made).update(Row=Row, in_a_tuple=in_a_tuple)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made.__name__


def rows(path: Path, **options: Any) -> list[Any]:
    dataset = get_val_dataset(path, **{"split_part": "train", "batch_size": None, **options})
    return list(Stream.of(dataset))


def test_the_example_of_the_documentation(folder: Path, module: str) -> None:
    join = [{"path": "ds1"}, {"path": "ds2", "nonmatch": "skip"}, {"path": "ds3", "nonmatch": "none"}]
    path = write_v2(folder, train={"join": join, "joiner": {"__module__": module, "__class__": "Row"}})
    found = rows(path, trusted_modules=[module])
    assert [(row.__key__, row.first, row.second, row.third) for row in found] == [
        ("s1", "ds1:s1", "ds2:s1", "ds3:s1"),
        ("s3", "ds1:s3", "ds2:s3", "ds3:s3"),
        ("s6", "ds1:s6", "ds2:s6", None),
    ]
    assert [row.__restore_key__ for row in found] == [("sample", 0, number) for number in range(3)]
    assert [[source.dataset_path.name for source in row.__sources__] for row in found] == [
        ["ds1", "ds2", "ds3"],
        ["ds1", "ds2", "ds3"],
        ["ds1", "ds2"],
    ]


def test_by_name(folder: Path, module: str) -> None:
    join = {"ds3": {"path": "ds3"}, "ds1": {"path": "ds1", "nonmatch": "skip"}}
    with pytest.raises(ConfigError, match="by name"):
        rows(
            write_v2(
                folder, train={"join": join, "joiner": {"__module__": "megatron.energon", "__class__": "TextSample"}}
            )
        )
    path = write_v2(folder, train={"join": join, "joiner": {"__module__": module, "__class__": "Row"}})
    found = rows(path, trusted_modules=[module])
    assert [(row.__key__, row.first, row.third) for row in found] == [
        ("s3", "ds1:s3", "ds3:s3"),
        ("s2", "ds1:s2", "ds3:s2"),
        ("s1", "ds1:s1", "ds3:s1"),
    ]


def test_functions_and_trust(folder: Path, module: str) -> None:
    join = [{"path": "ds1"}, {"path": "ds2", "nonmatch": "none"}]
    path = write_v2(folder, train={"join": join, "joiner": {"__module__": module, "__function__": "in_a_tuple"}})
    with pytest.raises(UntrustedCodeError, match="trusted_modules"):
        rows(path)
    found = rows(path, trusted_modules=[module])
    assert [row.second for row in found] == ["ds2:s1", None, "ds2:s3", None, "ds2:s6"]


def test_without_a_joiner_fields_are_merged(folder: Path) -> None:
    path = write_v2(folder, train={"join": [{"path": "ds1"}, {"path": "ds2", "nonmatch": "skip"}]})
    found = rows(path)
    assert [type(row) for row in found] == [TextSample] * 3
    assert [row.text for row in found] == ["ds2:s1", "ds2:s3", "ds2:s6"]  # of equal fields the last counts
    sources = found[0].__sources__
    assert [source.dataset_path.name for source in sources] == ["ds1", "ds2"]


class Cooks(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Makes texts of crude rows."""

    cookers = (Cooker(lambda row: TextSample(**basic_sample_keys(row), text=row["a.txt"] + "+" + row["b.txt"])),)


def test_crude_rows_are_cooked(tmp_path: Path) -> None:
    write(tmp_path / "left", {key: {"a.txt": f"a{key}"} for key in "xyz"}, crude=True)
    write(tmp_path / "right", {key: {"b.txt": f"b{key}"} for key in "zyx"}, crude=True)
    path = write_v2(tmp_path, train={"join": [{"path": "left"}, {"path": "right"}]})
    assert [row.text for row in rows(path, task_encoder=Cooks())] == ["ax+bx", "ay+by", "az+bz"]


def many(tmp_path: Path, count: int = 40) -> Path:
    for name, order in (("left", range(count)), ("right", reversed(range(count)))):
        write(tmp_path / name, {f"{number:03d}": {"txt": f"{name}{number}"} for number in order}, shards=3)
    join = {"join": [{"path": "left"}, {"path": "right"}], "joiner": {"__module__": "m", "__class__": "Row"}}
    return write_v2(tmp_path, train={"blend": [{"weight": 3, **join}, {"weight": 1, "path": "left"}]})


class Texts(TaskEncoder):
    """The texts of rows and of plain samples, packed three at a time."""

    def encode_sample(self, sample: Any) -> Any:
        text = f"{sample.first}|{sample.second}" if isinstance(sample, Row) else sample.text
        return TextSample.derive_from(sample, text=f"{text}@{int(self.rng.integers(1000))}")

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return TextSample.derive_from(samples[0], text=" ".join(sample.text for sample in samples))

    def batch(self, samples: list[Any]) -> Any:
        return {"texts": [sample.text for sample in samples], "__restore_key__": ()}


@pytest.mark.parametrize("packing", [None, 8])
def test_rows_run_as_any_leaf_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: int | None) -> None:
    """Shuffled, blended, packed; saved and restored, on other numbers of hosts and with workers."""
    made = ModuleType("m")
    vars(made)["Row"] = Row
    monkeypatch.setitem(sys.modules, "m", made)
    path = many(tmp_path)

    def stream(rank: int = 0, hosts: int = 1, workers: int = 0) -> Stream:
        dataset = train_on(
            path,
            worker_config=config(rank, hosts, workers),
            batch_size=8 // hosts,
            packing_buffer_size=packing,
            task_encoder=Texts(),
            lanes=8,
            trusted_modules=["m"],
        )
        return Stream.of(dataset)

    whole = stream()
    first, states, keys = [], [], []
    for _ in range(8):
        batch = next(whole)
        first.append(batch["texts"])
        keys.append(batch["__restore_key__"])
        states.append(json.loads(json.dumps(whole.cursor())))
    joined = [text for texts in first for pack in texts for text in pack.split() if "|" in text]
    assert joined
    for text in joined:
        left, right = text.partition("@")[0].split("|")
        assert left.removeprefix("left") == right.removeprefix("right")
    assert [next(with_threads)["texts"] for with_threads in [stream(workers=2)] for _ in range(8)] == first
    assert [whole.restore_sample(json.loads(json.dumps(key)))["texts"] for key in keys] == first
    hosts = [stream(rank, 4) for rank in range(4)]
    for host in hosts:
        host.restore(states[2])
    for step in range(3, 8):
        assert sorted(text for host in hosts for text in next(host)["texts"]) == sorted(first[step])


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_rows_from_workers_name_all_their_sources(folder: Path, worker_type: str) -> None:
    path = write_v2(folder, train={"join": [{"path": "ds1"}, {"path": "ds2", "nonmatch": "skip"}]})
    dataset = get_val_dataset(
        path, split_part="train", batch_size=None, worker_config=config(num_workers=1, worker_type=worker_type)
    )
    with Stream.of(dataset) as stream:
        found = list(stream)
    assert [[source.file_names[0] for source in row.__sources__] for row in found] == [
        [f"{key}.txt"] * 2 for key in ("s1", "s3", "s6")
    ]


def test_joiners_with_sources_of_their_own(folder: Path, module: str) -> None:
    def named(*samples: Any) -> Any:
        row = Row.from_joined(*samples)
        if row.__key__ == "s1":
            row.__sources__ = samples[1].__sources__
        if row.__key__ == "s2":
            row.__sources__ = None
        return {"__key__": "s3", "__sources__": row.__sources__} if row.__key__ == "s3" else row

    vars(sys.modules[module])["named"] = named
    join = [{"path": "ds1"}, {"path": "ds2", "nonmatch": "none"}]
    path = write_v2(folder, train={"join": join, "joiner": {"__module__": module, "__function__": "named"}})
    found = rows(path, trusted_modules=[module])
    sources = [row["__sources__"] if isinstance(row, dict) else row.__sources__ for row in found]
    names = [[source.dataset_path.name for source in each or ()] for each in sources]
    assert names == [["ds2"], [], ["ds1", "ds2"], ["ds1"], ["ds1", "ds2"]]


def test_dropped_members_drop_the_row(tmp_path: Path, module: str) -> None:
    write(tmp_path / "left", {key: {"txt": key.encode()} for key in "abc"})
    write(tmp_path / "right", {"a": {"txt": b"a"}, "b": {"txt": b"\xff\xfe\xff"}, "c": {"txt": b"c"}})
    path = write_v2(tmp_path, train={"join": [{"path": "left"}, {"path": "right"}]})
    dataset = get_val_dataset(path, split_part="train", batch_size=None, worker_config=config())
    stream = Stream.of(dataset)
    assert [row.__key__ for row in stream] == ["a", "c"]
    assert stream.stats()["dropped_total"] == 1


def test_subsets_and_subflavors(folder: Path) -> None:
    join = [{"path": "ds1", "subflavors": {"a": 1, "b": 1}}, {"path": "ds2", "nonmatch": "skip"}]
    path = write_v2(folder, train={"join": join, "subflavors": {"b": 2}, "subset": {"range": [1, 3]}})
    found = rows(path)
    assert [row.__key__ for row in found] == ["s3", "s6"]
    assert found[0].__subflavors__ == {"a": 1, "b": 2}


def test_what_is_wrong_names_the_place_of_the_join(folder: Path) -> None:
    def refused(**changes: Any) -> str:
        join = [{"path": "ds1"}, {"path": "ds2", "nonmatch": "skip", **changes.pop("second", {})}]
        path = write_v2(folder, train={"join": join, **changes})
        with pytest.raises(ConfigError, match=rf"^{path}: ") as caught:
            len(get_val_dataset(path, split_part="train", batch_size=1, worker_config=config()))
        return str(caught.value).removeprefix(f"{path}: ")

    assert refused(subset=[0, 9]).startswith("$.splits.train: subset [0, 9]: the join has only 3 ")
    missing = refused(second={"split_part": "tarin"})
    assert missing.startswith(f"$.splits.train: {folder}/ds2/.nv-meta/split.yaml: there is no split part 'tarin'")
