"""Lines of JSONL and ArrayRecord files as samples: the same as those of WebDatasetSource."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from forking import may_fork
from records import encode_example, msgpack_record, write_records, write_shards

from energon_grain import Source, WebDatasetSource
from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    EmptyDatasetError,
    IndexFileError,
    ReadError,
    StaleIndexError,
)
from energon_grain.formats.jsonl import jsonl_index_path, open_jsonl
from energon_grain.prepare import prepare_dataset
from energon_grain.sources.array_record import ArrayRecordSource
from energon_grain.sources.jsonl import JsonlSource
from energon_grain.sources.prepared import PreparedSource, open_prepared
from energon_grain.storage.local import LocalFiles
from energon_grain.testing import write_tars

LINES = [json.dumps({"i": i, "text": "ä" * (i % 7)}, ensure_ascii=False).encode() for i in range(40)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "notes.jsonl"
    path.write_bytes(b"\n \n" + b"\n".join(LINES[:20]) + b"\n\n\n" + b"\r\n".join(LINES[20:]))
    return path


def numbers(source: JsonlSource, indices: Sequence[int]) -> list[int]:
    return [json.loads(sample.parts["json"])["i"] for sample in source.read(np.array(indices, np.int64))]


def test_reads_in_the_order_asked_for(path: Path) -> None:
    source = JsonlSource(path)
    assert isinstance(source, Source)
    assert len(source) == 40
    order = np.random.default_rng(0).integers(0, 40, 200).tolist()
    assert numbers(source, order) == order
    assert numbers(source, []) == []
    first = source.read(np.array([3]))[0]
    assert (first.key, first.shard, first.index) == ("3", "notes.jsonl", 3)
    assert first.parts == {"json": LINES[3] + b"\n"}
    for wrong in (-1, 40):
        with pytest.raises(IndexError, match="40"):
            source.read(np.array([wrong]))


def test_subset(path: Path) -> None:
    source = JsonlSource(path, start=5, stop=9)
    batch = source.read(np.array([3, 0]))
    assert batch.keys == ["8", "5"]
    assert batch.indices.tolist() == [3, 0]
    assert source.locate(1).key == "6"
    for start, stop, error in ((3, 3, EmptyDatasetError), (0, 41, ConfigError)):
        with pytest.raises(error):
            JsonlSource(path, start=start, stop=stop)


def test_where_samples_lie(path: Path) -> None:
    source, content = JsonlSource(path), path.read_bytes()
    for index in (0, 1, 19, 20, 39):
        place = source.locate(index)
        assert json.loads(content[place.start : place.stop])["i"] == index
        assert place.parts == {"json": (place.start, place.stop - place.start)}
        line = content[: content.index(LINES[index])].count(b"\n") + 1
        assert source.place_of(index) == f"notes.jsonl:{line}"
    assert source.sizes(np.array([1, 0])).tolist() == [len(LINES[1]) + 1, len(LINES[0]) + 4]
    assert source.sizes(np.arange(40)).sum() == len(content)


def test_parts(path: Path) -> None:
    assert JsonlSource(path, parts=["txt"]).read(np.arange(2))[1].parts == {}
    assert len(JsonlSource(path, parts=lambda part: part == "json").read(np.arange(2))[1].parts) == 1


def test_identity(path: Path, tmp_path: Path) -> None:
    source = JsonlSource(path)
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(path.read_bytes())
    assert JsonlSource(moved).content_id == source.content_id
    assert JsonlSource(path, start=1).content_id != source.content_id
    moved.write_bytes(path.read_bytes() + b"\n{}")
    jsonl_index_path(moved).unlink()
    assert JsonlSource(moved).content_id != source.content_id
    copy = pickle.loads(pickle.dumps(JsonlSource(path, start=2, stop=7)))
    assert numbers(copy, range(5)) == list(range(2, 7))


class Counting(LocalFiles):
    spans = 0

    def read_spans(
        self,
        paths: Sequence[str],
        file: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        stop: npt.NDArray[np.int64],
    ) -> list[bytes]:
        self.spans += len(start)
        return super().read_spans(paths, file, start, stop)


def test_neighbours_are_read_together(path: Path) -> None:
    store = Counting()
    source = JsonlSource(replace(open_jsonl(path), store=store))
    source.read(np.array([0]))
    before = store.spans
    assert numbers(source, [7, 5, 6, 4]) == [7, 5, 6, 4]
    assert store.spans == before + 1


def test_files_that_changed(path: Path) -> None:
    content = path.read_bytes()
    JsonlSource(path)
    opened = JsonlSource(path)
    path.write_bytes(content + b"\n")
    with pytest.raises(StaleIndexError, match="energon-grain prepare"):
        opened.read(np.array([0]))
    path.write_bytes(content.replace(b"\n", b" ").replace(b"}", b"}\n", 39)[: len(content)])
    with pytest.raises(StaleIndexError, match="no line ends here"):
        JsonlSource(path).read(np.array([0]))


def test_damaged_index(path: Path) -> None:
    JsonlSource(path)
    index = jsonl_index_path(path)
    starts = np.fromfile(index, "<u8")
    starts[5] = starts[4]
    starts.tofile(index)
    source = JsonlSource(path)
    assert numbers(source, [1]) == [1]
    with pytest.raises(IndexFileError, match="do not ascend"):
        source.read(np.array([4]))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_index_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    path.write_bytes(b"{}\n" * 8_000_000)
    source = JsonlSource(path)
    rng = np.random.default_rng(0)
    resident: list[int] = []
    for _ in range(4):
        source.read(rng.integers(0, 8_000_000, 100))
        resident.append(resident_kb(jsonl_index_path(path)))
    assert resident[0] > 0
    assert 0 in resident


def resident_kb(path: Path) -> int:
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = str(path) in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


COUNT = 23


def samples_of() -> list[dict[str, Any]]:
    """Parts that come and go, empty ones, large ones, keys in every alphabet."""
    rng = np.random.default_rng(0)
    keys = ["plain", "Grüße", "日本語", "emoji-🎈", "a/b/deep", "with space", "0", "ключ"]
    samples: list[dict[str, Any]] = []
    for i in range(COUNT):
        sample: dict[str, Any] = {"__key__": f"{keys[i % len(keys)]}{i:03d}", "txt": b"text %d" % i}
        if i % 3 == 0:
            sample["json"] = b"{}"
        if i % 5 == 1:
            sample["seg.png"] = rng.bytes(i * 1000)
        if i % 7 == 2:
            sample["empty"] = b""
        samples.append(sample)
    return samples


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same samples in three tars and in three ArrayRecord files."""
    root = tmp_path_factory.mktemp("pair")
    write_tars(root / "tars", samples_of(), shards=3)
    prepare_dataset(root / "tars", split_ratio={"train": 1}, crude=True)
    write_shards(root / "records", [msgpack_record(sample) for sample in samples_of()], 3)
    prepare_dataset(root / "records", records="msgpack", split_ratio={"train": 1}, crude=True)
    return root / "tars", root / "records"


