"""Arrays as samples: the same numbers as slicing them in memory, for any rows of any number of arrays."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import DRIVERS, numbered, write_array, write_group
from hypothesis import HealthCheck, given, settings, strategies as st

import energon_grain.sources.arrays as module
from energon_grain import Source
from energon_grain.errors import ConfigError, EmptyDatasetError, FormatError, ReadError
from energon_grain.sources.arrays import ArrayGroupSource

ROWS = 50
ARRAYS = {"label": numbered(ROWS, dtype=np.int64), "image": numbered(ROWS, 3, 2), "mask": numbered(ROWS, 5) > 20}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    for driver in DRIVERS:
        arrays = {name: values for name, values in ARRAYS.items() if driver != "n5" or name != "mask"}
        write_group(folder / driver, driver, **arrays)
    return folder


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    driver=st.sampled_from(DRIVERS),
    wanted=st.lists(st.integers(0, ROWS - 12), max_size=40),
    in_flight=st.sampled_from([1, 400, 1 << 20]),
    sliced=st.sampled_from([1, 4, 64]),
)
def test_samples_are_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, driver: str, wanted: list[int], in_flight: int, sliced: int
) -> None:
    monkeypatch.setattr(module, "IN_FLIGHT_BYTES", in_flight)
    monkeypatch.setattr(module, "_SLICED_ROWS", sliced)
    source = ArrayGroupSource(folder / driver, start=3, stop=ROWS - 8)
    assert len(source) == ROWS - 11
    samples = list(source.read(np.array(wanted, np.int64)))
    assert [(sample.key, sample.index) for sample in samples] == [(str(index + 3), index) for index in wanted]
    for sample, index in zip(samples, wanted, strict=True):
        assert list(sample.parts) == sorted(source.part_names)
        for name, value in sample.parts.items():
            assert isinstance(value, np.ndarray)
            expected = ARRAYS[name][index + 3, ...]
            assert (value.dtype, value.shape, value.flags.owndata) == (expected.dtype, expected.shape, True)
            assert np.array_equal(value, expected)


def test_what_it_says_of_itself(folder: Path) -> None:
    source = ArrayGroupSource(folder / "zarr3", start=10)
    assert isinstance(source, Source)
    assert source.sizes(np.array([0, 3])).tolist() == [8 + 24 + 5] * 2
    assert source.read(np.array([1, 2])).nbytes() == 2 * 37
    place = source.locate(2)
    assert (place.index, place.shard, place.key, place.start, place.stop) == (2, "zarr3", "12", 12 * 37, 13 * 37)
    assert place.parts == {"image": (12 * 24, 24), "label": (96, 8), "mask": (60, 5)}
    assert source.place_of(2) == "zarr3: 12"
    for ask in (source.read, source.sizes, lambda indices: source.locate(int(indices[0]))):
        with pytest.raises(IndexError, match="sample 40 asked for, but there are 40"):
            ask(np.array([40]))


def test_only_wanted_arrays_are_opened(folder: Path, tmp_path: Path) -> None:
    path = write_group(tmp_path / "g", a=numbered(ROWS, 2), b=numbered(ROWS), text=numbered(ROWS))
    text = path / "text" / "zarr.json"
    text.write_text(text.read_text().replace('"float32"', '"string"'))
    (path / "b" / "c" / "0").write_bytes(b"damaged")
    source = ArrayGroupSource(path, parts={"a"})
    (sample,) = source.read(np.array([1]))
    assert list(sample.parts) == ["a"]
    with pytest.raises(ReadError, match=r"b: rows 1 to 1: "):
        ArrayGroupSource(path, parts=lambda name: name != "text").read(np.array([1]))
    with pytest.raises(FormatError, match=r"text: TensorStore cannot open it: .*string.* leave it out by part_filter"):
        ArrayGroupSource(path)
    before = source.content_id
    text.write_text(text.read_text().replace('"string"', '"json"'))
    assert ArrayGroupSource(path, parts={"a"}).content_id != before
    with pytest.raises(ConfigError, match="lets none of its arrays pass: a, b, text"):
        ArrayGroupSource(path, parts={"c"})
    with pytest.raises(EmptyDatasetError):
        ArrayGroupSource(path, parts={"a"}, start=5, stop=5)


def test_lengths_of_what_is_read_must_agree(tmp_path: Path) -> None:
    path = write_group(tmp_path / "g", a=numbered(8, 2), b=numbered(9), c=numbered(9))
    with pytest.raises(ConfigError, match="a has 8, b has 9, c has 9; choose those of one length by part_filter"):
        ArrayGroupSource(path)
    assert len(ArrayGroupSource(path, parts={"a"})) == 8
    source = pickle.loads(pickle.dumps(ArrayGroupSource(path, parts={"b", "c"}))).cut(2, 9)
    (sample,) = source.read(np.array([6]))
    assert {name: int(value) for name, value in sample.parts.items()} == {"b": 8, "c": 8}


def test_arrays_without_rows_can_be_left_out(tmp_path: Path) -> None:
    path = write_group(tmp_path / "g", a=numbered(8, 2), mean=np.array(3.0), none=numbered(0, 2))
    with pytest.raises(ConfigError, match=r"mean: is a single number .* leave it out by part_filter"):
        ArrayGroupSource(path)
    with pytest.raises(EmptyDatasetError, match=r"none: the array has shape \[0, 2\].* leave it out by part_filter"):
        ArrayGroupSource(path, parts={"a", "none"})
    source = ArrayGroupSource(path, parts={"a"})
    assert (len(source), source.part_names) == (8, ("a", "mean", "none"))
    write_group(tmp_path / "h", a=numbered(8, 2), mean=np.array(3.0), none=numbered(0, 3))
    assert source.content_id != ArrayGroupSource(tmp_path / "h", parts={"a"}).content_id


def test_content_ids(tmp_path: Path) -> None:
    def content_id(name: str = "g", **options: Any) -> str:
        return ArrayGroupSource(tmp_path / name, **options).content_id

    write_group(tmp_path / "g", a=numbered(9, 2), b=numbered(9))
    write_group(tmp_path / "elsewhere", a=numbered(9, 2), b=numbered(9))
    assert content_id() == content_id("elsewhere") == content_id(parts={"a"})
    others = {content_id(start=1), content_id(stop=8)}
    for number, arrays in enumerate(({"a": numbered(9, 2)}, {"a": numbered(9, 2), "b": -numbered(9)})):
        write_group(tmp_path / str(number), "zarr3", **arrays)
        others.add(content_id(str(number)))
    assert len(others | {content_id()}) == 5


def test_copies_and_threads(folder: Path) -> None:
    source = ArrayGroupSource(folder / "zarr", start=2, parts=frozenset({"label"}))
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.content_id, len(copy), list(copy.arrays)) == (source.content_id, ROWS - 2, ["label"])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda index: int(copy.read(np.array([index])).columns["label"][0]), range(ROWS - 2)))
    assert found == list(range(2, ROWS))
    copy.close()
    assert int(copy.read(np.array([5])).columns["label"][0]) == 7


def test_an_array_alone(tmp_path: Path) -> None:
    source = ArrayGroupSource(write_array(tmp_path / "embeddings.zarr", numbered(4, 2)))
    assert source.part_names == ("embeddings",)
    assert [value.tolist() for value in source.read(np.array([2, 0])).columns["embeddings"]] == [[4, 5], [0, 1]]  # type: ignore[union-attr]
    assert source.shard == "embeddings.zarr"


def test_paths_with_a_slash_behind_them(folder: Path) -> None:
    source = ArrayGroupSource(f"{folder}/zarr3/")
    assert source.shard == "zarr3"
    assert int(source.read(np.array([7])).columns["label"][0]) == 7  # type: ignore[arg-type]
    alone = ArrayGroupSource(f"{folder}/zarr3/label/")
    assert alone.part_names == ("label",)
    assert len(alone.read(np.array([7]))) == 1
