"""Rows of arrays on disk: the same numbers as slicing them in memory."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import DRIVERS, numbered, write_array, write_group
from hypothesis import HealthCheck, given, settings, strategies as st
from patience import PATIENCE_S

import energon_grain.sources.arrays as module
from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    EmptyDatasetError,
    FormatError,
    ReadError,
    StaleIndexError,
)
from energon_grain.sources.arrays import ArraySource

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
    rows = ArraySource(folder / form).read(np.array(wanted, np.int64))
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
    rows = source.read(np.array([5, 0]))
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
    assert source.read(np.array([3]))[0].tolist() == [6, 7]


def test_rows_never_written_are_filled(tmp_path: Path) -> None:
    path = write_array(tmp_path / "a", numbered(4, 2), chunk=(2, 2), data_type="float32", fill_value=7.0)
    (path / "c" / "1" / "0").unlink()
    assert [row.tolist() for row in ArraySource(path).read(np.array([1, 2]))] == [[2, 3], [7, 7]]


def test_out_of_range(folder: Path) -> None:
    source = ArraySource(folder / "zarr3")
    for ask in (source.read, source.sizes, lambda indices: source.locate(int(indices[0]))):
        for wrong in (-1, ROWS):
            with pytest.raises(IndexError, match=f"row {wrong} asked for, but there are {ROWS}"):
                ask(np.array([wrong]))


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


def test_copies_in_other_processes_and_threads(folder: Path) -> None:
    source = ArraySource(folder / "zarr")
    source.read(np.array([0]))
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.content_id, len(pickle.dumps(source)) < 500) == (source.content_id, True)
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda number: copy.read(np.array([number]))[0].tolist(), range(ROWS)))
    assert rows == numbered(ROWS, 3, 2).tolist()
    copy.close()
    assert copy.read(np.array([9]))[0].tolist() == rows[9]


FORKED = """
import os, sys
import numpy as np
from energon_grain.errors import WorkerError
from energon_grain.sources.arrays import ArrayGroupSource, ArraySource

source, group = ArraySource(sys.argv[1]), ArrayGroupSource(sys.argv[1])
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
print(source.read(np.array([1]))[0].tolist())
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
    assert all("zarr: this process was forked" in said and "'forkserver' or 'spawn'" in said for said in refused)


def test_arrays_that_change_or_break_while_open(tmp_path: Path) -> None:
    source = ArraySource(write_array(tmp_path / "a", numbered(4, 2), chunk=(2, 2)))
    write_array(tmp_path / "a", numbered(5, 2))
    source.close()
    with pytest.raises(StaleIndexError, match=r"is float32\[5, 2\] now, and was float32\[4, 2\]"):
        source.read(np.array([0]))
    broken = ArraySource(write_array(tmp_path / "b", numbered(4, 2), "zarr", chunk=(2, 2)))
    (tmp_path / "b" / "1.0").write_bytes(b"damaged")
    assert broken.read(np.array([1]))[0].tolist() == [2, 3]
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
        FormatError, r"utf32: TensorStore cannot open it: .*data_type.*leave it out by part_filter", tmp_path / "utf32"
    )
    text = write_array(tmp_path / "text", numbered(2), "zarr") / ".zarray"
    metadata = json.loads(text.read_text())
    for dtype in ("|O", "<U3", "<M8[ns]", "who knows", [["a", "<f4"], ["b", "<f4"]]):
        text.write_text(json.dumps({**metadata, "dtype": dtype}))
        refused(FormatError, "text: TensorStore cannot open it: .*leave it out by part_filter", tmp_path / "text")
    for dtype in ("|S9", "|V2"):
        text.write_text(json.dumps({**metadata, "dtype": dtype}))
        refused(ConfigError, "arrays of plain numbers only", tmp_path / "text")


def test_damaged_metadata_is_told(tmp_path: Path) -> None:
    for driver, name in (("zarr", ".zarray"), ("zarr3", "zarr.json"), ("n5", "attributes.json")):
        file = write_array(tmp_path / driver, numbered(4, 2), driver) / name
        metadata = json.loads(file.read_text())
        length = "dimensions" if driver == "n5" else "shape"
        for content in ("{", "[]", *(json.dumps({**metadata, length: wrong}) for wrong in ([-3, 2], [1.5, 2], 7))):
            file.write_text(content)
            with pytest.raises(FormatError, match=rf"{driver}.*(write the array anew|TensorStore cannot open it)"):
                ArraySource(tmp_path / driver)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_unreadable_arrays(tmp_path: Path) -> None:
    path = write_array(tmp_path / "a", numbered(4, 2), chunk=(2, 2))
    source = ArraySource(path)
    (path / "c" / "0" / "0").chmod(0)
    with pytest.raises(ReadError):
        source.read(np.array([0]))


def test_missing_arrays(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="there is nothing"):
        ArraySource(tmp_path / "a")
    (tmp_path / "file").touch()
    with pytest.raises(DatasetNotFoundError, match="but there is a file"):
        ArraySource(tmp_path / "file")
    with pytest.raises(DatasetNotFoundError, match=r"but there is a folder without zarr\.json, \.zarray"):
        ArraySource(tmp_path)
    with pytest.raises(DatasetNotFoundError, match="is a group; name one of the arrays in it"):
        ArraySource(write_group(tmp_path / "g", a=numbered(3)))
