"""Parquet files as datasets: what columns become, which rows come when, and what damaged files say."""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
import pickle
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_runs import run
from metadatasets import write_v2
from object_server import Bucket
from parquet_files import FILE, features, files, picture, write_numbers, write_parquet
from web_server import running_web_server

from energon_grain import (
    DefaultTaskEncoder,
    SampleDecoder,
    StorageSettings,
    Stream,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    use_storage,
)
from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    EmptyDatasetError,
    EnergonGrainError,
    FormatError,
    KeyNotFoundError,
    ReadError,
    StaleIndexError,
)
from energon_grain.kinds.tables.parquet import ParquetFiles
from energon_grain.kinds.tables.source import DecodedGroups, TableRows, decoded_groups
from energon_grain.sources.rows import selected
from energon_grain.testing import write_tars

ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Rgb(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="rgb8")


class Raw(DefaultTaskEncoder):
    decoder = None


def in_order(path: Any, **options: Any) -> list[Any]:
    """The samples in the order of the files."""
    options = {"task_encoder": Rgb(), "worker_config": ONE, **options}
    with Stream.of(get_val_dataset(path, batch_size=None, **options)) as stream:
        return list(stream)


def trained(path: Any, steps: int, *, config: WorkerConfig = ONE, **options: Any) -> list[list[int]]:
    given = {"batch_size": 4, "shuffle_buffer_size": None, "max_samples_per_sequence": None, "lanes": 4, **options}
    with Stream.of(get_train_dataset(path, worker_config=config, **given)) as stream:
        return [next(stream)["n"].tolist() for _ in range(steps)]


# What columns become.


def test_columns_become_parts(tmp_path: Path) -> None:
    types: dict[str, Any] = {
        "truth": pa.array([True, False, None]),
        "byte": pa.array([1, 2, 3], pa.uint8()),
        "half": pa.array(np.array([0.5, 1, 2], np.float16)),
        "maybe": pa.array([7, None, 9]),
        "text": pa.array(["ä", "", None]),
        "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
        "raw": pa.array([b"\0\1", b"", None]),
        "fixed": pa.array([b"ab", b"cd", b"ef"], pa.binary(2)),
        "png": pa.array([picture(0), picture(2), picture(4)]),
        "tokens": pa.array([[1, 2], [], None], pa.list_(pa.int32())),
        "vector": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
        "tags": pa.array([["a", "b"], [], None]),
        "inner": pa.array([{"a": 1, "b": [None]}, None, {"a": None, "b": []}]),
        "nested": pa.array([[[1], [2, 3]], [], [[]]]),
        "when": pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5)] * 3),
        "price": pa.array([decimal.Decimal("1.50")] * 3),
        "id": pa.array(["not a number"] * 3),
    }
    path = write_parquet(tmp_path / "all.parquet", types, row_group_size=2)
    first, second, third = in_order(path)
    values = {name: value for name, value in first.items() if not name.startswith("__")}
    assert list(values) == list(types)
    assert {name: (str(value.dtype), value.tolist()) for name, value in values.items() if hasattr(value, "dtype")} == {
        "truth": ("bool", True),
        "byte": ("uint8", 1),
        "half": ("float16", 0.5),
        "maybe": ("int64", 7),
        "png": ("uint8", np.zeros((8, 8, 3)).tolist()),
        "tokens": ("int32", [1, 2]),
        "vector": ("float32", [1.0, 2.0]),
    }
    assert {name: value for name, value in values.items() if not hasattr(value, "dtype")} == {
        "text": "ä",
        "kind": "a",
        "raw": b"\0\1",
        "fixed": b"ab",
        "tags": ["a", "b"],
        "inner": {"a": 1, "b": [None]},
        "nested": [[1], [2, 3]],
        "when": "2026-01-02T03:04:05",
        "price": "1.50",
        "id": "not a number",
    }
    assert second["text"] == ""
    assert second["raw"] == b""
    assert second["tokens"].shape == (0,)
    assert second.keys() == first.keys() - {"maybe", "inner"}, "no value, no part"
    assert third.keys() == first.keys() - {"truth", "text", "raw", "tokens", "tags"}
    assert third["inner"] == {"a": None, "b": []}
    assert in_order(path, task_encoder=Raw())[0]["text"] == "ä".encode()


