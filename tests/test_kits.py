"""The kits, on every source and node of ours, and on some that break the contract. Stores: test_file_stores.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from arrays import DRIVERS, numbered, write_array, write_group
from object_server import Bucket
from parquet_files import write_parquet
from records import irregular_samples, msgpack_record, write_shards
from table_forms import write_arrow, write_feather, write_mds, write_tokens

from energon_grain import (
    BatchDataset,
    BlendDataset,
    BlendEpochizedDataset,
    ConcatDataset,
    EPath,
    EpochizeDataset,
    FileStore,
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    LimitDataset,
    MapDataset,
    MixBatchDataset,
    ObjectFileStore,
    PackingDataset,
    RepeatDataset,
    ShuffleBufferDataset,
    SkipSample,
    SourceInfo,
    WebDatasetSource,
    WorkerConfig,
    current_draw,
    get_train_dataset,
    homogeneous_concat_mix,
)
from energon_grain.errors import KeyNotFoundError
from energon_grain.kinds.array_record.source import ArrayRecordSource
from energon_grain.kinds.arrays.source import ArrayGroupRows, ArraySource
from energon_grain.kinds.joins.build import build_join
from energon_grain.kinds.joins.members import JoinedArray, JoinedDataset
from energon_grain.kinds.joins.source import JoinedSource
from energon_grain.kinds.jsonl.kind import JSONL
from energon_grain.kinds.jsonl.source import JsonlFileStore, JsonlRows
from energon_grain.kinds.own import OWN
from energon_grain.kinds.tables.arrow_files import ArrowFiles
from energon_grain.kinds.tables.mds_files import MdsFiles
from energon_grain.kinds.tables.parquet import ParquetFiles
from energon_grain.kinds.tables.source import TableRows
from energon_grain.kinds.tokens.source import TokenRows
from energon_grain.prepare import prepare_dataset
from energon_grain.processes.pool import ProcessPool, process_pool
from energon_grain.sources import kinds
from energon_grain.sources.kinds import kind_named
from energon_grain.sources.rows import SelectedSource, selected
from energon_grain.stream.drops import Dropped
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.workers import ThreadPool
from energon_grain.testing import check_kind, check_node, check_pool, check_source, check_store, write_tars

COUNT = 23
SAMPLES = irregular_samples(COUNT)
LINES = [json.dumps({"i": i, "text": "ä" * (i % 7)}, ensure_ascii=False).encode() + b"\n" for i in range(40)]
COLUMNS = {"n": list(range(40)), "text": [f"text {i}" for i in range(40)]}
ROWS = [{"n": i, "text": f"text {i}"} for i in range(40)]
DOCUMENTS = [list(range(i * 3 % 11)) for i in range(30)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dataset of each kind."""
    root = tmp_path_factory.mktemp("kinds")
    write_tars(root / "tars", SAMPLES, shards=3)
    write_shards(root / "records", [msgpack_record(sample) for sample in SAMPLES], 3)
    for name, options in (("tars", {}), ("records", {"records": "msgpack"})):
        prepare_dataset(root / name, split_ratio={"train": 1}, crude=True, num_workers=0, **options)
    (root / "x.jsonl").write_bytes(b"".join(LINES))
    write_parquet(root / "parquet", COLUMNS, files=3, row_group_size=7)
    write_arrow(root / "arrow" / "a.arrow", COLUMNS)
    write_feather(root / "feather" / "a.arrow", COLUMNS)
    write_arrow(root / "zstd" / "a.arrow", COLUMNS, compression="zstd")
    write_mds(root / "mds", COLUMNS)
    write_tokens(root / "tokens", DOCUMENTS, dtype="<i4", sequence=4)
    for driver in DRIVERS:
        write_group(root / driver, driver, image=numbered(40, 3, 2), n=np.arange(40))
    write_tars(root / "bare" / "deep", SAMPLES, shards=3)
    write_array(root / "score", numbered(COUNT, 2))
    write_tars(root / "other", [{"__key__": each["__key__"], "bin": b"%d" % i} for i, each in enumerate(SAMPLES)][::-2])
    prepare_dataset(root / "other", split_ratio={"train": 1}, crude=True, num_workers=0)
    return root


