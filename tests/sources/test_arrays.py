"""Rows of arrays, one or several, on disk and in a store: the same numbers as slicing them in memory."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from arrays import DRIVERS, numbered, write_array, write_group
from hypothesis import HealthCheck, given, settings, strategies as st
from object_server import Bucket, Fault
from patience import PATIENCE_S

import energon_grain.kinds.arrays.source as module
from energon_grain import StorageSettings, use_storage
from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    EmptyDatasetError,
    FormatError,
    ReadError,
    StaleIndexError,
)
from energon_grain.kinds.arrays.folder import is_array_folder
from energon_grain.kinds.arrays.source import ArrayGroupRows, ArraySource
from energon_grain.sources.rows import SelectedSource, selected

ROWS = 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    for driver in DRIVERS:
        write_array(folder / driver, numbered(ROWS, 3, 2), driver, chunk=(7, 2, 2))
    write_array(folder / "sharded", numbered(ROWS, 3, 2), chunk=(4, 3, 1), shard=(12, 3, 2))
    write_array(folder / "v2_keys", numbered(ROWS, 3, 2), chunk=(7, 3, 2), chunk_key_encoding={"name": "v2"})
    write_array(folder / "slashes", numbered(ROWS, 3, 2), "zarr", chunk=(7, 3, 2), dimension_separator="/")
    dots = {"name": "default", "configuration": {"separator": "."}}
    write_array(folder / "dots", numbered(ROWS, 3, 2), chunk=(7, 3, 2), chunk_key_encoding=dots)
    return folder


FORMS = (*DRIVERS, "sharded", "v2_keys", "slashes", "dots")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=st.sampled_from(FORMS),
    wanted=st.lists(st.integers(0, ROWS - 1), max_size=40),
    in_flight=st.sampled_from([1, 400, 1 << 20]),
)
def test_rows_in_any_order_and_repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, form: str, wanted: list[int], in_flight: int
) -> None:
    """Whatever the format, and however few chunks may be on the way at once."""
    monkeypatch.setattr(module, "IN_FLIGHT_BYTES", in_flight)
    rows = ArraySource(folder / form).read(np.array(wanted, np.int64)).columns[""]
    assert [row.tolist() for row in rows] == [numbered(ROWS, 3, 2)[number].tolist() for number in wanted]
    assert all(row.dtype == np.float32 and row.flags.owndata and row.flags.writeable for row in rows)


@pytest.mark.parametrize("form", FORMS)
def test_what_an_array_says_of_itself(folder: Path, form: str) -> None:
    source = ArraySource(folder / form)
    assert (len(source), source.row_shape, source.dtype) == (ROWS, (3, 2), np.float32)
    assert source.sizes(np.array([0, 49])).tolist() == [24, 24]
    place = source.locate(20)
    assert (place.index, place.key, place.start, place.stop) == (20, "20", 480, 504)
    assert (folder / form / place.shard).is_file()
    assert f"rows={ROWS}, row=float32[3, 2]" in repr(source)


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int64", "float16", "float64", "complex64", "bfloat16", "float8_e5m2"]
)
@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_types(tmp_path: Path, driver: str, dtype: str) -> None:
    import tensorstore

    values = numbered(6, dtype=np.int64).astype(tensorstore.dtype(dtype).numpy_dtype)
    source = ArraySource(write_array(tmp_path / "a", values, driver))
    rows = source.read(np.array([5, 0])).columns[""]
    assert [(row.shape, row.dtype, row) for row in rows] == [
        ((), source.dtype, values[5]),
        ((), values.dtype, values[0]),
    ]
    assert int(source.sizes(np.array([0]))[0]) == values.itemsize


def test_foreign_byte_order(tmp_path: Path) -> None:
    """Numbers come in the order of the machine."""
    values = numbered(4, 2).astype(">f4")
    write_array(tmp_path / "a", values, "zarr", dtype=">f4")
    source = ArraySource(tmp_path / "a")
    assert source.dtype == np.dtype("=f4")
    assert source.read(np.array([3])).columns[""][0].tolist() == [6, 7]


def test_rows_never_written_are_filled(tmp_path: Path) -> None:
    path = write_array(tmp_path / "a", numbered(4, 2), chunk=(2, 2), data_type="float32", fill_value=7.0)
    (path / "c" / "1" / "0").unlink()
    assert [row.tolist() for row in ArraySource(path).read(np.array([1, 2])).columns[""]] == [[2, 3], [7, 7]]


def test_content_ids(tmp_path: Path) -> None:
    values = numbered(9, 2)

    def content_id(values: np.ndarray[Any, Any], name: str = "a") -> str:
        return ArraySource(write_array(tmp_path / name, values, chunk=(3, 2))).content_id

    first = content_id(values)
    assert content_id(values, "elsewhere") == first
    changed = [
        values + 1,
        np.concatenate([values[:-1], values[:1]]),
        values[:8],
        values[:, ::-1],
        values.view(np.int32),
    ]
    assert len({first, *(content_id(each) for each in changed)}) == 6


FORKED = """
import os, sys
import numpy as np
from energon_grain.errors import WorkerError
from energon_grain.kinds.arrays.source import ArrayGroupRows, ArraySource
from energon_grain.sources.rows import selected