def test_features_of_hugging_face(tmp_path: Path) -> None:
    """Pictures and sounds by what the schema says they are, whatever their columns are called."""
    columns = {
        "id": pa.array(files([picture(number) for number in range(4)]), FILE),
        "pages": pa.array([files([picture(1)] * number) for number in range(4)], pa.list_(FILE)),
        "more": pa.array([[None, *files([picture(2)])]] * 4, pa.list_(FILE)),
        "speech": pa.array(files([b"RIFF"] * 4), FILE),
        "grid": pa.array([[[number, 1.0], [2.0, 3.0], [4.0, 5.0]] for number in range(4)]),
        "gone": pa.array([None, {"bytes": None, "path": "a.jpg"}, *files([picture(3)] * 2)], FILE),
    }
    said = features(
        id={"_type": "Image"},
        pages={"_type": "Sequence", "feature": {"_type": "Image"}},
        more=[{"_type": "Image"}],
        speech={"_type": "Audio"},
        grid={"_type": "Array2D", "shape": [3, 2], "dtype": "float64"},
        gone={"_type": "Image"},
    )
    path = write_parquet(tmp_path / "hub.parquet", columns, metadata=said, row_group_size=3)
    samples = in_order(path, part_filter=lambda name: name != "speech")
    assert [int(sample["id"][0, 0, 0]) for sample in samples] == [0, 1, 2, 3]
    assert [sorted(name for name in sample if name.startswith("pages")) for sample in samples] == [
        [],
        ["pages.0"],
        ["pages.0", "pages.1"],
        ["pages.0", "pages.1", "pages.2"],
    ]
    assert samples[3]["pages.2"].shape == (8, 8, 3)
    assert "more.0" not in samples[0]
    assert samples[0]["more.1"].shape == (8, 8, 3)
    assert samples[2]["grid"].tolist() == [[2, 1], [2, 3], [4, 5]]
    assert ["gone" in sample for sample in samples] == [False, False, True, True]
    assert in_order(path, part_filter={"speech"}, task_encoder=Raw())[0]["speech"] == b"RIFF"
    assert "pages.1" not in in_order(path, part_filter={"pages.0"})[3]


def test_large_and_sliced_columns(tmp_path: Path) -> None:
    """Types with offsets of 64 bits, views, extension types, columns in several pieces; bad shapes are named."""
    columns = {
        "wide": pa.array(["a", "bc"], pa.large_string()),
        "view": pa.array(["d", "ef"], pa.string_view()),
        "data": pa.array([b"g", b"hi"], pa.large_binary()),
        "lists": pa.array([[1], [2, 3]], pa.large_list(pa.int16())),
        "uuid": pa.array([b"0" * 16, b"1" * 16], pa.uuid()),
        "grid": pa.array([[[1, 2]], [[3]]]),
    }
    path = write_parquet(tmp_path / "x.parquet", columns, metadata=features(grid={"_type": "Array2D", "shape": [1, 2]}))
    kept = in_order(path, part_filter=set(columns) - {"grid"})
    assert [(each["wide"], each["view"], each["data"], each["lists"].tolist(), each["uuid"]) for each in kept] == [
        ("a", "d", b"g", [1], b"0" * 16),
        ("bc", "ef", b"hi", [2, 3], b"1" * 16),
    ]
    with pytest.raises(FormatError, match=r"x\.parquet: row group 0: column 'grid'"):
        in_order(path)


def test_keys(tmp_path: Path) -> None:
    folder = write_numbers(tmp_path / "data", 5, files=2)
    assert [sample["__key__"] for sample in in_order(folder)] == [
        *("train-00000/0", "train-00000/1"),
        *("train-00001/0", "train-00001/1", "train-00001/2"),
    ]
    write_parquet(tmp_path / "own.parquet", {"__key__": ["a", None, "c"], "x": [1, 2, 3]})
    samples = in_order(tmp_path / "own.parquet", part_filter={"x"})
    assert [sample["__key__"] for sample in samples] == ["a", "own/1", "c"]
    assert samples[2]["__sources__"][0].file_names == ("c.x",)
    assert samples[2]["__shard__"] == "own.parquet"


def test_sample_types_by_a_field_map(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "x.parquet", 3)
    source = selected(TableRows(ParquetFiles(path), parts={"n"}))
    assert (source.part_names, source.all_part_names) == (("n",), ("n", "text"))
    assert list(source.read(np.array([2, 0])).columns) == ["n"]
    with pytest.raises(ConfigError, match=r"part_filter excludes all columns; select some of n, text"):
        TableRows(ParquetFiles(path), parts={"m"})