@pytest.fixture
def copy(pair: tuple[Path, Path], tmp_path: Path) -> Path:
    shutil.copytree(pair[1], tmp_path / "copy")
    return tmp_path / "copy"


def told(source: PreparedSource, indices: Sequence[int]) -> list[tuple[str, str, dict[str, Any]]]:
    batch = source.read(np.array(indices, np.int64))
    return [(Path(raw.shard).stem, raw.key, dict(raw.parts)) for raw in batch]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"parts": ["txt"]},
    {"parts": {"json", "nowhere"}},
    {"parts": lambda name: "." in name},
    {"start": 3, "stop": 15},
    {"start": 3, "stop": 15, "excluded": [(1, "a/b/deep012"), (1, "no such key")]},
    {"shards": [2, 0]},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_same_samples_are_the_same(pair: tuple[Path, Path], options: dict[str, Any]) -> None:
    sources: list[PreparedSource] = []
    for root in pair:
        names = sorted(path.name for path in root.glob("shard*") if path.suffix != ".idx")
        excluded = [(names[shard], key) for shard, key in options.get("excluded", ())]
        shards = [names[shard] for shard in options["shards"]] if "shards" in options else None
        sources.append(open_prepared(root, **options | {"excluded": excluded, "shards": shards}))
    tars, records = sources
    assert isinstance(tars, WebDatasetSource)
    assert isinstance(records, ArrayRecordSource)
    assert isinstance(records, Source)
    assert len(tars) == len(records)
    assert (tars.content_id, tars.part_names) == (records.content_id, records.part_names)
    for indices in (list(range(len(tars))), [5, 0, 5, 5, 1], [len(tars) - 1], list(range(len(tars)))[::-2], []):
        assert told(tars, indices) == told(records, indices)
        asked = np.array(indices, np.int64)
        assert list(tars.read(asked).columns) == list(records.read(asked).columns)
    for index in range(len(tars)):
        assert tars.locate(index).key == records.locate(index).key
        assert {name: size for name, (_, size) in tars.locate(index).parts.items()} == {
            name: size for name, (_, size) in records.locate(index).parts.items()
        }


