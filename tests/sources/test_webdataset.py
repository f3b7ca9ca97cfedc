"""Shards against `tarfile`, and lines and records against shards: what is read, in which order, from few files."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st
from records import encode_example, irregular_samples, msgpack_record, write_records, write_shards

from energon_grain import WebDatasetSource
from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    EmptyDatasetError,
    IndexFileError,
    ReadError,
    StaleIndexError,
)
from energon_grain.formats.local_files import LocalFiles
from energon_grain.kinds.array_record.source import ArrayRecordSource
from energon_grain.kinds.jsonl.lines import jsonl_index_path, open_jsonl
from energon_grain.kinds.jsonl.source import JsonlRows
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.containers import PreparedSource, open_prepared
from energon_grain.sources.rows import SelectedSource, selected
from energon_grain.testing import write_tars

Sample = tuple[str, str, list[tuple[str, bytes]]]
"""Shard, key, and (part, payload) as often as the part comes."""


def prepared(root: Path, samples: Sequence[dict[str, Any]], **options: Any) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    write_tars(root, samples, **options)
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    return root


def oracle(root: Path) -> list[Sample]:
    """Every sample of every shard, by `tarfile`."""
    samples: list[Sample] = []
    for shard in sorted(root.rglob("*.tar")):
        name = shard.relative_to(root).as_posix()
        with tarfile.open(shard) as tar:
            for member in tar:
                folder, _, file = member.name.rpartition("/")
                stem, _, part = file.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if not samples or samples[-1][:2] != (name, key):
                    samples.append((name, key, []))
                payload = tar.extractfile(member)
                assert payload is not None
                samples[-1][2].append((part, payload.read()))
    return samples


def told(source: WebDatasetSource, indices: Sequence[int]) -> list[tuple[str, str, dict[str, bytes]]]:
    return [(raw.shard, raw.key, dict(raw.parts)) for raw in source.read(np.array(indices, np.int64))]


def expected(samples: Sequence[Sample], indices: Sequence[int]) -> list[tuple[str, str, dict[str, bytes]]]:
    return [(samples[i][0], samples[i][1], dict(samples[i][2])) for i in indices]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 samples in 3 shards: parts that come and go, empty ones, large ones, keys in every alphabet."""
    return prepared(tmp_path_factory.mktemp("irregular") / "dataset", irregular_samples(23), shards=3)


def test_batches_are_sequences(dataset: Path) -> None:
    batch = WebDatasetSource(dataset).read(np.array([4, 2, 9]))
    assert [raw.index for raw in batch] == [4, 2, 9]
    assert [raw.key for raw in batch[1:]] == [batch[1].key, batch[2].key]
    assert batch[-1].index == 9
    with pytest.raises(IndexError):
        batch[3]
    assert batch.nbytes() == sum(len(data) for raw in batch for data in raw.parts.values())
    assert all(type(data) is bytes for raw in batch for data in raw.parts.values())


@pytest.mark.parametrize("wanted", [["txt"], {"json", "nowhere"}, lambda name: "." in name, ["json", "txt"]])
def test_some_parts_only(dataset: Path, wanted: Any) -> None:
    source, samples = WebDatasetSource(dataset, parts=wanted), oracle(dataset)
    accepts = wanted if callable(wanted) else wanted.__contains__
    chosen = [(shard, key, [part for part in parts if accepts(part[0])]) for shard, key, parts in samples]
    indices = [3, 1, 4, 1, 5, 9, 2, 6]
    assert told(source, indices) == expected(chosen, indices)
    sizes = [sum(len(data) for _, data in chosen[i][2]) for i in indices]
    assert source.sizes(np.array(indices)).tolist() == sizes
    assert all(accepts(name) for name in source.part_names)


def test_subset_counts_before_excludes(dataset: Path) -> None:
    samples = oracle(dataset)
    left_out = [(samples[i][0], samples[i][1]) for i in (2, 7, 8, 22)]
    source = WebDatasetSource(dataset, start=3, stop=15, excluded=left_out)
    kept = [i for i in range(3, 15) if i not in (7, 8)]
    assert len(source) == 10
    assert told(source, range(10)) == expected(samples, kept)
    assert [source.locate(i).key for i in range(10)] == [samples[i][1] for i in kept]