def test_files_with_other_columns(tmp_path: Path) -> None:
    """A column that a file lacks is a part that its samples lack."""
    write_parquet(tmp_path / "d" / "a.parquet", {"x": [1], "y": ["a"]})
    write_parquet(tmp_path / "d" / "b.parquet", {"z": [2.5], "x": [3]})
    found = [{name: value for name, value in each.items() if name in "xyz"} for each in in_order(tmp_path / "d")]
    assert found == [{"x": 1, "y": "a"}, {"x": 3, "z": 2.5}]
    assert [list(each) for each in in_order(tmp_path / "d", part_filter={"y"})][1][-1] == "__shard__"


@pytest.mark.parametrize("first", [True, False])
def test_files_in_which_all_is_missing(tmp_path: Path, first: bool) -> None:
    """Writers give such a column no type there, so the others say what it becomes."""
    images = [picture(0), picture(1)]
    columns = {"n": [7, 8], "text": ["a", "b"], "png": images, "vector": [[1, 2], [3]], "flag": [True, False]}
    there, gone = ("b", "a") if first else ("a", "b")
    write_parquet(tmp_path / "d" / f"{there}.parquet", columns)
    write_parquet(tmp_path / "d" / f"{gone}.parquet", dict.fromkeys(columns, pa.nulls(2)))
    source = selected(TableRows(ParquetFiles(tmp_path / "d")))
    batch = source.read(np.arange(4))
    rows = [2, 3] if first else [0, 1]
    assert [batch.columns["png"][row] for row in rows] == images
    assert [batch.columns["text"][row] for row in rows] == [b"a", b"b"]
    assert [batch.columns["vector"][row].tolist() for row in rows] == [[1, 2], [3]]
    assert all(not sample.parts for sample in batch if sample.index not in rows)
    assert source.columns == ("bytes", "n", "flag")
    assert source.column("n", np.array(rows)).tolist() == [7, 8]
    assert np.isnan(source.column("n", slice(None))).sum() == 2


def test_names_that_look_like_fields_of_structs(tmp_path: Path) -> None:
    """A column `a.b` beside a struct `a` with a field `b`; each is read alone."""
    path = write_parquet(tmp_path / "x.parquet", {"a": [{"b": 1}], "a.b": ["x"], "a.c": [2]})
    expected = {"a": {"b": 1}, "a.b": "x", "a.c": 2}
    for name, value in expected.items():
        (row,) = in_order(path, part_filter={name})
        assert {part: row[part] for part in row if not part.startswith("__")} == {name: value}


def test_unsigned_numbers_stay_whole(tmp_path: Path) -> None:
    large = [2**60, 2**60 + 1]
    write_parquet(tmp_path / "d" / "a.parquet", {"x": large})
    write_parquet(tmp_path / "d" / "b.parquet", {"x": pa.array(large, pa.uint64())})
    assert selected(TableRows(ParquetFiles(tmp_path / "d"))).column("x", slice(None)).tolist() == large * 2


def test_files_with_other_types(tmp_path: Path) -> None:
    """A file in which a column is all null may give it no type, as pandas does; another type is an error by name."""
    kinds = {
        "a": {"n": pa.nulls(2), "text": ["x", None], "tokens": pa.array([[], None], pa.list_(pa.null()))},
        "b": {"n": [1, 2], "text": pa.nulls(2), "tokens": [[3, None], [4]]},
        "c": {"n": pa.nulls(2), "text": ["y", "z"], "tokens": pa.array([[], [None]], pa.list_(pa.null()))},
    }
    for name, columns in kinds.items():
        write_parquet(tmp_path / "d" / f"{name}.parquet", columns)
    rows = in_order(tmp_path / "d")
    assert [row.get("n") for row in rows] == [None, None, 1, 2, None, None]
    assert [row.get("text") for row in rows] == ["x", None, None, None, "y", "z"]
    tokens = [row["tokens"] for row in rows if "tokens" in row]
    assert [(str(each.dtype), str(each)) for each in tokens] == [
        ("int64", "[]"),
        ("float64", "[ 3. nan]"),
        ("int64", "[4]"),
        ("int64", "[]"),
        ("float64", "[nan]"),
    ]
    assert [row["n"] for row in in_order(tmp_path / "d", where="n > 1")] == [2]
    write_parquet(tmp_path / "d" / "d.parquet", {"n": ["one"], "text": [5], "tokens": ["one"]})
    write_parquet(tmp_path / "e" / "a.parquet", {"words": ["one"]})
    write_parquet(tmp_path / "e" / "b.parquet", {"words": pa.array([[]], pa.list_(pa.null()))})
    with pytest.raises(FormatError, match=r"b\.parquet: row group 0: column 'words': Unsupported cast from list"):
        in_order(tmp_path / "e")
    for part, types in (("n", "string in this file, but int64"), ("text", "int64 in this file, but string")):
        with pytest.raises(FormatError, match=rf"d\.parquet: row group 0: column '{part}': is of type {types} in a"):
            in_order(tmp_path / "d", part_filter={part})
    with pytest.raises(FormatError, match=r"d\.parquet: row group 0: column 'n': is of type string in this file"):
        in_order(tmp_path / "d", where="n > 1")