source, group = ArraySource(sys.argv[1]), selected(ArrayGroupRows(sys.argv[1]))
if sys.argv[2] == "read":
    source.read(np.array([0]))
child = os.fork()
if child == 0:
    for use in (
        lambda: source.read(np.array([1])), lambda: group.read(np.array([1])), lambda: ArraySource(sys.argv[1])
    ):
        try:
            use()
        except WorkerError as error:
            print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(source.read(np.array([1])).columns[""][0].tolist())
"""


@pytest.mark.parametrize("when", ["opened", "read"])
def test_forks_are_refused(folder: Path, when: str) -> None:
    """TensorStore would end the process; who forked it goes on."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(folder / "zarr"), when],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    *refused, last = done.stdout.splitlines()
    assert last == "[[6.0, 7.0], [8.0, 9.0], [10.0, 11.0]]"
    assert len(refused) == 3
    assert all("zarr: this process was forked" in said and "'forkserver'` or 'spawn'" in said for said in refused)


def test_arrays_that_change_or_break_while_open(tmp_path: Path) -> None:
    source = ArraySource(write_array(tmp_path / "a", numbered(4, 2), chunk=(2, 2)))
    write_array(tmp_path / "a", numbered(5, 2))
    source.close()
    with pytest.raises(StaleIndexError, match=r"is float32\[5, 2\], but was float32\[4, 2\]"):
        source.read(np.array([0]))
    broken = ArraySource(write_array(tmp_path / "b", numbered(4, 2), "zarr", chunk=(2, 2)))
    (tmp_path / "b" / "1.0").write_bytes(b"damaged")
    assert broken.read(np.array([1])).columns[""][0].tolist() == [2, 3]
    with pytest.raises(ReadError, match=r"b: rows 1 to 3: "):
        broken.read(np.array([2, 3, 1]))
    metadata = tmp_path / "b" / ".zarray"
    metadata.write_text(metadata.read_text().replace('"blosc"', '"unheard_of"'))
    with pytest.raises(FormatError, match="TensorStore cannot open it"):
        ArraySource(tmp_path / "b")