def test_excludes_that_name_nothing(dataset: Path) -> None:
    (shard, key, _), other = oracle(dataset)[0], oracle(dataset)[-1][0]
    source = WebDatasetSource(dataset, excluded=[(shard, "no such key"), ("none.tar", key), (other, key)])
    assert len(source) == 23


def test_shards_in_another_order(dataset: Path) -> None:
    samples = oracle(dataset)
    names = sorted({shard for shard, _, _ in samples})
    order = [names[2], names[0]]
    chosen = [sample for name in order for sample in samples if sample[0] == name]
    source = WebDatasetSource(dataset, shards=order, excluded=[chosen[1][:2]])
    del chosen[1]
    assert told(source, range(len(source))) == expected(chosen, range(len(chosen)))


def test_a_shard_twice(dataset: Path) -> None:
    """Both times it is itself, and an exclude takes the sample out of both."""
    samples = [sample for sample in oracle(dataset) if sample[0] == oracle(dataset)[0][0]]
    source = WebDatasetSource(dataset, shards=[samples[0][0]] * 2, excluded=[samples[1][:2]])
    del samples[1]
    assert told(source, range(len(source))) == expected(samples + samples, range(2 * len(samples)))


@pytest.mark.parametrize("parts", [None, ["txt", "empty"]])
def test_a_group_reads_what_its_sources_read(dataset: Path, parts: Any) -> None:
    samples = oracle(dataset)
    names = sorted({shard for shard, _, _ in samples})
    left_out = [samples[i][:2] for i in (2, 7, 8, 22)]
    chosen: list[Any] = [
        {},
        {"start": 3, "stop": 15, "excluded": left_out},
        {"shards": [names[2], names[0]]},
        {"shards": [names[1]] * 2, "excluded": left_out},
        {"start": 22},
    ]
    sources = [WebDatasetSource(dataset, parts=parts, **options) for options in chosen]
    assert len({source._read_key() for source in sources}) == 1
    group, lengths, rng = sources[0]._group(sources), np.array(list(map(len, sources))), np.random.default_rng(1)
    for count in (1, 3, 100):
        which = rng.integers(0, len(sources), count)
        indices = rng.integers(0, 1 << 30, count) % lengths[which]
        for raw, number, index in zip(group.read(which, indices), which.tolist(), indices.tolist(), strict=True):
            assert [(raw.shard, raw.key, dict(raw.parts))] == told(sources[number], [index])
            assert raw.index == index
    for index in (-1, 10):
        with pytest.raises(IndexError, match=f"sample {index} is out of range: there are 10"):
            group.read(np.array([0, 4, 1]), np.array([0, 0, index]))