def test_times_of_nanoseconds(tmp_path: Path) -> None:
    """Python's times have microseconds."""
    times = pa.array([1_001, None], pa.timestamp("ns"))
    inner = pa.array([[{"at": 1_001}], None], pa.list_(pa.struct([("at", pa.timestamp("ns", "UTC"))])))
    spans = pa.array([[("a", 1_001)], None], pa.map_(pa.string(), pa.duration("ns")))
    path = write_parquet(tmp_path / "x.parquet", {"n": [0, 1], "times": times, "inner": inner, "spans": spans})
    first, second = in_order(path)
    assert first["times"] == "1970-01-01T00:00:00.000001"
    assert first["inner"] == [{"at": "1970-01-01T00:00:00.000001Z"}]
    assert first["spans"] == [["a", "PT0.000001S"]]
    assert not {"times", "inner", "spans"} & second.keys()


# Which files.


def test_ways_to_name_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_numbers(tmp_path / "set" / "data", 12, files=3)
    write_numbers(tmp_path / "set" / "data" / "_old" / "x.parquet", 5)
    write_numbers(tmp_path / "set" / ".hidden.parquet", 5)
    (tmp_path / "set" / "README.md").write_text("about")
    everything = list(range(12))
    names = ["set", "set/data", "set/*/*.parquet", "set/**/train-*.parquet", "set/data/train-{00000..00002}.parquet"]
    for name in names:
        assert [int(each["n"]) for each in in_order(tmp_path / name)] == everything, name
    assert [int(each["n"]) for each in in_order(folder / "train-0000[02].parquet")] == [*range(4), *range(8, 12)]
    assert [int(each["n"]) for each in in_order(folder / "train-00001.parquet")] == [4, 5, 6, 7]
    assert [int(each["n"]) for each in in_order(tmp_path / "set", subset=["50%", "75%"])] == [6, 7, 8]
    monkeypatch.chdir(folder)
    assert len(in_order("train-00001.parquet")) == 4
    yaml = write_v2(tmp_path, train={"path": "set/data/train-*.parquet"})
    assert sorted(sum(trained(yaml, 3), [])) == everything
    for wrong in ("set/data/none-*.parquet", "set/data/none.parquet"):
        with pytest.raises(DatasetNotFoundError, match="none"):
            in_order(tmp_path / wrong)
    write_numbers(tmp_path / "empty.parquet", 0)
    with pytest.raises(EmptyDatasetError, match=r"empty\.parquet: its 1 Parquet files have no row"):
        in_order(tmp_path / "empty.parquet")
    with pytest.raises(ConfigError, match="Parquet file has no split_config"):
        in_order(tmp_path / "set", split_config="other.yaml")


def test_names_with_signs(tmp_path: Path) -> None:
    """What exists is what it says; on the web names are written as they are sent."""
    folder = write_numbers(tmp_path / "a {b}[c]" / "x[1] y.parquet", 6).parent
    assert len(in_order(folder)) == len(in_order(folder / "x[1] y.parquet")) == 6
    assert in_order(write_v2(folder, val={"path": "x[1] y.parquet"}))[5]["__key__"] == "x[1] y/5"
    write_numbers(folder / "b.parquet", 3)
    with running_web_server(folder) as server:
        for names in ("{x[1]%20y,b,b}", "{b,x[1]%20y}"):
            keys = [each["__key__"] for each in in_order(f"{server.url}/{names.replace('[', '%5B')}.parquet")]
            assert keys == ["b/0", "b/1", "b/2", *(f"x[1] y/{row}" for row in range(6))]


