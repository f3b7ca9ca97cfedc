"""What rows of tables may take in memory, and what is said of values that are not supported."""

from __future__ import annotations

import datetime
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuzz_tables
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_runs import run
from parquet_files import features, write_parquet
from table_forms import write_arrow, write_feather, write_mds

from energon_grain import StorageSettings, WorkerConfig, get_val_dataset, use_storage
from energon_grain.errors import ConfigError, EnergonGrainError, FormatError, ReadError
from energon_grain.kinds.tables.arrow_files import ArrowFiles
from energon_grain.kinds.tables.parquet import ParquetFiles
from energon_grain.kinds.tables.source import DecodedGroups, TableRows
from energon_grain.sources.rows import selected

ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)
_LIMIT_BYTES = 8 << 20


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    use_storage(StorageSettings(largest_group_bytes=_LIMIT_BYTES))
    yield
    use_storage(None)


def rows_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    dataset = get_val_dataset(path, batch_size=None, worker_config=ONE, **options)
    return [{name: value for name, value in row.items() if not name.startswith("__s")} for row in dataset]


# One long text in all rows.

_LONG, _ROWS = "y" * 100_000, 20_000


def _repeated(kind: str) -> pa.Array:
    """`_ROWS` times a long text, 2 GB, and some other values."""
    codes = pa.array([*np.zeros(_ROWS, np.int32).tolist(), 1, None, 2], pa.int32())
    coded = pa.DictionaryArray.from_arrays(codes, pa.array([_LONG, "a", "b"]))
    if kind == "codes":
        return coded
    raw = pa.DictionaryArray.from_arrays(codes, pa.array([_LONG, "a", "b"]).cast(pa.binary()))
    if kind == "files":
        return pa.StructArray.from_arrays([raw, pa.nulls(len(raw), pa.string())], names=["bytes", "path"])
    offsets = pa.array(np.arange(len(coded) + 1), pa.int32())
    return pa.ListArray.from_arrays(offsets, coded)


def _parquet(folder: Path, kind: str) -> Path:
    column = _repeated(kind)
    said = features(x={"_type": "Image"}) if kind == "files" else None
    path = folder / "x.parquet"
    table = pa.table({"n": np.arange(len(column)), "x": column}).replace_schema_metadata(said)
    pq.write_table(table, path, row_group_size=1 << 20, compression="zstd", store_schema=kind == "files")
    return path


def _arrow(folder: Path, kind: str, compression: str | None = None) -> Path:
    column = _repeated(kind)
    said = features(x={"_type": "Image"}) if kind == "files" else None
    return write_arrow(
        folder / "x.arrow",
        {"n": np.arange(len(column)), "x": column},
        rows=1 << 20,
        compression=compression,
        metadata=said,
    )


@pytest.mark.parametrize("write", [_parquet, _arrow, lambda folder, kind: _arrow(folder, kind, "zstd")])
@pytest.mark.parametrize("kind", ["codes", "files", "lists"])
def test_one_long_text_in_all_rows(tmp_path: Path, write: Any, kind: str) -> None:
    """Takes what it takes once: dictionaries are not expanded before rows are taken."""
    path = write(tmp_path, kind)
    files = ParquetFiles(path) if path.suffix == ".parquet" else ArrowFiles(path)
    source = selected(TableRows(files))
    assert files.read(0, ("n", "x")).nbytes < 1 << 20
    before = pa.total_allocated_bytes()
    batch = source.read(np.array([_ROWS, 5, _ROWS + 1, 7, _ROWS + 2]))
    assert pa.total_allocated_bytes() - before < _LIMIT_BYTES
    texts: list[Any] = ["a", _LONG, None, _LONG, "b"]
    if kind == "lists":
        assert [None if each is None else json.loads(each) for each in batch.columns["x"]] == [[text] for text in texts]
    else:
        assert batch.columns["x"] == [None if text is None else text.encode() for text in texts]


def test_a_dictionary_that_is_full(tmp_path: Path) -> None:
    """Writers give dictionaries up behind a mebibyte; then some pages have codes, and others values."""
    texts = [f"{number % 2500:06d}" * 100 for number in range(5000)]
    path = write_parquet(
        tmp_path / "x.parquet", {"x": texts}, dictionary_pagesize_limit=1 << 18, data_page_size=1 << 16
    )
    assert [row["x"] for row in rows_of(path)] == texts
    long = [*[_LONG] * 500, *texts]
    write_parquet(path, {"x": long}, dictionary_pagesize_limit=1 << 18, data_page_size=1 << 16)
    assert ParquetFiles(path).read(0, ("x",)).nbytes < _LIMIT_BYTES
    assert [row["x"] for row in rows_of(path)] == long