def test_impossible_selections(dataset: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no shard 'none\.tar'; it has 3, such as 'shard_000\.tar'"):
        WebDatasetSource(dataset, shards=["none.tar"])
    with pytest.raises(ConfigError, match=r"subset \[3, 24\)"):
        WebDatasetSource(dataset, start=3, stop=24)
    with pytest.raises(EmptyDatasetError):
        WebDatasetSource(dataset, start=4, stop=4)
    shard, key, _ = oracle(dataset)[4]
    with pytest.raises(EmptyDatasetError):
        WebDatasetSource(dataset, start=4, stop=5, excluded=[(shard, key)])
    with pytest.raises(EmptyDatasetError):
        WebDatasetSource(dataset, shards=[])


def test_locate_tells_where_the_bytes_are(dataset: Path) -> None:
    source, samples = WebDatasetSource(dataset), oracle(dataset)
    reached: dict[str, int] = {}
    for index, (shard, key, parts) in enumerate(samples):
        place = source.locate(index)
        assert (place.index, place.shard, place.key) == (index, shard, key)
        data = (dataset / shard).read_bytes()
        assert {name: data[at : at + size] for name, (at, size) in place.parts.items()} == dict(parts)
        assert place.start == reached.get(shard, 0)
        assert all(place.start < at <= at + size <= place.stop for at, size in place.parts.values())
        reached[shard] = place.stop
        assert source.sizes(np.array([index])).tolist() == [place.stop - place.start]


def test_content_ids(dataset: Path, tmp_path: Path) -> None:
    """Equal content, equal id, wherever it lies; other samples, another order or other bytes, another id."""
    whole = WebDatasetSource(dataset)
    moved = tmp_path / "moved"
    os.symlink(dataset, moved)
    assert WebDatasetSource(moved).content_id == whole.content_id
    shard, key, _ = oracle(dataset)[3]
    names = sorted({name for name, _, _ in oracle(dataset)})
    others = [
        WebDatasetSource(dataset, start=1),
        WebDatasetSource(dataset, stop=22),
        WebDatasetSource(dataset, excluded=[(shard, key)]),
        WebDatasetSource(dataset, shards=names[::-1]),
        WebDatasetSource(dataset, shards=names[:2]),
        WebDatasetSource(prepared(tmp_path / "other", [{"__key__": "0", "txt": "x"}])),
    ]
    assert len({source.content_id for source in (whole, *others)}) == 7


def test_the_last_of_repeated_parts_counts(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, size in (("0.txt", 1), ("0.txt", 2), ("1.txt", 3), ("1.txt", 4), ("2.txt", 5)):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(b"x" * size))
    prepare_dataset(tmp_path, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    source = WebDatasetSource(tmp_path)
    for indices in ([0, 1], [0, 1, 2], [2, 0]):
        assert [len(raw.parts["txt"]) for raw in source.read(np.array(indices))] == [(2, 4, 5)[i] for i in indices]


def test_thousands_of_shards(tmp_path: Path) -> None:
    """No shard is touched before it is read, and no more than the process has room for are open at once."""
    samples = [{"__key__": f"{i:05d}", "txt": str(i)} for i in range(2000)]
    root = prepared(tmp_path / "many", samples, shards=2000, name="shard_{:04d}.tar")
    for shard in range(100, 200):
        os.unlink(root / f"shard_{shard:04d}.tar")  # nobody asks for them
    before = len(os.listdir("/proc/self/fd"))
    source = WebDatasetSource(root)
    assert len(os.listdir("/proc/self/fd")) - before <= 8
    rng = np.random.default_rng(0)
    indices = np.concatenate([np.arange(100), np.arange(200, 2000)])
    rng.shuffle(indices)
    for chunk in np.array_split(indices, 7):
        assert [raw.parts["txt"] for raw in source.read(chunk)] == [str(i).encode() for i in chunk]
        assert len(os.listdir("/proc/self/fd")) - before <= 1024 + 8


def test_threads_compete_for_the_open_files(tmp_path: Path) -> None:
    samples = [{"__key__": f"{i:05d}", "txt": str(i)} for i in range(300)]
    source = WebDatasetSource(prepared(tmp_path / "many", samples, shards=100))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(25):
                indices = rng.integers(0, 300, 60)
                assert [raw.parts["txt"] for raw in source.read(indices)] == [str(i).encode() for i in indices]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


part_names = st.sampled_from(["txt", "json", "a.b", "jpg", "Ünï"])
trees = st.lists(
    st.lists(st.dictionaries(part_names, st.binary(max_size=1500), min_size=1), min_size=1, max_size=6),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25)
@given(shards=trees, data=st.data())
def test_against_tarfile(tmp_path_factory: pytest.TempPathFactory, shards: list[Any], data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("random")
    for number, samples in enumerate(shards):
        named = [{"__key__": f"k{number}-{i}", **parts} for i, parts in enumerate(samples)]
        tar_format = data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
        write_tars(root, named, name=f"{number}.tar", tar_format=tar_format)
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    samples, source = oracle(root), WebDatasetSource(root)
    indices = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=20))
    assert len(source) == len(samples)
    assert told(source, indices) == expected(samples, indices)


LINES = [json.dumps({"i": i, "text": "ä" * (i % 7)}, ensure_ascii=False).encode() for i in range(40)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "notes.jsonl"
    path.write_bytes(b"\n \n" + b"\n".join(LINES[:20]) + b"\n\n\n" + b"\r\n".join(LINES[20:]))
    return path


def numbers(source: SelectedSource, indices: Sequence[int]) -> list[int]:
    return [json.loads(sample.parts["json"])["i"] for sample in source.read(np.array(indices, np.int64))]


def test_where_samples_lie(path: Path) -> None:
    source, content = selected(JsonlRows(path)), path.read_bytes()
    for index in (0, 1, 19, 20, 39):
        place = source.locate(index)
        assert json.loads(content[place.start : place.stop])["i"] == index
        assert place.parts == {"json": (place.start, place.stop - place.start)}
        line = content[: content.index(LINES[index])].count(b"\n") + 1
        assert source.place_of(index) == f"notes.jsonl:{line}"
    assert source.sizes(np.array([1, 0])).tolist() == [len(LINES[1]) + 1, len(LINES[0]) + 4]
    assert source.sizes(np.arange(40)).sum() == len(content)


def test_identity(path: Path, tmp_path: Path) -> None:
    source = selected(JsonlRows(path))
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(path.read_bytes())
    assert selected(JsonlRows(moved)).content_id == source.content_id
    assert selected(JsonlRows(path), start=1).content_id != source.content_id
    moved.write_bytes(path.read_bytes() + b"\n{}")
    jsonl_index_path(moved).unlink()
    assert selected(JsonlRows(moved)).content_id != source.content_id


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
    source = selected(JsonlRows(replace(open_jsonl(path), store=store)))
    source.read(np.array([0]))
    before = store.spans
    assert numbers(source, [7, 5, 6, 4]) == [7, 5, 6, 4]
    assert store.spans == before + 1


def test_files_that_changed(path: Path) -> None:
    content = path.read_bytes()
    selected(JsonlRows(path))
    opened = selected(JsonlRows(path))
    path.write_bytes(content + b"\n")
    with pytest.raises(StaleIndexError, match="energon-grain prepare"):
        opened.read(np.array([0]))
    path.write_bytes(content.replace(b"\n", b" ").replace(b"}", b"}\n", 39)[: len(content)])
    with pytest.raises(StaleIndexError, match="expected a line end"):
        selected(JsonlRows(path)).read(np.array([0]))


def test_damaged_index(path: Path) -> None:
    selected(JsonlRows(path))
    index = jsonl_index_path(path)
    starts = np.fromfile(index, "<u8")
    starts[5] = starts[4]
    starts.tofile(index)
    source = selected(JsonlRows(path))
    assert numbers(source, [1]) == [1]
    with pytest.raises(IndexFileError, match="not ascending"):
        source.read(np.array([4]))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_index_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    path.write_bytes(b"{}\n" * 8_000_000)
    source = selected(JsonlRows(path))
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
SAMPLES = irregular_samples(COUNT)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same samples in three tars and in three ArrayRecord files."""
    root = tmp_path_factory.mktemp("pair")
    write_tars(root / "tars", SAMPLES, shards=3)
    prepare_dataset(root / "tars", split_ratio={"train": 1}, crude=True)
    write_shards(root / "records", [msgpack_record(sample) for sample in SAMPLES], 3)
    prepare_dataset(root / "records", records="msgpack", split_ratio={"train": 1}, crude=True)
    return root / "tars", root / "records"


@pytest.fixture
def copy(pair: tuple[Path, Path], tmp_path: Path) -> Path:
    shutil.copytree(pair[1], tmp_path / "copy")
    return tmp_path / "copy"


def told_of(source: PreparedSource, indices: Sequence[int]) -> list[tuple[str, str, dict[str, Any]]]:
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
    assert len(tars) == len(records)
    assert (tars.content_id, tars.part_names) == (records.content_id, records.part_names)
    for indices in (list(range(len(tars))), [5, 0, 5, 5, 1], [len(tars) - 1], list(range(len(tars)))[::-2], []):
        assert told_of(tars, indices) == told_of(records, indices)
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
    sizes = [len(msgpack_record(sample)) for sample in SAMPLES]
    assert source.sizes(np.arange(COUNT)).tolist() == sizes
    assert ArrayRecordSource(pair[1], parts=["txt"]).sizes(np.array([0, 11])).tolist() == [6, 7]
    assert (source.locate(1).start, source.locate(1).stop) == (sizes[0], sizes[0] + sizes[1])


def test_what_cannot_be_served(pair: tuple[Path, Path]) -> None:
    with pytest.raises(EmptyDatasetError):
        ArrayRecordSource(pair[1], start=4, stop=4)
    with pytest.raises(ConfigError, match="has no shard 'none'"):
        ArrayRecordSource(pair[1], shards=["none"])
    with pytest.raises(DatasetNotFoundError, match=r"records\.json"):
        ArrayRecordSource(pair[0])


def test_files_of_records_that_changed(copy: Path) -> None:
    path = copy / "shard_001.array_record"
    good = path.read_bytes()
    run = SAMPLES[7:15]

    def read() -> Any:
        return told_of(ArrayRecordSource(copy), range(COUNT))

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
    with pytest.raises(ReadError, match=r"shard_001\.array_record: No such file.*restore it"):
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