def test_where_records_lie(pair: tuple[Path, Path]) -> None:
    source = ArrayRecordSource(pair[1])
    assert source.path == str(pair[1])
    assert str(pair[1]) in repr(source)
    assert source.place_of(8) == "shard_001.array_record: plain008"
    sizes = [len(msgpack_record(sample)) for sample in samples_of()]
    assert source.sizes(np.arange(COUNT)).tolist() == sizes
    assert ArrayRecordSource(pair[1], parts=["txt"]).sizes(np.array([0, 11])).tolist() == [6, 7]
    assert (source.locate(1).start, source.locate(1).stop) == (sizes[0], sizes[0] + sizes[1])
    for index in (-1, COUNT):
        with pytest.raises(IndexError, match=f"sample {index} asked for, but there are {COUNT}"):
            source.read(np.array([0, index]))


def test_what_cannot_be_served(pair: tuple[Path, Path]) -> None:
    with pytest.raises(EmptyDatasetError):
        ArrayRecordSource(pair[1], start=4, stop=4)
    with pytest.raises(ConfigError, match="has no shard 'none'"):
        ArrayRecordSource(pair[1], shards=["none"])
    with pytest.raises(DatasetNotFoundError, match=r"records\.json"):
        ArrayRecordSource(pair[0])


def test_copies(pair: tuple[Path, Path]) -> None:
    source = ArrayRecordSource(pair[1], start=2, stop=20, parts=["txt"])
    expected = told(source, range(18))
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.content_id, told(copy, range(18))) == (source.content_id, expected)
    source.close()
    assert told(source, range(18)) == expected


@may_fork
def test_forked_processes(pair: tuple[Path, Path]) -> None:
    """Children open files anew, and need none of the reader's threads."""
    source = ArrayRecordSource(pair[1])
    expected = told(source, range(COUNT))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if told(source, range(COUNT)) == expected else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_files_of_records_that_changed(copy: Path) -> None:
    path = copy / "shard_001.array_record"
    good = path.read_bytes()
    run = samples_of()[7:15]

    def read() -> Any:
        return told(ArrayRecordSource(copy), range(COUNT))

    expected = read()
    write_records(path, [msgpack_record({**sample, "more": bytes(70000)}) for sample in run])
    with pytest.raises(
        StaleIndexError, match=r"shard_001\.array_record: it has \d+ bytes, not \d+; .*--tar-index-only"
    ):
        read()
    write_records(path, [msgpack_record(sample) for sample in run[:-1]] + [b""] * 2)
    assert path.stat().st_size == len(good)  # a multiple of 64 KiB
    with pytest.raises(StaleIndexError, match="it has 9 records, not 8"):
        read()
    write_records(path, [msgpack_record(sample) for sample in [*run[1:], run[0]]])
    assert path.stat().st_size == len(good)
    with pytest.raises(StaleIndexError, match="record 0 has the key 'plain008', not 'ключ007'"):
        read()
    path.unlink()
    with pytest.raises(ReadError, match=r"shard_001\.array_record: No such file.*put it back"):
        read()
    path.write_bytes(good)
    assert read() == expected


def test_examples(tmp_path: Path) -> None:
    features: list[dict[str, Any]] = [
        {"n": [number, -number], "f": [0.5] * number, "b": [b"x" * number], "many": [b"a", b"b"]}
        for number in range(1, 6)
    ]
    write_shards(tmp_path, [encode_example(each) for each in features], 2)
    prepare_dataset(tmp_path, records="tf_example", split_ratio={"train": 1}, crude=True)
    source = ArrayRecordSource(tmp_path)
    batch = source.read(np.array([4, 0]))
    assert batch.keys == ["4", "0"]
    first = batch[0].parts
    assert first["b"] == b"xxxxx"
    for name, dtype, value in (("n", np.int64, [5, -5]), ("f", np.float32, [0.5] * 5), ("many", object, [b"a", b"b"])):
        array = first[name]
        assert isinstance(array, np.ndarray)
        assert (array.dtype, array.tolist()) == (dtype, value)
    assert batch.nbytes() > 0


def test_raw_records(tmp_path: Path) -> None:
    records = [bytes([number]) * number for number in range(9)]
    write_shards(tmp_path, records, 4)
    prepare_dataset(tmp_path, records="raw", split_ratio={"train": 1}, crude=True)
    batch = ArrayRecordSource(tmp_path).read(np.array([8, 3]))
    assert batch.keys == ["8", "3"]
    assert batch.columns == {"record": [records[8], records[3]]}