TABLES = {"parquet": ParquetFiles, "arrow": ArrowFiles, "mds": MdsFiles}


def tables(root: Path, name: str, kind: str, *chosen: Any) -> SelectedSource:
    return selected(TableRows(TABLES[kind](root / name)), *chosen)


def joined(root: Path, **options: Any) -> JoinedSource:
    members = [JoinedDataset(root / "tars", "train"), JoinedDataset(root / "other", "train", nonmatch="none")]
    index = build_join([*members, JoinedArray(root / "score", nonmatch="none")], root / "cache")
    sources = [WebDatasetSource(root / "tars"), WebDatasetSource(root / "other"), ArraySource(root / "score")]
    return JoinedSource(index, sources, **options)


def group(root: Path) -> list[dict[str, Any]]:
    del root
    return [{"image": row, "n": np.int64(i)} for i, row in enumerate(numbered(40, 3, 2))]


SOURCES: dict[str, tuple[Callable[[Path], Any], list[dict[str, Any]] | None]] = {
    "tars": (lambda root: WebDatasetSource(root / "tars"), SAMPLES),
    "tars, shards": (
        lambda root: WebDatasetSource(root / "tars", shards=["shard_002.tar", "shard_000.tar", "shard_002.tar"]),
        [*SAMPLES[15:], *SAMPLES[:7], *SAMPLES[15:]],
    ),
    "records": (lambda root: ArrayRecordSource(root / "records"), SAMPLES),
    "lines": (lambda root: selected(JsonlRows(root / "x.jsonl")), [{"json": line} for line in LINES]),
    "parquet": (lambda root: tables(root, "parquet", "parquet"), None),
    "parquet, runs": (
        lambda root: tables(root, "parquet", "parquet", 1, None, None, [(0, 3), (2, 4), (0, 13)]),
        None,
    ),
    "arrow": (lambda root: tables(root, "arrow", "arrow"), None),
    "arrow, file format": (lambda root: tables(root, "feather", "arrow", 10, 30), None),
    "arrow, compressed": (lambda root: tables(root, "zstd", "arrow"), None),
    "mds": (lambda root: tables(root, "mds", "mds"), None),
    "tokens": (
        lambda root: selected(TokenRows(root / "tokens")),
        [{"tokens": np.array(each, np.int32)} for each in DOCUMENTS],
    ),
    "join": (joined, None),
    "join, subset": (lambda root: joined(root, start=4, stop=20), None),
    **{
        f"arrays, {driver}": (lambda root, driver=driver: selected(ArrayGroupRows(root / driver)), group(Path()))
        for driver in DRIVERS
    },
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source(data: Path, name: str) -> None:
    make, expected = SOURCES[name]
    no_forks = name.startswith(("arrays", "join"))  # TensorStore refuses them
    check_source(lambda: make(data), expected, fork=not no_forks)


@pytest.mark.parametrize("rows", ["parquet", "arrow", "feather", "zstd", "mds"])
def test_tables_hold_the_rows_that_were_written(data: Path, rows: str) -> None:
    source = tables(data, rows, {"feather": "arrow", "zstd": "arrow"}.get(rows, rows))
    found = source.read(np.arange(40)).columns
    assert [
        {"n": int(cast("Any", n)), "text": _text(text)} for n, text in zip(found["n"], found["text"], strict=True)
    ] == ROWS


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.mark.parametrize("kind", ["tars", "records", "x.jsonl", "parquet", "arrow", "mds", "tokens", "zarr3"])
def test_every_source_in_a_store(data: Path, bucket: Bucket, kind: str) -> None:
    """Without forking: clients of stores have threads."""
    if kind == "x.jsonl":
        bucket.put("x.jsonl", (data / kind).read_bytes())
        url = f"{bucket.url}/x.jsonl"
    else:
        url = bucket.upload(data / kind if kind != "tokens" else data, kind if kind != "tokens" else "")
        url = f"{bucket.url}/tokens.bin" if kind == "tokens" else url
    make: dict[str, Callable[[], Any]] = {
        "tars": lambda: WebDatasetSource(url),
        "records": lambda: ArrayRecordSource(url),
        "x.jsonl": lambda: selected(JsonlRows(url)),
        "tokens": lambda: selected(TokenRows(url)),
        "zarr3": lambda: selected(ArrayGroupRows(url)),
        **{each: lambda files=files: selected(TableRows(files(url))) for each, files in TABLES.items()},
    }
    name = {"x.jsonl": "lines", "zarr3": "arrays, zarr3"}.get(kind, kind)
    check_source(make[kind], SOURCES[name][1], fork=False)


KINDS: dict[str, tuple[str, list[dict[str, Any]] | None]] = {
    "webdataset": ("tars", SAMPLES),
    "bare tars": ("bare", None),  # keys are prefixed
    "array_record": ("records", SAMPLES),
    "jsonl": ("x.jsonl", [{"json": line} for line in LINES]),
    "parquet": ("parquet", None),
    "arrow": ("arrow", None),
    "mds": ("mds", None),
    "tokens": ("tokens.bin", [{"tokens": np.array(each, np.int32)} for each in DOCUMENTS]),
    "array": ("zarr3", group(Path())),
}


def test_every_kind_is_listed() -> None:
    """Except folders of files, which hold no samples."""
    assert {kind.name for kind in OWN if kind.file_store is None} == {*KINDS}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind(data: Path, name: str) -> None:
    where, expected = KINDS[name]
    check_kind(kind_named(name), data / where, expected, fork=name != "array")


def other_parts(location: str, parts: Any) -> Any:
    return JSONL.open(location, None)  # type: ignore[misc]


def no_summary(location: str) -> Any:
    return replace(JSONL.summary(location), samples=41)  # type: ignore[misc,type-var]


class NoStore(JsonlFileStore):
    def __contains__(self, key: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"endings": (".lines",)}, "is detected as no dataset, expected a JSONL file"),
        ({"open": other_parts}, r"a part filter .* reads other samples"),
        ({"summary": no_summary}, "`summary` counts 41 samples, lint 40"),
        ({"store": NoStore}, "'' should not be in the store"),
        ({"described": ""}, "`described` is empty"),
    ],
)
def test_broken_kinds_are_found(data: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], says: str) -> None:
    kind = replace(JSONL, **wrong)
    monkeypatch.setattr(kinds, "own_kinds", lambda: (kind,))
    monkeypatch.setattr(kinds, "_other_kinds", lambda: ())
    with pytest.raises(AssertionError, match=says):
        check_kind(kind, data / "x.jsonl", fork=False)


