"""Arrays as members of joins in streams: what joiners get, and that they run as any other leaf does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pytest
import yaml
from arrays import numbered, write_array
from metadatasets import write_v2
from stream_hosts import quiet, train_on

from energon_grain import (
    ConfigError,
    DatasetNotFoundError,
    FingerprintError,
    Sample,
    Stream,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    get_val_dataset,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

COUNT = 40
KEYS = [f"{number:03d}" for number in range(COUNT)]
SCORED = [KEYS[number] for number in np.random.default_rng(0).permutation(COUNT)[: COUNT - 5]]


@dataclass(kw_only=True)
class Embedded(Sample):
    """A text and its vectors, merged field by field."""

    text: str
    emb: Any
    score: Any = None


@dataclass(kw_only=True)
class Named(Sample):
    """As `Embedded`, made by a joiner of its own."""

    text: str
    vector: Any
    score: Any

    @classmethod
    def from_joined(cls, base: Any, vector: Any, score: Any = None) -> Named:
        return cls.derive_from(base, text=base.text, vector=vector, score=score)


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType("types_of_a_test")
    vars(made).update(Embedded=Embedded, Named=Named)
    monkeypatch.setitem(sys.modules, made.__name__, made)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """40 texts, in splits; an array with a row for each, and one with the keys of most."""
    for name, crude in (("ds", False), ("crude", True)):
        samples = [{"__key__": key, "txt": f"text {key}"} for key in KEYS]
        write_tars(tmp_path / name, samples, shards=8)
        typed: dict[str, Any] = (
            {"crude": True} if crude else {"sample_type": "TextSample", "field_map": {"text": "txt"}}
        )
        prepare_dataset(tmp_path / name, split_ratio=(6, 2, 0), num_workers=0, **typed)
    write_array(tmp_path / "emb.zarr", numbered(COUNT, 3, 2), "zarr3", chunk=(7, 3, 2))
    write_array(tmp_path / "scores", np.array([int(key) for key in SCORED], np.int32), "zarr", chunk=(4,))
    (tmp_path / "scored.txt").write_text("\n".join(SCORED))
    return tmp_path


EMB: dict[str, Any] = {"array": "emb.zarr"}
SCORES: dict[str, Any] = {"array": "scores", "keys": "scored.txt", "nonmatch": "none", "field": "score"}


def metadataset(folder: Path, join: Any, joiner: str | None = None, **keys: Any) -> Path:
    split = {"join": join, **keys}
    if joiner is not None:
        split["joiner"] = {"__module__": "types_of_a_test", "__class__": joiner}
    return write_v2(folder, train=split, val=split)


def rows(path: Path, split: str = "train") -> Iterator[Any]:
    dataset = get_val_dataset(path, split_part=split, batch_size=None, trusted_modules=["types_of_a_test"])
    return iter(Stream.of(dataset))


def row_of(key: str) -> list[Any]:
    return numbered(COUNT, 3, 2)[int(key)].tolist()


@pytest.mark.parametrize("split", ["train", "val"])
def test_merged_into_a_type(folder: Path, split: str) -> None:
    path = metadataset(folder, [{"path": "ds"}, EMB, SCORES], "Embedded")
    keys = []
    for row in rows(path, split):
        keys.append(row.__key__)
        assert type(row) is Embedded
        assert row.text == f"text {row.__key__}"
        assert row.emb.tolist() == row_of(row.__key__)
        found = None if row.__key__ not in SCORED else int(row.__key__)
        assert (row.score if found is None else (row.score.shape, row.score.dtype, int(row.score))) == (
            found if found is None else ((), np.int32, found)
        )
        sources = [(source.dataset_path.name, source.index) for source in row.__sources__]
        scored = [] if found is None else [("scores", SCORED.index(row.__key__))]
        assert sources == [("ds", int(row.__key__)), ("emb.zarr", int(row.__key__)), *scored]
    assert keys == (KEYS[:30] if split == "train" else KEYS[30:])


def test_merged_by_column_and_row_by_row_are_equal(folder: Path) -> None:
    """A chunk in which a row is missing is merged one by one."""
    whole = list(rows(metadataset(folder, [{"path": "ds"}, EMB], "Embedded")))
    gaps = list(rows(metadataset(folder, [{"path": "ds"}, EMB, SCORES], "Embedded")))
    assert [row.emb.tolist() for row in whole] == [row.emb.tolist() for row in gaps]
    assert {row.__sources__[:2] == other.__sources__ for row, other in zip(gaps, whole, strict=True)} == {True}


def test_merged_into_crude_samples(folder: Path) -> None:
    for row in rows(metadataset(folder, [{"path": "crude"}, EMB, SCORES])):
        assert row["txt"] == f"text {row['__key__']}"
        assert row["emb"].tolist() == row_of(row["__key__"])
        assert ("score" in row) == (row["__key__"] in SCORED)
        assert [source.dataset_path.name for source in row["__sources__"]][:2] == ["crude", "emb.zarr"]


@pytest.mark.parametrize("named", [False, True])
def test_joiners_get_bare_rows(folder: Path, named: bool) -> None:
    members = {"base": {"path": "ds"}, "vector": EMB, "score": SCORES}
    found = list(rows(metadataset(folder, members if named else list(members.values()), "Named")))
    assert [row.vector.tolist() for row in found] == list(map(row_of, KEYS[:30]))
    assert [row.score is None for row in found] == [key not in SCORED for key in KEYS[:30]]
    for row in found:
        sources = [(source.dataset_path.name, source.index) for source in row.__sources__]
        assert sources[:2] == [("ds", int(row.__key__)), ("emb.zarr", int(row.__key__))]
        assert len(sources) == 2 + (row.score is not None)


def test_names_are_fields(folder: Path) -> None:
    """Where all but the primary are arrays, a mapping needs no joiner of its own."""
    members = {"base": {"path": "ds"}, "emb": {"array": "scores", "keys": "scored.txt", "nonmatch": "skip"}}
    found = list(rows(metadataset(folder, members, "Embedded")))
    assert [(row.__key__, int(row.emb)) for row in found] == [(key, int(key)) for key in KEYS[:30] if key in SCORED]
    crude = list(rows(metadataset(folder, {"x": {"path": "crude"}, "y": EMB})))
    assert crude[3]["y"].tolist() == row_of("003")
    with pytest.raises(ConfigError, match="joined by name"):
        rows(metadataset(folder, {**members, "other": {"path": "ds"}}, "Embedded"))


def test_fields_that_the_type_lacks_are_told(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"TextSample has no field 'emb' .* which `field` they are, or name a `joiner`"
    ):
        rows(metadataset(folder, [{"path": "ds"}, EMB]))


def test_row_numbers_stay_under_excludes_and_subsets(folder: Path) -> None:
    split = folder / "ds" / ".nv-meta" / "split.yaml"
    content = yaml.safe_load(split.read_text())
    first = content["split_parts"]["train"][0]
    split.write_text(yaml.safe_dump({**content, "exclude": [f"{first}/001"]}))
    path = metadataset(folder, [{"path": "ds"}, EMB], "Embedded", subset={"range": [1, 4]})
    assert [(row.__key__, row.emb.tolist()) for row in rows(path)] == [(key, row_of(key)) for key in KEYS[2:5]]


class Sums(TaskEncoder):
    """Texts with the sum of their vector, packed three at a time."""

    def encode_sample(self, sample: Embedded) -> TextSample:
        score = "none" if sample.score is None else int(sample.score)
        text = f"{sample.__key__}:{int(sample.emb.sum())}:{score}:{int(self.rng.integers(1000))}"
        return TextSample.derive_from(sample, text=text)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return TextSample.derive_from(samples[0], text=" ".join(sample.text for sample in samples))

    def batch(self, samples: list[Any]) -> Any:
        return {"texts": [sample.text for sample in samples], "__restore_key__": ()}


def stream(
    path: Path,
    rank: int = 0,
    hosts: int = 1,
    workers: int = 0,
    kind: Literal["thread", "process"] = "thread",
    packing: int | None = None,
) -> Stream:
    dataset = train_on(
        path,
        worker_config=WorkerConfig(rank, hosts, workers, worker_type=kind, global_error_handler=quiet),
        batch_size=4 // hosts,
        packing_buffer_size=packing,
        task_encoder=Sums(),
        lanes=8,
        trusted_modules=["types_of_a_test"],
    )
    return Stream.of(dataset)


@pytest.mark.parametrize("packing", [None, 8])
def test_rows_run_as_any_leaf_does(folder: Path, packing: int | None) -> None:
    """Shuffled, packed; saved and restored, on two hosts and with workers of both kinds; replayed one by one."""
    path = metadataset(folder, [{"path": "ds"}, EMB, SCORES], "Embedded")
    whole = stream(path, packing=packing)
    first, states, keys = [], [], []
    for _ in range(12):
        batch = next(whole)
        first.append(batch["texts"])
        keys.append(batch["__restore_key__"])
        states.append(json.loads(json.dumps(whole.cursor())))
    for text in " ".join(text for texts in first for text in texts).split():
        key, total, score, _ = text.split(":")
        assert int(total) == int(numbered(COUNT, 3, 2)[int(key)].sum())
        assert score == (str(int(key)) if key in SCORED else "none")
    assert [whole.restore_sample(json.loads(json.dumps(key)))["texts"] for key in keys] == first
    for kind in ("thread", "process"):
        with stream(path, workers=2, kind=kind, packing=packing) as helped:
            assert [next(helped)["texts"] for _ in range(12)] == first
    hosts = [stream(path, rank, 2, packing=packing) for rank in range(2)]
    for host in hosts:
        host.restore(states[4])
    for step in range(5, 12):
        assert sorted(text for host in hosts for text in next(host)["texts"]) == sorted(first[step])
    if packing is None:
        assert [record.key for record in whole.which(3)] == [text.split(":")[0] for text in first[3]]


def test_states_belong_to_one_array(folder: Path) -> None:
    path = metadataset(folder, [{"path": "ds"}, EMB], "Embedded")
    before = stream(path)
    next(before)
    state = before.cursor()
    write_array(folder / "emb.zarr", numbered(COUNT, 3, 2) + 1, "zarr3", chunk=(7, 3, 2))
    for index in (folder / "meta.yaml.cache").glob(".join_*"):
        (index / "header.json").unlink()
    with pytest.raises(FingerprintError):
        stream(path).restore(state)


def test_missing_arrays_are_told(folder: Path) -> None:
    for member, place in (({"array": "nothing"}, "array"), ({"array": "emb.zarr", "keys": "nothing.txt"}, "keys")):
        with pytest.raises(DatasetNotFoundError, match=rf"join\[1\]\.{place}: .*nothing.*: there is nothing there"):
            rows(metadataset(folder, [{"path": "ds"}, member], "Embedded"))
    with pytest.raises(DatasetNotFoundError, match="here must be a zarr"):
        rows(metadataset(folder, [{"path": "ds"}, {"array": "crude"}], "Embedded"))