def test_dictionaries_leave_memory_for_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups with several dictionaries, too."""
    texts = [f"{number % 2500:06d}" * 100 for number in range(5000)]
    path = write_parquet(tmp_path / "x.parquet", {"x": [_LONG, *texts]}, dictionary_pagesize_limit=1 << 18)
    files = ParquetFiles(path)
    kept = DecodedGroups(limit_bytes=1, folder=str(tmp_path / "decoded"))
    for number in (0, 1):
        kept.get((files, number), lambda: files.read(0, ("x",)))
    again = kept.get((files, 0), lambda: pytest.fail("decoded again"))
    assert again.table.column("x").to_pylist() == [_LONG, *texts]


def test_codes_that_the_dictionary_does_not_have(tmp_path: Path) -> None:
    for dictionary in (pa.array(["a", "b"]), pa.array([1, 2])):
        codes = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1, 0, 1], pa.int32()), dictionary)
        for column in (codes, pa.StructArray.from_arrays([codes], names=["y"])):
            path = write_arrow(tmp_path / "x.arrow", {"x": column})
            data = path.read_bytes()
            good = struct.pack("<5i", 0, 1, 1, 0, 1)
            assert data.count(good) == 1
            path.write_bytes(data.replace(good, struct.pack("<5i", 0, 1, 7, 0, 1)))
            with pytest.raises(FormatError, match=r"x\.arrow: record batch 0: column 'x': .*out of bounds"):
                rows_of(path)


# Groups that are too large.


def test_pages_that_unpack_to_too_much(tmp_path: Path) -> None:
    value = bytes(_LIMIT_BYTES // 2)
    path = write_parquet(
        tmp_path / "x.parquet",
        {"n": [1], "x": [value]},
        compression="brotli",
        use_dictionary=False,
        write_statistics=False,
    )
    assert path.stat().st_size < 1500
    with pytest.raises(FormatError, match=r"x\.parquet: row group 0: column 'x' takes 8,388,\d\d\d bytes, with the"):
        rows_of(path)
    assert [int(row["n"]) for row in rows_of(path, part_filter={"n"})] == [1]
    use_storage(StorageSettings(largest_group_bytes=2 * _LIMIT_BYTES))
    assert rows_of(path)[0]["x"] == value


def _varint(value: int) -> bytes:
    value <<= 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def test_a_footer_that_says_less_than_pages_have(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "x.parquet",
        {"x": [bytes(_LIMIT_BYTES)]},
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
    )
    said = pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    data = path.read_bytes()
    assert data.count(_varint(said)) >= 1
    path.write_bytes(data.replace(_varint(said), b"\x80\x81" + bytes([0x80] * (len(_varint(said)) - 3)) + b"\0"))
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 64
    with pytest.raises(FormatError, match=r"x\.parquet: row group 0: column 'x' takes 16,777,\d\d\d bytes, but `larg"):
        rows_of(path)


@pytest.mark.parametrize(("rows", "fits"), [(50, True), (2000, False)])
def test_values_that_share_their_beginnings(tmp_path: Path, rows: int, fits: bool) -> None:
    """`DELTA_BYTE_ARRAY` says of a value how much of the one before it repeats."""
    path = write_parquet(
        tmp_path / "x.parquet", {"x": [_LONG] * rows}, use_dictionary=False, column_encoding={"x": "DELTA_BYTE_ARRAY"}
    )
    assert path.stat().st_size < 1 << 20
    if fits:
        assert [row["x"] for row in rows_of(path)] == [_LONG] * rows
        return
    with pytest.raises(FormatError, match=r"x\.parquet: row group 0: column 'x' takes [\d,]+ bytes, but"):
        rows_of(path)


@pytest.mark.parametrize("write", [write_arrow, write_feather])
def test_compressed_arrow_batches(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path / "x.arrow", {"n": [1, 2], "x": [bytes(_LIMIT_BYTES), b"a"]}, compression="zstd")
    assert path.stat().st_size < 5000
    with pytest.raises(FormatError, match=r"x\.arrow: record batch 0: column 'x' takes 8,388,6\d\d bytes, with the"):
        rows_of(path)
    assert [int(row["n"]) for row in rows_of(path, part_filter={"n"})] == [1, 2]
    mapped = write(tmp_path / "y.arrow", {"n": [1, 2], "x": [bytes(_LIMIT_BYTES), b"a"]})
    assert rows_of(mapped)[1]["x"] == b"a", "takes no memory of its own"


def test_compressed_shards_of_mds(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "mds", {"x": [bytes(_LIMIT_BYTES), b"a"]}, compression="zstd", shards=1)
    with pytest.raises(
        FormatError, match=r"shard\.00000\.mds\.zstd: run of samples 0: column 'x' takes 8,388,\d\d\d bytes"
    ):
        rows_of(folder)


def test_the_limit_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "x.parquet", {"x": np.arange(1000)})
    use_storage(None)
    (tmp_path / "storage.yaml").write_text("largest_group_bytes: 1000")
    monkeypatch.setenv("ENERGON_GRAIN_STORAGE", str(tmp_path / "storage.yaml"))
    with pytest.raises(FormatError, match="but `largest_group_bytes` is 1,000; write smaller groups"):
        rows_of(path)
    with pytest.raises(ConfigError, match="largest_group_bytes=0: must be 1 or more"):
        StorageSettings(largest_group_bytes=0)


# Dates, keys, and types that are not supported.


def test_dates_of_int96(tmp_path: Path) -> None:
    """Spark writes 9999-12-31 where there is no end; nanoseconds since 1970 in 64 bits end in 2262."""
    near = [datetime.datetime(2020, 1, 2), datetime.datetime(1700, 3, 4, 5, 6, 7, 891), datetime.datetime(2262, 1, 1)]
    path = write_parquet(
        tmp_path / "x.parquet",
        {"x": pa.array(near, pa.timestamp("us"))},
        use_deprecated_int96_timestamps=True,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    assert [row["x"] for row in rows_of(path)] == [each.isoformat() for each in near]
    assert str(ParquetFiles(path).schema().field("x").type) == "timestamp[us]"
    data = path.read_bytes()
    for far in (datetime.datetime(9999, 12, 31), datetime.datetime(1, 1, 1), datetime.datetime(1600, 2, 29)):
        old, new = (struct.pack("<qI", 0, day.toordinal() + 1721425) for day in (near[0], far))
        assert data.count(old) == 1
        path.write_bytes(data.replace(old, new))
        assert [row["x"] for row in rows_of(path)] == [each.isoformat() for each in [far, *near[1:]]]


def _no_text() -> pa.Array:
    return pa.Array.from_buffers(pa.string(), 3, pa.array([b"ab", b"\xff\xfe", b"c"]).buffers())


def test_keys_that_are_no_text(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", {"__key__": _no_text(), "n": [1, 2, 3]}, row_group_size=1)
    message = r"x\.parquet: row 1: its key in column '__key__' is not UTF-8: b'\\xff\\xfe'"
    rows = TableRows(ParquetFiles(path))
    for read in (
        lambda: rows_of(path),
        lambda: list(rows.key_blocks()),
        lambda: list(rows.key_blocks("__key__")),
        lambda: rows.keys_id(),
        lambda: rows.keys(np.arange(3)),
        lambda: rows.locate(1),
    ):
        with pytest.raises(FormatError, match=message):
            read()
    assert rows.read_rows(np.array([0, 2])).keys == ["ab", "c"]
    path = write_arrow(tmp_path / "x.arrow", {"__key__": _no_text(), "n": [1, 2, 3]})
    with pytest.raises(FormatError, match=r"x\.arrow: record batch 0: column '__key__': .*string index 1"):
        rows_of(path)
    path = write_arrow(tmp_path / "y.arrow", {"__key__": pa.array([b"ab", b"\xff\xfe"]), "n": [1, 2]})
    with pytest.raises(FormatError, match=r"y\.arrow: row 1: its key in column '__key__' is not UTF-8"):
        rows_of(path)


def test_keys_of_attached_columns_that_are_no_text(tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "data.parquet", {"__key__": ["ab", "b", "c"], "n": [1, 2, 3]})
    scores = write_parquet(tmp_path / "scores.parquet", {"__key__": _no_text(), "score": [1.0, 2.0, 3.0]})
    error = run("measure", data, f"--attach=score={scores}:score").exception
    assert isinstance(error, FormatError)
    assert "scores.parquet: row 1: its key in column '__key__' is not UTF-8" in str(error)


def test_texts_that_are_no_text(tmp_path: Path) -> None:
    """Without a decoder they stay the bytes that they are; in structs there is no such thing."""
    inner = pa.StructArray.from_arrays([_no_text()], names=["a"])
    path = write_parquet(tmp_path / "x.parquet", {"text": _no_text(), "inner": inner})
    source = selected(TableRows(ParquetFiles(path), parts={"text"}))
    assert source.read(np.arange(3)).columns["text"] == [b"ab", b"\xff\xfe", b"c"]
    with pytest.raises(FormatError, match=r"x\.parquet: row group 0: column 'inner': row 1 is not UTF-8"):
        rows_of(path)


def _intervals(path: Path, unit: int, inside: bool) -> Path:
    """Intervals of months (unit 0) or of days and milliseconds (1), which pyarrow cannot write."""
    column: Any = pa.array([pa.MonthDayNano([1, 2, 3]), None], pa.month_day_nano_interval())
    column = pa.StructArray.from_arrays([column], names=["y"]) if inside else column
    write_arrow(path, {"n": [1, 2], "x": column})
    data = path.read_bytes()
    said = struct.pack("<8H", 6, 8, 6, 6, 0, 0, 2, 0)[:14]  # a table of FlatBuffers with one field, the unit, in it
    assert data.count(said) == 1
    path.write_bytes(data.replace(said, said[:12] + bytes([unit, 0])))
    return path


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("unit", "name"), [(0, "month_interval"), (1, "day_time_interval")])
def test_intervals(tmp_path: Path, unit: int, name: str, inside: bool) -> None:
    path = _intervals(tmp_path / "x.arrow", unit, inside)
    with pytest.raises(
        FormatError, match=rf"x\.arrow: record batch 0: column 'x': the type .*{name}.*not support"
    ) as error:
        rows_of(path)
    assert "damaged" not in str(error.value)
    assert [int(row["n"]) for row in rows_of(path, part_filter={"n"})] == [1, 2]


@pytest.mark.parametrize("write", [write_arrow, write_parquet])
def test_dates_beyond_year_9999(tmp_path: Path, write: Any) -> None:
    """Python has none."""
    days = pa.array([10, 3_000_000], pa.int32()).cast(pa.date32())
    path = write(tmp_path / ("x.arrow" if write is write_arrow else "x.parquet"), {"n": [1, 2], "x": days})
    with pytest.raises(FormatError, match=r"column 'x': row 1 has an unsupported value of type date32") as error:
        rows_of(path)
    assert path.name in str(error.value)
    assert "damaged" not in str(error.value)
    assert len(rows_of(path, part_filter={"n"})) == 2


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (pa.ArrowNotImplementedError("Nested data conversions"), FormatError, "pyarrow does not support this; exclude"),
        (pa.ArrowMemoryError("malloc of size 10 failed"), ReadError, "not enough memory to decode it"),
        (OSError(12, "Cannot allocate memory"), ReadError, "not enough memory to decode it"),
        (pa.ArrowInvalid("Cannot allocate memory"), ReadError, "not enough memory to decode it"),
        (pa.ArrowIndexError("out of bounds"), FormatError, "out of bounds; the file is damaged"),
        (pa.ArrowKeyError("21"), FormatError, "ArrowKeyError.*21.*damaged"),
    ],
)
def test_what_pyarrow_raises_names_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception, kind: type[Exception], message: str
) -> None:
    path = write_parquet(tmp_path / "x.parquet", {"n": [1], "x": ["a"]})
    read = pq.ParquetFile.read_row_group

    def failing(self: Any, number: int, *, columns: Any, **options: Any) -> Any:
        if "x" in columns:
            raise raised
        return read(self, number, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", failing)
    columns = r"columns 'n', 'x'" if kind is ReadError else r"column 'x'"
    with pytest.raises(kind, match=rf"x\.parquet: row group 0: {columns}: .*{message}") as error:
        rows_of(path)
    assert isinstance(error.value, EnergonGrainError)
    assert kind is FormatError or "damaged" not in str(error.value)
    assert len(rows_of(path, part_filter={"n"})) == 1


# Damaged files: `python tests/fuzz_tables.py` reads thousands.


def test_damaged_tables() -> None:
    """No raw error in any form, and no silent difference where checksums cover what was damaged."""
    command = [sys.executable, fuzz_tables.__file__, "--inputs", "260", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(form in done.stdout for form in fuzz_tables.FORMS)


def test_the_fuzz_finds_what_is_wrong() -> None:
    found = {"parquet-checksums": ["equal", "different: flip @ 3"], "jsonl": ["different: flip @ 3", "raw: SIGSEGV"]}
    assert fuzz_tables.faults(found) == ["parquet-checksums 1: different: flip @ 3", "jsonl 1: raw: SIGSEGV"]
