"""Joined datasets and arrays in streams: rows, joiners, and that they run as any other leaf does."""

from __future__ import annotations

import json
import re
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
from cli_runs import run
from metadatasets import write_v2
from stream_hosts import config, quiet, train_on

from energon_grain import (
    ConfigError,
    Cooker,
    DatasetNotFoundError,
    DefaultTaskEncoder,
    FingerprintError,
    Sample,
    Stream,
    TaskEncoder,
    TextSample,
    UntrustedCodeError,
    WorkerConfig,
    basic_sample_keys,
    get_val_dataset,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

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
    assert missing.startswith(f"$.splits.train: {folder}/ds2/.nv-meta/split.yaml: no split part 'tarin'")


@dataclass(kw_only=True)
class Longer(Sample):
    """Needs a field that no dataset has."""

    text: str
    more: int


@pytest.mark.parametrize(
    ("second", "joiner", "says"),
    [
        (
            "captions",
            None,
            r"into TextSample, which has no field 'image' of .*captions. Set a `joiner`",
        ),
        ("ds2", "Longer", r"\(text\) are merged into Longer, which requires 'more', a field that no dataset has. Set"),
        ("crude", None, r"crude is crude, so its samples have no fields to merge into TextSample; give it a sample"),
    ],
)
def test_a_merge_that_cannot_work_is_refused_when_it_is_opened(
    folder: Path, module: str, second: str, joiner: str | None, says: str
) -> None:
    keys = KEYS["ds1"].split()
    write_tars(folder / "captions", [{"__key__": key, "jpg": b"", "txt": key} for key in keys])
    typed: Any = {"sample_type": "CaptioningSample", "field_map": {"image": "jpg", "caption": "txt"}}
    prepare_dataset(folder / "captions", split_ratio=(1, 0, 0), num_workers=0, **typed)
    write(folder / "crude", {key: {"txt": key} for key in keys}, crude=True)
    vars(sys.modules[module])["Longer"] = Longer
    named = {} if joiner is None else {"joiner": {"__module__": module, "__class__": joiner}}
    path = write_v2(folder, train={"join": [{"path": "ds1"}, {"path": second, "nonmatch": "skip"}], **named})
    dataset = get_val_dataset(path, split_part="train", batch_size=None, trusted_modules=[module])
    with pytest.raises(ConfigError, match=rf"^{path}: \$.splits.train: .*{says}"):
        len(dataset)
    if joiner is None:
        for command in ("info", "lint"):
            done = run(command, path)
            assert done.exit_code == 1
            assert re.search(says, f"{' '.join(done.output.split())} {done.exception}")


COUNT = 40
ARRAY_KEYS = [f"{number:03d}" for number in range(COUNT)]
SCORED = [ARRAY_KEYS[number] for number in np.random.default_rng(0).permutation(COUNT)[: COUNT - 5]]


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
def arrays_module(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType("types_of_a_test")
    vars(made).update(Embedded=Embedded, Named=Named)
    monkeypatch.setitem(sys.modules, made.__name__, made)


@pytest.fixture
def arrays_folder(tmp_path: Path) -> Path:
    """40 texts, in splits; an array with a row for each, and one with the keys of most."""
    for name, crude in (("ds", False), ("crude", True)):
        samples = [{"__key__": key, "txt": f"text {key}"} for key in ARRAY_KEYS]
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


def array_rows(path: Path, split: str = "train") -> Iterator[Any]:
    dataset = get_val_dataset(path, split_part=split, batch_size=None, trusted_modules=["types_of_a_test"])
    return iter(Stream.of(dataset))


def row_of(key: str) -> list[Any]:
    return numbered(COUNT, 3, 2)[int(key)].tolist()


@pytest.mark.parametrize("split", ["train", "val"])
def test_merged_into_a_type(arrays_folder: Path, split: str) -> None:
    path = metadataset(arrays_folder, [{"path": "ds"}, EMB, SCORES], "Embedded")
    keys = []
    for row in array_rows(path, split):
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
    assert keys == (ARRAY_KEYS[:30] if split == "train" else ARRAY_KEYS[30:])


def test_merged_by_column_and_row_by_row_are_equal(arrays_folder: Path) -> None:
    """A chunk in which a row is missing is merged one by one."""
    whole = list(array_rows(metadataset(arrays_folder, [{"path": "ds"}, EMB], "Embedded")))
    gaps = list(array_rows(metadataset(arrays_folder, [{"path": "ds"}, EMB, SCORES], "Embedded")))
    assert [row.emb.tolist() for row in whole] == [row.emb.tolist() for row in gaps]
    assert {row.__sources__[:2] == other.__sources__ for row, other in zip(gaps, whole, strict=True)} == {True}


def test_merged_into_crude_samples(arrays_folder: Path) -> None:
    for row in array_rows(metadataset(arrays_folder, [{"path": "crude"}, EMB, SCORES])):
        assert row["txt"] == f"text {row['__key__']}"
        assert row["emb"].tolist() == row_of(row["__key__"])
        assert ("score" in row) == (row["__key__"] in SCORED)
        assert [source.dataset_path.name for source in row["__sources__"]][:2] == ["crude", "emb.zarr"]


@pytest.mark.parametrize("named", [False, True])
def test_joiners_get_bare_rows(arrays_folder: Path, named: bool) -> None:
    members = {"base": {"path": "ds"}, "vector": EMB, "score": SCORES}
    found = list(array_rows(metadataset(arrays_folder, members if named else list(members.values()), "Named")))
    assert [row.vector.tolist() for row in found] == list(map(row_of, ARRAY_KEYS[:30]))
    assert [row.score is None for row in found] == [key not in SCORED for key in ARRAY_KEYS[:30]]
    for row in found:
        sources = [(source.dataset_path.name, source.index) for source in row.__sources__]
        assert sources[:2] == [("ds", int(row.__key__)), ("emb.zarr", int(row.__key__))]
        assert len(sources) == 2 + (row.score is not None)


def test_names_are_fields(arrays_folder: Path) -> None:
    """Where all but the primary are arrays, a mapping needs no joiner of its own."""
    members = {"base": {"path": "ds"}, "emb": {"array": "scores", "keys": "scored.txt", "nonmatch": "skip"}}
    found = list(array_rows(metadataset(arrays_folder, members, "Embedded")))
    assert [(row.__key__, int(row.emb)) for row in found] == [
        (key, int(key)) for key in ARRAY_KEYS[:30] if key in SCORED
    ]
    crude = list(array_rows(metadataset(arrays_folder, {"x": {"path": "crude"}, "y": EMB})))
    assert crude[3]["y"].tolist() == row_of("003")
    with pytest.raises(ConfigError, match="joined by name"):
        array_rows(metadataset(arrays_folder, {**members, "other": {"path": "ds"}}, "Embedded"))


def test_fields_that_the_type_lacks_are_told(arrays_folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"TextSample has no field 'emb' .* set the `field` of the array, or set a `joiner`"
    ):
        array_rows(metadataset(arrays_folder, [{"path": "ds"}, EMB]))


def test_row_numbers_stay_under_excludes_and_subsets(arrays_folder: Path) -> None:
    split = arrays_folder / "ds" / ".nv-meta" / "split.yaml"
    content = yaml.safe_load(split.read_text())
    first = content["split_parts"]["train"][0]
    split.write_text(yaml.safe_dump({**content, "exclude": [f"{first}/001"]}))
    path = metadataset(arrays_folder, [{"path": "ds"}, EMB], "Embedded", subset={"range": [1, 4]})
    assert [(row.__key__, row.emb.tolist()) for row in array_rows(path)] == [
        (key, row_of(key)) for key in ARRAY_KEYS[2:5]
    ]


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
def test_rows_with_arrays_run_as_any_leaf_does(arrays_folder: Path, packing: int | None) -> None:
    """Shuffled, packed; saved and restored, on two hosts and with workers of both kinds; replayed one by one."""
    path = metadataset(arrays_folder, [{"path": "ds"}, EMB, SCORES], "Embedded")
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


def test_states_belong_to_one_array(arrays_folder: Path) -> None:
    path = metadataset(arrays_folder, [{"path": "ds"}, EMB], "Embedded")
    before = stream(path)
    next(before)
    state = before.cursor()
    write_array(arrays_folder / "emb.zarr", numbered(COUNT, 3, 2) + 1, "zarr3", chunk=(7, 3, 2))
    for index in (arrays_folder / "meta.yaml.cache").glob(".join_*"):
        (index / "header.json").unlink()
    with pytest.raises(FingerprintError):
        stream(path).restore(state)


def test_missing_arrays_are_told(arrays_folder: Path) -> None:
    for member, place in (({"array": "nothing"}, "array"), ({"array": "emb.zarr", "keys": "nothing.txt"}, "keys")):
        with pytest.raises(DatasetNotFoundError, match=rf"join\[1\]\.{place}: .*nothing.*: no such file or folder"):
            array_rows(metadataset(arrays_folder, [{"path": "ds"}, member], "Embedded"))
    with pytest.raises(DatasetNotFoundError, match="expected a zarr"):
        array_rows(metadataset(arrays_folder, [{"path": "ds"}, {"array": "crude"}], "Embedded"))
