from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from energon_grain import Source
from energon_grain.errors import ConfigError, EmptyDatasetError, IndexFileError, StaleIndexError
from energon_grain.formats.jsonl import jsonl_index_path, open_jsonl
from energon_grain.sources.jsonl import JsonlSource
from energon_grain.storage.local import LocalFiles

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