def test_what_holds_no_rows_of_numbers_is_refused(tmp_path: Path) -> None:
    def refused(error: type[Exception], says: str, path: Path) -> None:
        with pytest.raises(error, match=says):
            ArraySource(path)

    for driver in ("zarr", "zarr3"):
        write_array(tmp_path / f"{driver}_one", np.array(3.0), driver)
        refused(ConfigError, "single number", tmp_path / f"{driver}_one")
        write_array(tmp_path / f"{driver}_none", numbered(0, 2), driver)
        refused(EmptyDatasetError, r"shape \[0, 2\]", tmp_path / f"{driver}_none")
    text = write_array(tmp_path / "utf32", numbered(2)) / "zarr.json"
    text.write_text(text.read_text().replace('"float32"', '{"name": "fixed_length_utf32"}'))
    refused(
        FormatError, r"utf32: TensorStore cannot open it: .*data_type.*exclude it by part_filter", tmp_path / "utf32"
    )
    text = write_array(tmp_path / "text", numbered(2), "zarr") / ".zarray"
    metadata = json.loads(text.read_text())
    for dtype in ("|O", "<U3", "<M8[ns]", "who knows", [["a", "<f4"], ["b", "<f4"]]):
        text.write_text(json.dumps({**metadata, "dtype": dtype}))
        refused(FormatError, "text: TensorStore cannot open it: .*exclude it by part_filter", tmp_path / "text")
    for dtype in ("|S9", "|V2"):
        text.write_text(json.dumps({**metadata, "dtype": dtype}))
        refused(ConfigError, "must be arrays of plain numbers", tmp_path / "text")


def test_damaged_metadata_is_told(tmp_path: Path) -> None:
    for driver, name in (("zarr", ".zarray"), ("zarr3", "zarr.json"), ("n5", "attributes.json")):
        file = write_array(tmp_path / driver, numbered(4, 2), driver) / name
        metadata = json.loads(file.read_text())
        length = "dimensions" if driver == "n5" else "shape"
        for content in ("{", "[]", *(json.dumps({**metadata, length: wrong}) for wrong in ([-3, 2], [1.5, 2], 7))):
            file.write_text(content)
            with pytest.raises(FormatError, match=rf"{driver}.*(write the array again|TensorStore cannot open it)"):
                ArraySource(tmp_path / driver)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_unreadable_arrays(tmp_path: Path) -> None:
    path = write_array(tmp_path / "a", numbered(4, 2), chunk=(2, 2))
    source = ArraySource(path)
    (path / "c" / "0" / "0").chmod(0)
    with pytest.raises(ReadError):
        source.read(np.array([0]))


def test_missing_arrays(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="found nothing"):
        ArraySource(tmp_path / "a")
    (tmp_path / "file").touch()
    with pytest.raises(DatasetNotFoundError, match="found a file"):
        ArraySource(tmp_path / "file")
    with pytest.raises(DatasetNotFoundError, match=r"found a folder without zarr\.json, \.zarray"):
        ArraySource(tmp_path)
    with pytest.raises(DatasetNotFoundError, match="a group; name one of its arrays"):
        ArraySource(write_group(tmp_path / "g", a=numbered(3)))


ARRAYS = {"label": numbered(ROWS, dtype=np.int64), "image": numbered(ROWS, 3, 2), "mask": numbered(ROWS, 5) > 20}


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    grouped: Path, monkeypatch: pytest.MonkeyPatch, driver: str, wanted: list[int], in_flight: int, sliced: int
) -> None:
    monkeypatch.setattr(module, "IN_FLIGHT_BYTES", in_flight)
    monkeypatch.setattr(module, "_SLICED_ROWS", sliced)
    source = selected(ArrayGroupRows(grouped / driver), start=3, stop=ROWS - 8)
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


def test_what_it_says_of_itself(grouped: Path) -> None:
    source = selected(ArrayGroupRows(grouped / "zarr3"), start=10)
    assert source.sizes(np.array([0, 3])).tolist() == [8 + 24 + 5] * 2
    assert source.read(np.array([1, 2])).nbytes() == 2 * 37
    place = source.locate(2)
    assert (place.index, place.shard, place.key, place.start, place.stop) == (2, "zarr3", "12", 12 * 37, 13 * 37)
    assert place.parts == {"image": (12 * 24, 24), "label": (96, 8), "mask": (60, 5)}
    assert source.place_of(2) == "zarr3: 12"