class Faulty(SelectedSource):
    """Lines that break the contract in one way."""

    fault = ""

    def read(self, indices: Any) -> Any:
        if self.fault == "order":
            indices = np.sort(indices)
        if self.fault == "range":
            indices = np.minimum(indices, len(self) - 1)
        return super().read(indices)

    def keys(self, indices: Any) -> list[str]:
        return [f"{key}!" if self.fault == "keys" else key for key in super().keys(indices)]

    def sizes(self, indices: Any) -> Any:
        sizes = super().sizes(indices)
        return {"type": sizes.astype(np.int32), "sign": -sizes}.get(self.fault, sizes)

    def locate(self, index: int) -> Any:
        return super().locate(0 if self.fault == "place" and 0 <= index < len(self) else index)

    def column(self, name: str, indices: Any) -> Any:
        found = super().column(name, indices)
        return found[::-1] if self.fault == "column" and isinstance(indices, slice) else found

    def column_id(self, name: str) -> str:
        return "one" if self.fault == "column id" else super().column_id(name)

    @property
    def content_id(self) -> str:
        return str(id(self)) if self.fault == "content" else super().content_id


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("order", "indices than were asked for|reads other samples at"),
        ("range", "read of index 40 does not raise IndexError"),
        ("keys", r"keys\(\) returns other keys"),
        ("type", "sizes are int32"),
        ("sign", "a size is negative"),
        ("place", r"locate\(1\) is"),
        ("column", "column 'bytes' has other numbers"),
        ("column id", r"column_id\('no such column'\) does not raise KeyNotFoundError"),
        ("content", "the pickled copy has another content id"),
    ],
)
def test_broken_sources_are_found(data: Path, monkeypatch: pytest.MonkeyPatch, fault: str, says: str) -> None:
    monkeypatch.setattr(Faulty, "fault", fault)
    with pytest.raises(AssertionError, match=says):
        check_source(lambda: Faulty(JsonlRows(data / "x.jsonl")), fork=False)