def test_beside_tars(tmp_path: Path) -> None:
    """As downloads of pictures lie there: samples in tars, what is known of them in Parquet files."""
    write_numbers(tmp_path / "set" / "00000.parquet", 6)
    write_tars(tmp_path / "set", [{"__key__": "0", "txt": b"a"}])
    with pytest.raises(
        ConfigError, match=r"contains tars and Parquet files; name the files to read: .*set/\*\*/\*\.tar or .*\.parquet"
    ):
        in_order(tmp_path / "set")
    assert len(in_order(tmp_path / "set" / "**/*.parquet")) == 6
    assert len(in_order(tmp_path / "set" / "**/*.tar", split_part="train")) == 1


def test_opening_again_reads_no_footer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for that of a file that is new, or another; and what is kept is not believed if it is damaged."""
    from energon_grain.kinds.tables import parquet

    folder = write_numbers(tmp_path / "data", 40, files=4)
    looked: list[list[int]] = []
    read = parquet.ParquetFiles._read_heads

    def counting(self: Any, numbers: Any) -> list[bytes]:
        looked.append(list(numbers))
        return read(self, numbers)

    monkeypatch.setattr(parquet.ParquetFiles, "_read_heads", counting)
    first = selected(TableRows(ParquetFiles(folder)))
    again = pickle.loads(pickle.dumps(selected(TableRows(ParquetFiles(folder)))))
    assert looked == [[0, 1, 2, 3]]
    assert again.content_id == first.content_id
    assert [int(n) for n in again.read(np.arange(40)).columns["n"]] == list(range(40))
    write_numbers(folder / "train-00002.parquet", 7)
    changed = selected(TableRows(ParquetFiles(folder)))
    assert looked == [[0, 1, 2, 3], [2]]
    assert len(changed) == 37
    assert changed.content_id != first.content_id
    with pytest.raises(StaleIndexError, match="changed after"):
        pickle.loads(pickle.dumps(first))
    kept = next((tmp_path / "cache").rglob("*.footers"))
    for damaged in (b"", kept.read_bytes()[:-30], kept.read_bytes()[:-20] + bytes(20)):
        kept.write_bytes(damaged)
        assert selected(TableRows(ParquetFiles(folder))).content_id == changed.content_id
        assert looked.pop() == [0, 1, 2, 3]
    data = bytearray(kept.read_bytes())
    data[10] ^= 1
    kept.write_bytes(data)
    assert selected(TableRows(ParquetFiles(folder))).read(np.array([0])).columns["n"] == [0]


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "x.parquet", 100, row_group_size=10)
    files = ParquetFiles(path)
    source = selected(TableRows(files))
    source.read(np.array([0]))
    write_numbers(path, 90, row_group_size=9)
    files.store.close()
    with pytest.raises((ReadError, StaleIndexError), match=r"x\.parquet: was changed"):
        source.read(np.array([99]))


# The order, and what it takes.


def test_row_groups_are_blocks(tmp_path: Path) -> None:
    """A lane goes through row group after row group, of any sizes; every row comes once a pass, each group is decoded
    once but for those that two lanes share."""
    folder = tmp_path / "data"
    sizes = [7, 30, 11, 23]
    for number, size in enumerate(sizes):
        write_parquet(folder / f"{number}.parquet", {"n": np.arange(size * 20) + number * 1000}, row_group_size=size)
    total = sum(sizes) * 20
    with Stream.of(
        get_train_dataset(
            folder, batch_size=1, shuffle_buffer_size=None, max_samples_per_sequence=None, lanes=4, worker_config=ONE
        )
    ) as stream:
        before = decoded_groups().decoded
        found = [int(next(stream)["n"][0]) for _ in range(total)]
        decoded = decoded_groups().decoded - before
    assert sorted(found) == sorted(n + f * 1000 for f, size in enumerate(sizes) for n in range(size * 20))
    assert decoded == 80
    switches = 0
    for lane in range(4):
        groups = [(n // 1000, n % 1000 // sizes[n // 1000]) for n in found[lane::4]]
        switches += 1 + sum(one != other for one, other in itertools.pairwise(groups))
    assert switches <= 80 + 3, "a lane stays in a row group until it has all of it"


def test_at_least_so_many_samples(tmp_path: Path) -> None:
    """`max_samples_per_sequence` puts small row groups together; a subset cuts the first and the last."""
    rows = TableRows(ParquetFiles(write_numbers(tmp_path / "x.parquet", 100, row_group_size=10)))
    source = selected(rows)
    assert source.block_starts(1).tolist() == list(range(0, 101, 10))
    assert source.block_starts(25).tolist() == [0, 30, 60, 90, 100]
    assert selected(rows, 5, 42).block_starts(1).tolist() == [0, 5, 15, 25, 35, 37]
    assert source.run_samples == 10


def test_a_blend_with_tars(tmp_path: Path, text_dataset: Any) -> None:
    write_numbers(tmp_path / "rows.parquet", 50, row_group_size=5)
    yaml = write_v2(
        tmp_path,
        train={"blend": [{"weight": 1, "path": "rows.parquet"}, {"weight": 1, "path": str(text_dataset(50))}]},
    )
    dataset = get_train_dataset(
        yaml, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None, worker_config=ONE
    )
    with Stream.of(dataset) as stream:
        rows = [sample["n"] for sample in (next(stream) for _ in range(200)) if isinstance(sample, dict)]
    assert set(map(int, rows)) == set(range(50))


def test_decoded_row_groups_leave_memory_for_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_numbers(tmp_path / "data", 4000, files=2, row_group_size=100)
    files = ParquetFiles(folder)
    kept = DecodedGroups(limit_bytes=5000, folder=str(tmp_path / "decoded"))

    def read(number: int) -> Any:
        return lambda: files.read(number, ("n",))

    tables = {number: kept.get((files, number), read(number)) for number in range(40)}
    assert kept.decoded == 40
    for number in random.Random(0).choices(range(40), k=100):
        assert kept.get((files, number), lambda: pytest.fail("decoded again")).table == tables[number].table
    assert list((tmp_path / "decoded").iterdir()) == [], "the files have no names, so that they end with the process"
    make, table = tempfile.mkstemp, tables[0].table

    def slow(*args: Any, **options: Any) -> Any:
        """A disk so slow that a row group is decoded again while it is moved there."""
        monkeypatch.undo()
        kept.get((files, 50), lambda: table)
        return make(*args, **options)

    kept = DecodedGroups(limit_bytes=1, folder=str(tmp_path / "decoded"))
    kept.get((files, 50), lambda: table)
    monkeypatch.setattr(tempfile, "mkstemp", slow)
    for number in range(51, 55):
        kept.get((files, number), lambda: table)
    assert kept._disk.size_bytes == sum(group.size_bytes for group in kept._disk.groups.values())
    small = DecodedGroups(limit_bytes=5000, folder=str(tmp_path / "x.parquet" / "no folder"))
    (tmp_path / "x.parquet").write_text("")
    for _ in range(2):
        for number in range(40):
            small.get((files, number), read(number))
    assert small.decoded == 80
    with pytest.raises(ZeroDivisionError):
        kept.get((files, 99), lambda: 1 // 0)


def test_dear_orders_are_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_numbers(tmp_path / "data", 4000, files=2, row_group_size=100)
    monkeypatch.setattr(decoded_groups(), "limit_bytes", 10_000)
    trained(folder, 1)
    assert "this order has 4 row groups of" not in caplog.text
    trained(folder, 1, lanes=48)
    assert "data: this order has 40 row groups of 0.00" in caplog.text
    assert "go to a cache on disk" in caplog.text
    assert "`row_group_size`" in caplog.text
    caplog.clear()
    in_order(folder)
    assert not caplog.text


def test_columns_of_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {
        "n": np.arange(100),
        "score": pa.array([None if number % 7 == 0 else number / 2 for number in range(100)]),
        "odd": pa.array([number % 2 == 1 for number in range(100)]),
        "said": pa.array([None if number % 7 == 0 else number % 2 == 1 for number in range(100)]),
        "text": ["x"] * 100,
    }
    folder = write_parquet(tmp_path / "data", columns, files=3, row_group_size=9)
    source = selected(TableRows(ParquetFiles(folder), parts={"text"}), 10, 90)
    assert source.columns == ("bytes", "n", "score", "odd", "said")
    expected = {
        "n": np.arange(10, 90),
        "score": np.array([np.nan if number % 7 == 0 else number / 2 for number in range(10, 90)]),
        "odd": np.arange(10, 90) % 2 == 1,
        "said": np.array([np.nan if number % 7 == 0 else number % 2 for number in range(10, 90)]),
    }
    picked = np.random.default_rng(0).integers(0, 80, 50)
    for _ in range(2):
        for name, numbers in expected.items():
            assert np.array_equal(source.column(name, picked), numbers[picked], equal_nan=True)
            assert np.array_equal(source.column(name, slice(None)), numbers, equal_nan=True)
        monkeypatch.setattr(ParquetFiles, "read", lambda *_: pytest.fail("the column is kept"))
    assert np.array_equal(source.column("bytes", slice(None)), source.sizes(np.arange(80)))
    assert source.column_id("n") != source.column_id("odd")
    for ask in (source.column_id, lambda name: source.column(name, slice(None))):
        with pytest.raises(
            KeyNotFoundError, match="no numeric column 'text'; the columns are bytes, n, score, odd, said"
        ):
            ask("text")


# Object stores.


@pytest.mark.parametrize(("hosts", "cache_bytes"), [(1, None), (8, 0)])
def test_bytes_of_an_epoch(tmp_path: Path, bucket: Bucket, hosts: int, cache_bytes: int | None) -> None:
    """Each host has a cache of its own; together they fetch the files once, and little more."""
    rng = np.random.default_rng(0)
    columns = {"n": np.arange(2880), "data": [rng.bytes(10_000) for _ in range(2880)], "more": [rng.bytes(100)] * 2880}
    folder = write_parquet(tmp_path / "data", columns, files=3, row_group_size=30, compression="none")
    url = bucket.upload(folder, "data")
    size = sum(path.stat().st_size for path in folder.iterdir())
    every = {
        "max_samples_per_sequence": 30,
        "repeat": False,
        "batch_size": 24,
        "lanes": 8,
        "part_filter": {"n", "data"},
    }
    found: list[int] = []
    fetched = 0
    for rank in range(hosts):
        use_storage(StorageSettings(cache_dir=str(tmp_path / f"cache-{rank}"), cache_bytes=cache_bytes))
        config = WorkerConfig(rank=rank, world_size=hosts, num_workers=0)
        bucket.server.reset()
        found += sum(trained(url, 2880 // 24 // hosts, config=config, **every), [])
        fetched += sum(request.sent_bytes for request in bucket.server.requests())
    assert sorted(found) == list(range(2880))
    assert fetched <= 1.15 * size


def test_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    folder = write_numbers(tmp_path / "data", 120, files=3, row_group_size=6)
    url = bucket.upload(folder, "data")
    here = trained(write_v2(tmp_path, train={"path": "data", "name": "same"}), 30, max_samples_per_sequence=1)
    for name in (url, f"{url}/*.parquet", f"{url}/train-{{00000..00002}}.parquet", f"{bucket.url}/**/train-*.parquet"):
        assert trained(write_v2(tmp_path, train={"path": name, "name": "same"}), 30, max_samples_per_sequence=1) == here
    assert len(in_order(f"{url}/train-00001.parquet")) == 40
    bucket.server.reset()
    selected(TableRows(ParquetFiles(url)))
    assert {request.method for request in bucket.server.requests()} == {"GET"}
    assert len(bucket.server.requests()) == 1, "one list says that nothing changed"
    use_storage(StorageSettings(cache_bytes=0))
    source = selected(TableRows(ParquetFiles(url)))
    bucket.put("data/train-00001.parquet", (folder / "train-00000.parquet").read_bytes())
    with pytest.raises((StaleIndexError, ReadError), match="was replaced"):
        source.read(np.array([50]))
    assert len(selected(TableRows(ParquetFiles(url)))) == 120
    for wrong in (f"{url}/none.parquet", f"{url}/none-*.parquet"):
        with pytest.raises(EnergonGrainError, match="none"):
            in_order(wrong)


# Damaged files.


@dataclass
class Damage:
    """Ways to damage a file."""

    data: bytes

    def each(self, count: int, seed: int) -> Iterator[bytes]:
        rng = random.Random(seed)
        footer = int.from_bytes(self.data[-8:-4], "little") + 8
        for number in range(count):
            data = bytearray(self.data)
            kind = number % 5
            low = len(data) - footer if kind in (0, 1) else 0
            if kind == 4:
                cut = rng.randrange(len(data))
                yield bytes(data[:cut]) + (self.data[-footer:] if rng.random() < 0.5 else b"")
                continue
            for _ in range(rng.choice([1, 1, 2, 8])):
                at = rng.randrange(low, len(data))
                data[at] = rng.choice([0, 255, data[at] ^ 1 << rng.randrange(8), rng.randrange(256)])
            yield bytes(data)


def what_is_wrong(path: Path) -> str | None:
    """What the error says, None where there is none; raises what is no error of ours."""
    try:
        in_order(path, task_encoder=Raw())
        source = selected(TableRows(ParquetFiles(path)))
        for name in source.columns:
            source.column(name, slice(None))
    except EnergonGrainError as error:
        return str(error)
    return None


def test_damaged_files_are_named(tmp_path: Path) -> None:
    columns = {
        "n": np.arange(50),
        "text": [f"text {number}" for number in range(50)],
        "lists": pa.array([[1] * (number % 3) for number in range(50)]),
        "picture": pa.array(files([picture(number) for number in range(50)]), FILE),
        "inner": pa.array([{"a": [number]} for number in range(50)]),
    }
    said = features(picture={"_type": "Image"})
    whole = write_parquet(tmp_path / "whole.parquet", columns, metadata=said, row_group_size=20)
    path = tmp_path / "damaged.parquet"
    said_of: list[str | None] = []
    for data in Damage(whole.read_bytes()).each(150, seed=1):
        path.write_bytes(data)
        said_of.append(what_is_wrong(path))
    found = [each for each in said_of if each is not None]
    assert len(found) > 50
    assert [each for each in found if path.name not in each] == []
    for data, message in (
        (b"", "0 bytes"),
        (b"PAR1" + bytes(20), "ends in"),
        (b"PAR1" + bytes(4) + b"\xff\xff\xff\x7fPAR1", "declares a footer"),
        (b"PARE" + bytes(20) + b"PARE", "encrypted"),
    ):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=message):
            selected(TableRows(ParquetFiles(path)))
    assert pq.read_metadata(whole).num_rows == 50


def test_where_after_numbers_were_written_anew(tmp_path: Path) -> None:
    """In a file of the same size and the same footer."""
    path = tmp_path / "x.parquet"
    kinds = {"compression": "none", "write_statistics": False, "use_dictionary": False}
    for _ in range(2):
        good = [1, 0, 0] if not path.exists() else [0, 0, 1]
        write_parquet(path, {"n": range(3), "good": good}, **kinds)
        assert [row["n"] for row in in_order(path, where="good == 1")] == [good.index(1)]


def test_where_over_truth_values_with_nulls(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", {"n": range(4), "good": [True, None, False, True]}, row_group_size=3)
    assert [row["n"] for row in in_order(path, where="good")] == [0, 3]
    assert [row["n"] for row in in_order(path, where="good == 0")] == [2]


def test_commands(tmp_path: Path) -> None:
    folder = write_numbers(tmp_path / "data", 60, files=2, row_group_size=7)
    done = run("info", folder)
    assert done.exit_code == 0, done.output
    assert "60 samples in 2 files" in done.output
    assert "10 row groups" in done.output
    assert "  n     int64" in done.output
    assert json.loads(run("info", folder, "--json").output)["columns"] == {"n": "int64", "text": "string"}
    assert "a Parquet file has no splits" in str(run("info", folder, "--split-config", "s").exception)
    done = run("which", folder, "--step", "0", "--batch-size", "2", "--validation")
    assert "train-00000/1" in done.output, done.output
    assert "read directly" in str(run("prepare", folder).exception)
    assert run("lint", folder).output == "No problems in 60 samples and 2 shards.\n"
    assert "nothing to plot" in str(run("info", folder, "--plot", tmp_path / "sizes.png").exception)
    for name, said in (("no{1/x.parquet", "Unbalanced braces"), ("no{0..9999999}.parquet", "10,000,000 names")):
        wrong = run("info", tmp_path / name).exception
        assert isinstance(wrong, ConfigError)
        assert said in str(wrong)


def test_lint_reads_and_decodes_all_rows(tmp_path: Path) -> None:
    pictures = [picture(number) if number not in (5, 17) else b"broken" for number in range(40)]
    columns = {"picture": pa.array(files(pictures), FILE), "n": np.arange(40)}
    said = features(picture={"_type": "Image"})
    folder = write_parquet(tmp_path / "data", columns, files=2, row_group_size=8, metadata=said)
    found = json.loads(run("lint", folder, "--json").output)
    assert [each["where"] for each in found] == [f"train-00000.parquet: row {row}" for row in (5, 17)]
    assert all("'picture" in each["what"] for each in found)
    first = folder / "train-00000.parquet"
    place = pq.read_metadata(first).row_group(1).column(0).data_page_offset
    data = first.read_bytes()
    first.write_bytes(data[:place] + bytes(9) + data[place + 9 :])
    _, group, _ = json.loads(run("lint", folder, "--json").output)
    assert "row group 1" in group["what"]