def test_only_wanted_arrays_are_opened(grouped: Path, tmp_path: Path) -> None:
    path = write_group(tmp_path / "g", a=numbered(ROWS, 2), b=numbered(ROWS), text=numbered(ROWS))
    text = path / "text" / "zarr.json"
    text.write_text(text.read_text().replace('"float32"', '"string"'))
    (path / "b" / "c" / "0").write_bytes(b"damaged")
    source = selected(ArrayGroupRows(path, parts={"a"}))
    (sample,) = source.read(np.array([1]))
    assert list(sample.parts) == ["a"]
    with pytest.raises(ReadError, match=r"b: rows 1 to 1: "):
        selected(ArrayGroupRows(path, parts=lambda name: name != "text")).read(np.array([1]))
    with pytest.raises(FormatError, match=r"text: TensorStore cannot open it: .*string.* exclude it by part_filter"):
        selected(ArrayGroupRows(path))
    before = source.content_id
    text.write_text(text.read_text().replace('"string"', '"json"'))
    assert selected(ArrayGroupRows(path, parts={"a"})).content_id != before
    with pytest.raises(ConfigError, match="part_filter excludes all arrays; select some of a, b, text"):
        selected(ArrayGroupRows(path, parts={"c"}))
    with pytest.raises(EmptyDatasetError):
        selected(ArrayGroupRows(path, parts={"a"}), start=5, stop=5)


def test_lengths_of_what_is_read_must_agree(tmp_path: Path) -> None:
    path = write_group(tmp_path / "g", a=numbered(8, 2), b=numbered(9), c=numbered(9))
    with pytest.raises(ConfigError, match="a has 8, b has 9, c has 9; select those of one length by part_filter"):
        selected(ArrayGroupRows(path))
    assert len(selected(ArrayGroupRows(path, parts={"a"}))) == 8
    source = pickle.loads(pickle.dumps(selected(ArrayGroupRows(path, parts={"b", "c"}), 2, 9)))
    (sample,) = source.read(np.array([6]))
    assert {name: int(value) for name, value in sample.parts.items()} == {"b": 8, "c": 8}


def test_arrays_without_rows_can_be_left_out(tmp_path: Path) -> None:
    path = write_group(tmp_path / "g", a=numbered(8, 2), mean=np.array(3.0), none=numbered(0, 2))
    with pytest.raises(ConfigError, match=r"mean: is a single number.* exclude it by part_filter"):
        selected(ArrayGroupRows(path))
    with pytest.raises(EmptyDatasetError, match=r"none: the array has shape \[0, 2\].* exclude it by part_filter"):
        selected(ArrayGroupRows(path, parts={"a", "none"}))
    source = selected(ArrayGroupRows(path, parts={"a"}))
    assert (len(source), source.part_names) == (8, ("a", "mean", "none"))
    write_group(tmp_path / "h", a=numbered(8, 2), mean=np.array(3.0), none=numbered(0, 3))
    assert source.content_id != selected(ArrayGroupRows(tmp_path / "h", parts={"a"})).content_id


def test_content_ids_of_groups(tmp_path: Path) -> None:
    def content_id(name: str = "g", *, parts: Any = None, **options: Any) -> str:
        return selected(ArrayGroupRows(tmp_path / name, parts=parts), **options).content_id

    write_group(tmp_path / "g", a=numbered(9, 2), b=numbered(9))
    write_group(tmp_path / "elsewhere", a=numbered(9, 2), b=numbered(9))
    assert content_id() == content_id("elsewhere") == content_id(parts={"a"})
    others = {content_id(start=1), content_id(stop=8)}
    for number, arrays in enumerate(({"a": numbered(9, 2)}, {"a": numbered(9, 2), "b": -numbered(9)})):
        write_group(tmp_path / str(number), "zarr3", **arrays)
        others.add(content_id(str(number)))
    assert len(others | {content_id()}) == 5