def test_other_contents_are_found(data: Path) -> None:
    wrong = [{"json": line} for line in LINES]
    wrong[3] = {"json": b"{}\n"}
    with pytest.raises(AssertionError, match=r"sample 3 has .*, expected"):
        check_source(lambda: selected(JsonlRows(data / "x.jsonl")), wrong, fork=False)
    with pytest.raises(AssertionError, match="has 40 samples, expected 39"):
        check_source(lambda: selected(JsonlRows(data / "x.jsonl")), wrong[1:], fork=False)


# Stores.


def test_objects(bucket: Bucket) -> None:
    found = {
        "a.txt": b"a",
        "empty": b"",
        "sub/x.bin": bytes(range(256)) * 40,
        "with space, ä, 100%25, ?#.txt": b"strange",
    }
    for key, value in found.items():
        bucket.put(f"files/{key}", value)
    missing = ("", "..", "../x", "sub", "sub/", "b.txt", "a.txt/b", "\ud800")
    check_store(lambda: ObjectFileStore(f"{bucket.url}/files"), found, missing)


class Letters(FileStore[str]):
    """A store that a user wrote, and ways to get it wrong."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def get_path(self) -> str:
        return "/letters"

    def __getitem__(self, key: str) -> tuple[str, SourceInfo]:
        if key not in ("a", "b"):
            raise (LookupError if self.fault == "error" else KeyNotFoundError)(key)
        value = "a" if self.fault == "value" else key
        index = "x" if self.fault == "source" else key
        return value, SourceInfo(dataset_path=EPath(self.get_path()), index=index, shard_name="", file_names=(key,))

    def __eq__(self, other: object) -> bool:
        return self.fault != "equal" and isinstance(other, Letters)

    def __hash__(self) -> int:
        return 1

    def close(self) -> None:
        if self.fault == "close":
            self.fault = "value"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("value", "'b' is 'a'"),
        ("source", "its `SourceInfo` names"),
        ("equal", "copy is not equal"),
        ("close", "'b' is 'a'"),
    ],
)
def test_broken_stores_are_found(fault: str, says: str) -> None:
    check_store(lambda: Letters(""), {"a": "a", "b": "b"})
    with pytest.raises(AssertionError, match=says):
        check_store(lambda: Letters(fault), {"a": "a", "b": "b"})
    with pytest.raises(LookupError):
        check_store(lambda: Letters("error"), {"a": "a", "b": "b"})


# Nodes.


def length(sample: Any) -> int:
    return len(sample.text) + int(current_draw().rng.integers(3))


def several(sample: Any) -> Any:
    for number in range(int(sample.__key__) % 3):
        yield sample.text, number


def odd(sample: Any) -> bool:
    return int(sample.__key__) % 2 == 1


def texts(many: list[Any]) -> tuple[str, ...]:
    return tuple(sample.text for sample in many)


def pairs(many: list[Any]) -> list[list[Any]]:
    return [many[at : at + 2] for at in range(0, len(many), 2)]


def kind(sample: Any) -> tuple[str, None]:
    return sample.__key__[-1:] > "4", None  # type: ignore[return-value]


NODES: dict[str, Callable[[Any], Any]] = {
    "map": lambda below: MapDataset(below, length),
    "generator": lambda below: MapDataset(below, several),
    "filter": lambda below: FilterDataset(below, odd),
    "iter_map": lambda below: IterMapDataset(below, iter),
    "batch": lambda below: BatchDataset(below, 3, texts),
    "group": lambda below: GroupBatchDataset(below, 3, kind, texts),
    "packing": lambda below: PackingDataset(below, 10, pairs, texts),
    "mix": lambda below: MixBatchDataset((below, 1), (below, 2), batch_size=3, batch_mix_fn=homogeneous_concat_mix),
    "blend": lambda below: BlendDataset((below, 1), (below, 2)),
    "epochized blend": lambda below: BlendEpochizedDataset((below, 1), (below, 2)),
    "concat": lambda below: ConcatDataset(below, below),
    "repeat": lambda below: RepeatDataset(below, repeats=2),
    "limit": lambda below: LimitDataset(below, 7),
    "epochize": lambda below: EpochizeDataset(below, 4),
    "shuffle": lambda below: ShuffleBufferDataset(below, 4),
}


def small(folder: Path, worker_config: WorkerConfig, *, endless: bool = False) -> Any:
    order = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "lanes": 4, "batch_size": None}
    return get_train_dataset(folder, repeat=endless, worker_config=worker_config, **order)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NODES)
def test_every_node(text_dataset: Callable[..., Path], name: str) -> None:
    folder, endless = text_dataset(11), name in ("mix", "blend", "epochize")
    steps = check_node(lambda config: NODES[name](small(folder, config, endless=endless)), steps=20, ahead=4)
    assert any(step is not None for step in steps)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [("counts", r"step 0 differs made again: it is \d+, expected 1$"), ("nothing", "nothing was checked")],
)
def test_broken_nodes_are_found(text_dataset: Callable[..., Path], wrong: str, says: str) -> None:
    seen: list[int] = []

    def counting(sample: Any) -> int:
        seen.append(1)
        return len(seen)

    folder = text_dataset(11)
    node: dict[str, Callable[[Any], Any]] = {
        "counts": lambda below: MapDataset(below, counting),
        "nothing": lambda below: FilterDataset(below, lambda _: False),
    }
    with pytest.raises(AssertionError, match=says):
        check_node(lambda config: node[wrong](small(folder, config, endless=wrong == "counts")), steps=20)


# Pools.


def threads(spec: StreamSpec, stage: PureStage) -> ThreadPool:
    return ThreadPool(stage, 2, 1 << 30)


def processes(spec: StreamSpec, stage: PureStage) -> ProcessPool:
    return process_pool(spec, stage, WorkerConfig(0, 1, 2), 2)


@pytest.mark.parametrize("make_pool", [threads, processes])
def test_every_pool(make_pool: Any) -> None:
    check_pool(make_pool)


class FaultyPool(ThreadPool):
    """Threads that break the contract in one way."""

    fault = ""

    def _run(self, chunk: Any) -> Any:
        encoded = super()._run(chunk)
        if self.fault == "order":
            encoded.outcomes.reverse()
        if self.fault == "errors":
            for place, outcome in enumerate(encoded.outcomes):
                if isinstance(outcome, Dropped):
                    encoded.outcomes[place] = replace(outcome, error=SkipSample())
        return encoded

    def close(self) -> None:
        if self.fault == "close":
            threading.Timer(1.0, lambda: None).start()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("order", r"step 0 of 12 differs: \['key'\]\[0\] is"),
        ("errors", "the error handler receives .*, expected .*ValueError: hook of 4"),
        ("close", "leaves threads"),
    ],
)
def test_broken_pools_are_found(monkeypatch: pytest.MonkeyPatch, fault: str, says: str) -> None:
    monkeypatch.setattr(FaultyPool, "fault", fault)
    with pytest.raises(AssertionError, match=says):
        check_pool(lambda _, stage: FaultyPool(stage, 2, 1 << 30))


def test_what_is_no_dataset() -> None:
    with pytest.raises(AssertionError, match="expected a dataset, got str"):
        check_node(lambda _: "x")  # type: ignore[arg-type,return-value]