def test_an_array_alone(tmp_path: Path) -> None:
    source = selected(ArrayGroupRows(write_array(tmp_path / "embeddings.zarr", numbered(4, 2))))
    assert source.part_names == ("embeddings",)
    assert [value.tolist() for value in source.read(np.array([2, 0])).columns["embeddings"]] == [[4, 5], [0, 1]]  # type: ignore[union-attr]
    assert source.locate(0).shard == "embeddings.zarr"


def test_paths_with_a_slash_behind_them(grouped: Path) -> None:
    source = selected(ArrayGroupRows(f"{grouped}/zarr3/"))
    assert source.locate(0).shard == "zarr3"
    assert int(source.read(np.array([7])).columns["label"][0]) == 7  # type: ignore[arg-type]
    alone = selected(ArrayGroupRows(f"{grouped}/zarr3/label/"))
    assert alone.part_names == ("label",)
    assert len(alone.read(np.array([7]))) == 1


@pytest.fixture(autouse=True)
def _quick() -> None:
    use_storage(StorageSettings(first_pause_s=0.01, longest_pause_s=0.05, attempts=4))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return write_group(tmp_path / "g.zarr", "zarr3", image=numbered(ROWS, 3, 2), label=np.arange(ROWS))


def rows(source: SelectedSource, indices: list[int]) -> dict[str, Any]:
    columns = source.read(np.array(indices)).columns
    return {name: np.stack(cast("list[Any]", column)).tolist() for name, column in columns.items()}


@pytest.mark.parametrize("driver", DRIVERS)
def test_rows_of_local_ones(tmp_path: Path, bucket: Bucket, driver: str) -> None:
    here = write_group(tmp_path / "g.zarr", driver, image=numbered(ROWS, 3, 2), label=np.arange(ROWS))
    local, remote = selected(ArrayGroupRows(here)), selected(ArrayGroupRows(f"{bucket.upload(here, 'data/g.zarr')}/"))
    assert (remote.path, remote.locate(0).shard, remote.part_names) == (
        f"{bucket.url}/data/g.zarr",
        "g.zarr",
        local.part_names,
    )
    assert remote.content_id == local.content_id
    wanted = [49, 3, 3, 20, 21, 22]
    assert rows(remote, wanted) == rows(local, wanted)
    assert remote.locate(9).key == "9"


def test_chunks_are_asked_for_once(stored: Path, bucket: Bucket) -> None:
    url = bucket.upload(stored, "g.zarr")
    source = selected(ArrayGroupRows(url, parts={"image"}))
    bucket.server.reset()
    copy = pickle.loads(pickle.dumps(source))
    assert len(copy) == ROWS
    assert not bucket.server.requests()  # a copy knows what the array is
    for wanted in ([0, 1, 8, 9, 20], [20, 2, 9]):
        rows(copy, wanted)
    asked = [request.path for request in bucket.server.requests("/c/")]
    assert sorted(path.partition("/image/")[2] for path in asked) == ["c/0/0/0", "c/1/0/0", "c/2/0/0"]


def test_groups_that_name_what_lies_in_them(tmp_path: Path, stored: Path, bucket: Bucket) -> None:
    """No list of all chunks is needed then."""
    old = write_group(tmp_path / "old.zarr", "zarr", image=numbered(ROWS, 2))
    (old / ".zmetadata").write_text('{"zarr_consolidated_format": 1, "metadata": {".zgroup": {}, "image/.zarray": {}}}')
    metadata = json.loads((stored / "zarr.json").read_text())
    metadata["consolidated_metadata"] = {"kind": "inline", "metadata": {"image": {}, "label": {}, "more/deep": {}}}
    (stored / "zarr.json").write_text(json.dumps(metadata))
    for group, names in ((old, ("image",)), (stored, ("image", "label"))):
        url = bucket.upload(group, group.name)
        bucket.server.reset()
        assert selected(ArrayGroupRows(url)).part_names == names
        assert not bucket.server.requests("list-type")


def test_what_lies_there(stored: Path, bucket: Bucket) -> None:
    url = bucket.upload(stored, "g.zarr")
    assert is_array_folder(url)
    assert is_array_folder(f"{url}/label")
    assert not is_array_folder(f"{url}/label/c")
    with pytest.raises(DatasetNotFoundError, match="array or group, found neither"):
        selected(ArrayGroupRows(f"{bucket.url}/none.zarr"))
    with pytest.raises(DatasetNotFoundError, match="a group; name one of its arrays"):
        ArraySource(url)
    bucket.put("g.zarr/short/zarr.json", (stored / "label" / "zarr.json").read_bytes().replace(b"[50]", b"[9]"))
    with pytest.raises(ConfigError, match="image has 50, label has 50, short has 9"):
        selected(ArrayGroupRows(url))


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", status=503, times=3, match="/c/"),
        Fault("status", status=500, times=3, match="/c/"),
        Fault("close", times=3, match="/c/"),
        Fault("close", sent=0.5, times=3, match="/c/"),
        Fault("reset", sent=0.5, times=2, match="/c/"),
        Fault("status", status=503, times=3, match="zarr.json"),
    ],
    ids=str,
)
def test_failures_that_pass(stored: Path, bucket: Bucket, fault: Fault) -> None:
    url = bucket.upload(stored, "g.zarr")
    bucket.server.inject(fault)
    assert (
        rows(selected(ArrayGroupRows(url, parts={"image"})), [0, 9])["image"] == numbered(ROWS, 3, 2)[[0, 9]].tolist()
    )


def test_failures_that_stay(stored: Path, bucket: Bucket) -> None:
    url = bucket.upload(stored, "g.zarr")
    source = selected(ArrayGroupRows(url, parts={"label"}))
    bucket.server.inject(Fault("status", status=503, times=None, match="/c/1"))
    assert rows(source, [1, 2]) == {"label": [1, 2]}
    with pytest.raises(ReadError, match=r"g.zarr/label: rows 1 to 8: .*label/c/1"):
        rows(source, [8, 1])
    assert len(bucket.server.requests("/c/1")) == 4
    bucket.server.inject(Fault("status", status=503, times=None, match="image"))
    with pytest.raises(ReadError, match=r"g\.zarr/image"):
        selected(ArrayGroupRows(url))
    source.close()
    bucket.server.inject(Fault("status", status=503, times=None, match="label/zarr.json"))
    with pytest.raises(ReadError, match=r"g\.zarr/label: TensorStore cannot open it: .*attempts"):
        rows(source, [8])


STALLED = """
import os, sys
import numpy as np
from energon_grain.kinds.arrays.source import ArraySource
from energon_grain.sources.rows import selected
from energon_grain.storage.settings import StorageSettings, use_storage

use_storage(StorageSettings(timeout_s=1, first_pause_s=0.01, longest_pause_s=0.05))
source = ArraySource(sys.argv[1])
print(source.read(np.array([1, 20])).columns[""][1].tolist(), flush=True)
os._exit(0)
"""


def test_requests_that_stall(tmp_path: Path, bucket: Bucket) -> None:
    """In a process of its own, since TensorStore learns the time-out once."""
    url = bucket.upload(write_array(tmp_path / "a", numbered(ROWS, 2), chunk=(7, 2)), "a")
    bucket.server.inject(Fault("stall", sent=0.5, match="/c/0"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TENSORSTORE_CURL")}
    done = subprocess.run(
        [sys.executable, "-c", STALLED, url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment,
    )
    assert done.stdout == "[40.0, 41.0]\n", done.stderr
