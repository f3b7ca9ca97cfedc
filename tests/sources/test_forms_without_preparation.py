"""Arrow files, MDS shards and indexed datasets of Megatron: what is read of them; splits by a ratio; joins; by key.

What is common with Parquet `test_parquet` looks at.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import form_fuzzing
import numpy as np
import pyarrow as pa
import pytest
from cli_runs import run
from metadatasets import write_v2
from object_server import Bucket
from parquet_files import FILE, features, files, picture, write_numbers, write_parquet
from table_forms import holes_in_heads, write_arrow, write_feather, write_mds, write_tokens

from energon_grain import (
    CrudeSample,
    DefaultTaskEncoder,
    SampleDecoder,
    StorageSettings,
    Stream,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    use_storage,
)
from energon_grain.cooking.aux_stores import open_aux, open_primary
from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    DuplicateKeyError,
    EmptyDatasetError,
    EnergonGrainError,
    FormatError,
    KeyNotFoundError,
    ReadError,
    SplitError,
    StaleIndexError,
)
from energon_grain.kinds.tables.arrow_files import ArrowFiles
from energon_grain.kinds.tables.mds_files import MdsFiles
from energon_grain.kinds.tables.mds_hashes import _log_unknown
from energon_grain.kinds.tables.parquet import ParquetFiles
from energon_grain.kinds.tables.source import TableRows
from energon_grain.kinds.tokens.source import TokenRows
from energon_grain.prepare import prepare_dataset
from energon_grain.sources.rows import selected
from energon_grain.testing import make_text_dataset, write_tars

ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)
FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Rgb(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="rgb8")


def in_order(path: Any, **options: Any) -> list[Any]:
    """The samples in the order of the files."""
    options = {"task_encoder": Rgb(), "worker_config": ONE, **options}
    with Stream.of(get_val_dataset(path, batch_size=None, **options)) as stream:
        return list(stream)


def trained(path: Any, steps: int, **options: Any) -> list[list[int]]:
    given = {"batch_size": 4, "shuffle_buffer_size": None, "max_samples_per_sequence": None, "lanes": 4, **options}
    with Stream.of(get_train_dataset(path, worker_config=ONE, **given)) as stream:
        return [next(stream)["n"].tolist() for _ in range(steps)]


def parts(sample: CrudeSample) -> dict[str, Any]:
    found = {name: value for name, value in sample.items() if not name.startswith("__")}
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in found.items()}


# Arrow.


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("write", [write_arrow, write_feather])
def test_arrow_files(tmp_path: Path, write: Any, compression: str | None) -> None:
    """As Parquet with the same rows: the stream format, the file format, compressed or mapped."""
    columns = {
        "n": pa.array(range(50)),
        "text": pa.array([f"text {number}" if number % 7 else None for number in range(50)]),
        "lists": pa.array([[1.5] * (number % 4) for number in range(50)]),
        "kind": pa.array(["a", "b"] * 25).dictionary_encode(),
        "inner": pa.array([{"a": [number]} for number in range(50)]),
        "picture": pa.array([picture(number) for number in range(50)]),
    }
    path = write(tmp_path / "x.arrow", columns, compression=compression)
    other = write_parquet(tmp_path / "x.parquet", columns, row_group_size=7)
    assert [parts(each) for each in in_order(path)] == [parts(each) for each in in_order(other)]
    assert [parts(each) for each in in_order(path, part_filter={"n"})] == [{"n": number} for number in range(50)]
    assert [each["n"] for each in in_order(path, where="n % 10 == 3")] == [3, 13, 23, 33, 43]
    assert ArrowFiles(path).is_mapped is (compression is None)
    source = pickle.loads(pickle.dumps(selected(TableRows(ArrowFiles(path)), 10, 40)))
    assert source.block_starts(1).tolist() == [0, 4, 11, 18, 25, 30]
    assert source.place_of(1) == "x.arrow: row 11"
    order = sum(trained(path, 12, repeat=False, part_filter={"n"}), [])
    assert len({*order}) == 48
    neighbours = sum(abs(a // 7 - b // 7) == 0 for a, b in zip(order, order[4:], strict=False))
    assert neighbours < 20 if compression is None else neighbours > 20, "mapped: every row by itself; else by batches"


def test_a_folder_that_datasets_saved(tmp_path: Path) -> None:
    """With the features that its schema says; caches of it are left out, and one of splits is refused with the way."""
    said = features(image={"_type": "Image"}, label={"_type": "ClassLabel", "names": ["a", "b"]})
    for number in range(2):
        rows = range(number * 10, number * 10 + 10)
        images = pa.array(files([picture(row) for row in rows]), FILE)
        columns = {"image": images, "label": pa.array([row % 2 for row in rows])}
        write_arrow(tmp_path / "set" / "train" / f"data-{number:05d}-of-00002.arrow", columns, metadata=said)
    write_arrow(tmp_path / "set" / "train" / "cache-1234.arrow", {"n": [1]})
    (tmp_path / "set" / "train" / "state.json").write_text("{}")
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    samples = in_order(tmp_path / "set" / "train")
    assert [int(each["image"][0, 0, 0]) for each in samples] == list(range(20))
    assert [int(each["label"]) for each in samples] == [0, 1] * 10
    assert samples[11]["__key__"] == "data-00001-of-00002/1"
    with pytest.raises(ConfigError, match=r"splits of a Hugging Face `DatasetDict`.*set/train"):
        in_order(tmp_path / "set")
    write_numbers(tmp_path / "set" / "train" / "x.parquet", 3)
    with pytest.raises(
        ConfigError, match=r"contains Parquet files and Arrow files.*\*\*/\*\.parquet or .*\*\*/\*\.arrow"
    ):
        in_order(tmp_path / "set" / "train")
    assert len(in_order(tmp_path / "set" / "train" / "*.arrow")) == 21, "a pattern means what it says"


def save_to_disk(folder: Path, rows: Sequence[int], shards: int, *, name: str = "data") -> None:
    """A dataset as `datasets` saves it: its files, with those of an earlier one left there, and their names."""
    names = [f"{name}-{shard:05d}-of-{shards:05d}.arrow" for shard in range(shards)]
    for shard, file in enumerate(names):
        write_arrow(folder / file, {"n": pa.array(rows[shard::shards], pa.int64())})
    said = {"_data_files": [{"filename": file} for file in names], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(said, indent=2))


@pytest.mark.parametrize("seed", range(20))
def test_the_files_that_a_saved_dataset_names(tmp_path: Path, seed: int) -> None:
    """As `load_from_disk`: those, in that order, whatever was saved there before or is a cache."""
    rng = np.random.default_rng(seed)
    for _ in range(rng.integers(1, 4)):
        rows = rng.integers(0, 1000, rng.integers(5, 30)).tolist()
        save_to_disk(tmp_path, rows, int(rng.integers(1, 5)), name=str(rng.choice(["data", "part", "_a"])))
    write_arrow(tmp_path / str(rng.choice(["cache-1.arrow", "mapped.arrow", "more/x.arrow"])), {"n": [-1]})
    state = json.loads((tmp_path / "state.json").read_text())
    rng.shuffle(state["_data_files"])
    (tmp_path / "state.json").write_text(json.dumps(state))
    write_arrow(tmp_path / "train-0.arrow", {"n": [-1]})
    named = [tmp_path / each["filename"] for each in state["_data_files"]]
    expected = pa.concat_tables([pa.ipc.open_stream(path.read_bytes()).read_all() for path in named])
    assert [int(each["n"]) for each in in_order(tmp_path)] == expected["n"].to_pylist()


def test_saved_datasets_below_a_folder_and_in_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    for name in ("a", "b"):
        save_to_disk(tmp_path / "set" / name, range(6), 3)
        save_to_disk(tmp_path / "set" / name, range(4), 2)
    write_arrow(tmp_path / "set" / "c.arrow", {"n": [9]})
    url, rows = bucket.upload(tmp_path / "set", "set"), [0, 2, 1, 3]
    for root in (str(tmp_path / "set"), url):
        assert [int(each["n"]) for each in in_order(f"{root}/b")] == rows
        assert [int(each["n"]) for each in in_order(root)] == [*rows, *rows, 9]


def test_what_is_wrong_with_saved_datasets(tmp_path: Path, bucket: Bucket) -> None:
    save_to_disk(tmp_path / "set", range(6), 2)
    good = (tmp_path / "set" / "state.json").read_text()
    for named in ("../x.arrow", "/etc/x.arrow", "a/../../x.arrow", "a//x.arrow", "a\\\\x.arrow", "", ".."):
        (tmp_path / "set" / "state.json").write_text(good.replace("data-00001-of-00002.arrow", named))
        with pytest.raises(FormatError, match=r"set/state\.json: .*filename"):
            in_order(tmp_path / "set")
    (tmp_path / "set" / "state.json").write_text(good[:-9])
    with pytest.raises(FormatError, match=r"set/state\.json: .*is damaged"):
        in_order(tmp_path / "set")
    (tmp_path / "set" / "state.json").write_text(good)
    (tmp_path / "set" / "data-00001-of-00002.arrow").unlink()
    for root in (tmp_path / "set", bucket.upload(tmp_path / "set", "set")):
        with pytest.raises(DatasetNotFoundError, match=r"00001-of-00002\.arrow: no such file, but .*state"):
            in_order(root)
    (tmp_path / "set" / "state.json").write_text('{"epoch": 3}')
    assert len(in_order(tmp_path / "set")) == 3, "one of a program of the user's own"
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["one", "two"]}')
    with pytest.raises(ConfigError, match=rf"pass one of them: {tmp_path}/one or {tmp_path}/two"):
        in_order(tmp_path)


def test_an_arrow_file_that_changes(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "x.arrow", {"n": list(range(50))})
    source, again = selected(TableRows(ArrowFiles(path))), selected(TableRows(ArrowFiles(path)))
    assert source.read(np.array([49])).columns["n"] == [49]
    replaced = write_arrow(tmp_path / "new" / "x.arrow", {"n": list(range(50, 0, -1))})
    os.utime(replaced, ns=(1, 1))
    os.replace(replaced, path)
    with pytest.raises((StaleIndexError, ReadError), match=r"x\.arrow: (was )?changed"):
        again.read(np.array([0]))
    source = selected(TableRows(ArrowFiles(path)))
    assert source.read(np.array([0])).columns["n"] == [50]
    write_arrow(path, {"n": list(range(50))})  # into the file that is mapped
    with pytest.raises(StaleIndexError, match=r"x\.arrow: changed after"):
        source.read(np.array([49]))


def test_numbers_of_groups(tmp_path: Path) -> None:
    """`info` says how many there are in English."""
    several = write_arrow(tmp_path / "several.arrow", {"n": list(range(40))}, compression="zstd")
    assert "  6 record batches, 43 B on average" in run("info", several).output
    one = write_arrow(tmp_path / "one.arrow", {"n": [1]}, compression="zstd")
    assert "  1 record batch, 25 B on average" in run("info", one).output
    runs = write_mds(tmp_path / "mds", {"n": list(range(40))}, shards=2)
    assert "  2 runs of samples, 160 B on average" in run("info", runs).output


def test_nothing_is_read_of_no_samples(tmp_path: Path) -> None:
    write_numbers(tmp_path / "x.parquet", 10)
    for each in (ParquetFiles(tmp_path / "x.parquet"), ArrowFiles(write_arrow(tmp_path / "x.arrow", {"n": [1]}))):
        batch = selected(TableRows(each)).read(np.zeros(0, np.int64))
        assert (batch.keys, batch.shards, dict(batch.columns)) == ([], [], {})


def outcomes(path: Path, forms: Iterable[bytes]) -> Counter[str]:
    """How files at a path end that are damaged: "the same rows", "other rows", or the error, which names the file."""
    good, found = [parts(each) for each in in_order(path)], Counter[str]()
    for data in forms:
        path.unlink()  # it may be mapped
        path.write_bytes(data)
        try:
            found["the same rows" if [parts(each) for each in in_order(path)] == good else "other rows"] += 1
        except EnergonGrainError as error:
            found[type(error).__name__ if str(path) in str(error) else f"names no file: {error}"] += 1
    return found


TWENTY = {
    "n": [None if number % 3 else number for number in range(20)],
    "text": [f"text {number}" if number % 5 else None for number in range(20)],
    "kind": pa.array(["a", "b", None, "a"] * 5).dictionary_encode(),
    "other": pa.array(["c", "d", "e", "c"] * 5).dictionary_encode(),
    "inner": pa.array([{"a": [number]} if number % 4 else None for number in range(20)]),
}


def test_an_arrow_file_that_was_cut(tmp_path: Path) -> None:
    """A file of the file format is whole, or an error: at every length."""
    path = write_feather(tmp_path / "x.arrow", {"n": list(range(20))})
    data = path.read_bytes()
    assert outcomes(path, (data[:size] for size in range(len(data)))) == {"FormatError": len(data)}


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_an_arrow_file_with_a_hole(tmp_path: Path, compression: str | None) -> None:
    """Zeros over any 8 bytes that are no values: no rows are lost, and none are others."""
    path = write_feather(tmp_path / "x.arrow", TWENTY, compression=compression)
    found = outcomes(path, holes_in_heads(path))
    assert {*found} == {"FormatError", "the same rows"}
    assert found["the same rows"] < 0.1 * found["FormatError"], "padding, and counts of nulls that are bits, too"


def test_a_hole_in_one_of_two_dictionaries(tmp_path: Path) -> None:
    """One whose number becomes that of the other would replace it, where that is read alone."""
    path = write_feather(tmp_path / "x.arrow", {name: TWENTY[name] for name in ("kind", "other")})
    good, wrong = [parts(each) for each in in_order(path, part_filter={"kind"})], 0
    for data in holes_in_heads(path):
        path.unlink()
        path.write_bytes(data)
        with contextlib.suppress(EnergonGrainError):
            wrong += [parts(each) for each in in_order(path, part_filter={"kind"})] != good
    assert wrong == 0


def test_an_arrow_stream_with_a_hole(tmp_path: Path) -> None:
    """It has no footer: of its schema there is no second copy, but no row is lost."""
    path = write_arrow(tmp_path / "x.arrow", {"n": list(range(20)), "text": ["x"] * 20})
    data = path.read_bytes()
    batches = [place for place in range(0, len(data), 8) if data[place : place + 4] == b"\xff" * 4][1:]
    holes = [data[:place] + bytes(8) + data[place + 8 :] for place in batches]
    assert outcomes(path, holes) == {"FormatError": 4}, "the heads of three batches, and the mark of the end"
    cut = [data[: place + more] for place in batches for more in range(1, 8)]
    assert outcomes(write_arrow(path, {"n": list(range(20)), "text": ["x"] * 20}), cut) == {"FormatError": 28}


def test_arrow_files_in_a_bucket_that_were_cut(tmp_path: Path, bucket: Bucket) -> None:
    path = write_feather(tmp_path / "cut" / "x.arrow", {"n": list(range(20))})
    path.write_bytes(path.read_bytes()[:-600])
    with pytest.raises(FormatError, match=r"x\.arrow: begins as an Arrow file, but does not end in a footer"):
        in_order(bucket.upload(path.parent, "cut"))


def test_a_dictionary_that_grows(tmp_path: Path) -> None:
    """Batches of a file may add values to a dictionary."""
    schema = pa.schema({"kind": pa.dictionary(pa.int32(), pa.string())})
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file, pa.ipc.new_file(file, schema, options=options) as writer:
        for values in (["a"], ["a", "b"], ["a", "b", "c"]):
            indices = pa.array([0, len(values) - 1], pa.int32())
            writer.write_batch(pa.record_batch([pa.DictionaryArray.from_arrays(indices, values)], schema=schema))
    assert [each["kind"] for each in in_order(tmp_path / "x.arrow")] == ["a", "a", "a", "b", "a", "c"]


def test_errors_of_memory_and_of_the_system_are_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they come from: reading, decompressing, decoding a column."""
    path = write_arrow(tmp_path / "x.arrow", {"n": [1], "text": ["a"]})
    memory, full = pa.ArrowMemoryError("malloc of size 9 failed"), OSError(errno.EMFILE, "Too many open files")
    reading, column = "arrow_files.ArrowFiles._table", "arrow_columns.ColumnKind.array"
    for place, error, message in (
        (reading, memory, r".*not enough memory to decode it \(malloc of size 9 failed\)"),
        (reading, OSError(errno.ENOMEM, "Cannot allocate memory"), ".*not enough memory to decode it"),
        (reading, full, ".*cannot be read: .*Too many open files"),
        (column, memory, "column 'n': .*not enough memory"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"energon_grain.kinds.tables.{place}", Mock(side_effect=error))
            with pytest.raises(ReadError, match=rf"x\.arrow: record batch 0: {message}") as caught:
                in_order(path)
        assert "damaged" not in str(caught.value)


def test_no_error_of_pyarrow_comes_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    indices = pa.array([0, 1, 77], pa.int32())
    kind = pa.DictionaryArray.from_arrays(indices, ["a", "b"], safe=False)
    with pytest.raises(FormatError, match=r"x\.arrow: record batch 0: .*out of bounds: 77"):
        in_order(write_arrow(tmp_path / "x.arrow", {"kind": kind}))
    path = write_arrow(tmp_path / "y.arrow", {"n": [1]})
    for error in (pa.ArrowIndexError("tried to refer to element 77"), pa.ArrowKeyError("21"), KeyError(21)):
        monkeypatch.setattr("energon_grain.kinds.tables.arrow_columns.ColumnKind.array", Mock(side_effect=error))
        with pytest.raises(FormatError, match=r"y\.arrow: record batch 0: column 'n': .*(77|21)"):
            in_order(path)


def test_feather_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "x.feather").write_bytes(b"FEA1" + bytes(20))
    with pytest.raises(FormatError, match="Feather version 1"):
        in_order(tmp_path / "x.feather")


# MDS.


@pytest.mark.parametrize("kind", ["plain", "zstd"])
def test_mds_that_mosaic_wrote(kind: str) -> None:
    """By `MDSWriter` of mosaicml-streaming 0.13, with a column of each encoding."""
    samples = in_order(FIXTURES / "mosaic" / kind)
    assert [int(each["n"]) for each in samples] == list(range(12))
    last = samples[11]
    assert (last["x"], last["text"], last["raw"], last["j"], last["s"]) == (5.5, "t11", b"r", {"a": 11}, "11")
    assert (last["a"].dtype, last["a"].tolist()) == (np.uint16, list(range(12)))
    assert (last["b"].dtype, last["b"].tolist()) == (np.int32, [[11] * 3] * 2)
    assert (last["c"].dtype, last["c"].tolist()) == (np.float32, [[11.0] * 3] * 2)
    assert last["img"].shape == last["png"].shape == (2, 2, 3)
    assert int(last["png"][0, 0, 0]) == 11
    assert last["__key__"].startswith("shard.00001/")
    assert [int(each["n"]) for each in in_order(FIXTURES / "mosaic" / kind / "index.json", where="x > 4.5")] == [10, 11]


def test_mds_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that are not compressed are read in runs, wherever samples end."""
    monkeypatch.setattr("energon_grain.kinds.tables.mds_files._GROUP_BYTES", 100)
    columns = {"n": list(range(100)), "text": ["x" * (number % 50) for number in range(100)], "raw": [b"r"] * 100}
    path = write_mds(tmp_path / "set", columns, shards=3)
    assert [each["text"] for each in in_order(path)] == columns["text"]
    assert sorted(sum(trained(path, 25, repeat=False), [])) == list(range(100))
    assert "100 samples in 3 files" in run("info", path).output


def test_what_is_wrong_with_mds(tmp_path: Path) -> None:
    path = write_mds(tmp_path / "set", {"n": [1, 2], "text": ["a", "b"]}, shards=1)
    index = (path / "index.json").read_text()
    for old, new, message in (
        ("shard.00000.mds", "../shard.mds", "index.json: .*basename"),
        ("shard.00000.mds", "/etc/passwd", "index.json: .*basename"),
        ('"format": "mds"', '"format": "jsonl"', "index.json: .*format"),
        ('"compression": null', '"compression": "xz"', "index.json: .*compression"),
        ('"samples": 2', '"samples": 3', "index.json lists 3 samples"),
        ('["n", "text"]', '["n"]', "different numbers of column names"),
        ('"shards": [', '"shards": [], "old": [', "lists no shard"),
        ("{", "", "index.json"),
    ):
        (path / "index.json").write_text(index.replace(old, new, 1))
        with pytest.raises(FormatError, match=message):
            in_order(path)
    (path / "index.json").write_text(index)
    (path / "shard.00000.mds").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"shard\.00000\.mds"):
        in_order(path / "index.json")
    with pytest.raises(DatasetNotFoundError, match=r"none/index\.json"):
        in_order(tmp_path / "none" / "index.json")


ALGORITHMS = ("xxh32", "xxh64", "xxh128", "xxh3_64", "md5", "sha1", "sha256", "sha3_256", "blake2b", "blake2s")
TEXTS = {"n": list(range(30)), "text": [f"text number {number}" for number in range(30)]}


@pytest.mark.parametrize("compression", ["zstd", "zstd:9", "br", "br:3", "gz", "gz:1", "bz2", "bz2:9", "snappy"])
def test_mds_by_every_compression(tmp_path: Path, bucket: Bucket, compression: str) -> None:
    path = write_mds(tmp_path / "set", TEXTS, compression=compression, hashes=("xxh64",))
    for root in (path, path / "index.json", bucket.upload(path, "set")):
        samples = in_order(root)
        assert [each["text"] for each in samples] == TEXTS["text"]
    assert samples[0]["__key__"] == "shard.00000/0"


@pytest.mark.parametrize("compression", ["zstd", "br", "gz", "bz2", "snappy"])
def test_shards_that_decompress_to_something_else(tmp_path: Path, compression: str) -> None:
    """To fewer bytes than announced, to more (never many more in memory), to none."""
    path = write_mds(tmp_path / "set", TEXTS, compression=compression, shards=1)
    index, shard = path / "index.json", path / f"shard.00000.mds.{compression}"
    good, size = index.read_text(), json.loads(index.read_text())["shards"][0]["raw_data"]["bytes"]
    for announced in (size - 1, size + 1, size // 2):
        index.write_text(good.replace(f'"bytes": {size}', f'"bytes": {announced}', 1))
        with pytest.raises(FormatError, match=rf"shard\.00000\.mds\.{compression}: "):
            in_order(path)
    index.write_text(good)
    shard.write_bytes(shard.read_bytes()[:-7])
    with pytest.raises(FormatError, match=rf"shard\.00000\.mds\.{compression}: "):
        in_order(path)


@pytest.mark.parametrize("compression", [None, "zstd", "gz", "br"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_hashes_of_mds(tmp_path: Path, algorithm: str, compression: str | None) -> None:
    """A flipped bit anywhere is an error that names the shard."""
    path = write_mds(tmp_path / "set", TEXTS, shards=1, compression=compression, hashes=(algorithm,))
    assert len(in_order(path)) == 30
    (shard,) = path.glob("*.mds*")
    data = shard.read_bytes()
    for place in range(len(data) - 1, 0, -len(data) // 7):
        shard.write_bytes(data[:place] + bytes([data[place] ^ 2]) + data[place + 1 :])
        with pytest.raises(FormatError, match=r"shard\.00000\.mds"):
            in_order(path)
    index = (path / "index.json").read_text()
    (path / "index.json").write_text(index.replace(algorithm, "crc7"))
    shard.write_bytes(data)
    assert len(in_order(path)) == 30


def test_hashes_are_compared_once_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bucket: Bucket
) -> None:
    """And none identifies the data. In a store, a shard that is not compressed is not fetched for it."""
    monkeypatch.setattr("energon_grain.kinds.tables.mds_files._GROUP_BYTES", 100)
    path = write_mds(tmp_path / "set", TEXTS, shards=3, hashes=("xxh64",))
    (path / "index.json").write_text((path / "index.json").read_text().replace('"xxh64"', '"crc7": "0", "xxh64"'))
    calls: list[Any] = []
    monkeypatch.setattr("energon_grain.kinds.tables.mds_files.refuse_wrong_hash", lambda *given: calls.append(given))
    source = selected(TableRows(MdsFiles(path)))
    for index in (0, 29, 15, 1, 28, 14):
        source.read(np.array([index]))
    assert len(calls) == 3
    assert source.content_id == selected(TableRows(MdsFiles(write_mds(tmp_path / "plain", TEXTS, shards=3)))).content_id
    in_order(bucket.upload(path, "set"))
    assert len(calls) == 3
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _log_unknown.cache_clear()
    for _ in range(2):
        assert len(in_order(path)) == 30
    assert [record.getMessage() for record in caplog.records if "crc7" in record.getMessage()] == [
        "MDS: hash algorithm 'crc7' is not available in this Python; its hashes are not verified"
    ]


# Indexed datasets of Megatron.


def test_tokens_that_megatron_wrote() -> None:
    """By `IndexedDatasetBuilder` of megatron-core 0.16: documents of one sequence, and of three."""
    for name, sequences in (("one", 1), ("many", 3)):
        expected = [[i * 7 + k for j in range(sequences) for k in range(1 + (i + j) % 9)] for i in range(5)]
        for path in (name, f"{name}.bin", f"{name}.idx"):
            found = in_order(FIXTURES / "megatron" / path)
            assert [each["tokens"].tolist() for each in found] == expected
        assert found[0]["tokens"].dtype == np.uint16
        assert [each["__key__"] for each in found] == ["0", "1", "2", "3", "4"]


def test_tokens_are_a_column(tmp_path: Path) -> None:
    """How many a document has is known from the index."""
    documents = [list(range(number * 3 % 11)) for number in range(200)]
    path = write_tokens(tmp_path / "x", documents, dtype="<i4", sequence=4)
    source = selected(TokenRows(path))
    lengths = [len(each) for each in documents]
    assert source.column("tokens", slice(None)).tolist() == lengths
    assert source.column("tokens", np.array([7, 3])).tolist() == [lengths[7], lengths[3]]
    assert source.sizes(np.arange(200)).tolist() == [4 * length for length in lengths]
    assert [each["tokens"].tolist() for each in in_order(path, where="tokens > 7")] == [
        d for d in documents if len(d) > 7
    ]
    cut = selected(TokenRows(path), 10, 20)
    assert cut.content_id != source.content_id
    assert cut.read(np.array([3])).columns["tokens"][0].tolist() == documents[13]
    assert cut.place_of(3) == "x.bin: 13"
    with pytest.raises(KeyNotFoundError, match="the columns are bytes, tokens"):
        source.column("words", np.array([0]))
    assert "list of int32" in run("info", path).output
    assert "read directly" in str(run("prepare", tmp_path / "x.bin").exception) or run("prepare", path).exit_code


def test_what_is_wrong_with_tokens(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "x", [[1, 2], [3]])
    index, tokens = tmp_path / "x.idx", tmp_path / "x.bin"
    good = index.read_bytes()
    for data, message in (
        (b"", "no Megatron-LM index"),
        (good[:40], "it is damaged"),
        (b"X" + good[1:], "begins with"),
    ):
        index.write_bytes(data)
        with pytest.raises(FormatError, match=message):
            in_order(path)
    index.write_bytes(good)
    tokens.write_bytes(b"\0")
    with pytest.raises(FormatError, match=r"is not one contiguous range of x\.bin, which has 1 bytes"):
        in_order(path)
    tokens.unlink()
    with pytest.raises(Exception, match=r"x\.bin"):
        in_order(tmp_path / "x.idx")


def test_an_index_that_does_not_fit_into_memory(tmp_path: Path) -> None:
    """One that announces 2^40 documents, with as many zeros as that needs, where a program may use 4 GiB."""
    path = write_tokens(tmp_path / "x", [[1, 2], [3]])
    index = bytearray((tmp_path / "x.idx").read_bytes())
    index[26:34] = (2**40).to_bytes(8, "little")
    (tmp_path / "x.idx").write_bytes(index)
    with pytest.raises(FormatError, match=r"x\.idx: declares 1099511627776 documents"):
        TokenRows(path)
    os.truncate(tmp_path / "x.idx", len(index) + 8 * 2**40)
    program = (
        "import resource, sys; from energon_grain.kinds.tokens.source import TokenRows\n"
        "from energon_grain.errors import ReadError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "try: TokenRows(sys.argv[1])\n"
        "except ReadError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert re.match(r".*x\.idx: 8,796,[\d,]* bytes cannot be memory-mapped \(Cannot allocate memory\)", done.stdout)


def test_copies_of_tokens_whose_index_was_written_anew(tmp_path: Path) -> None:
    """Documents that are cut in another way would be other samples of the same numbers."""
    path = write_tokens(tmp_path / "x", [[1, 2], [3]])
    copied = pickle.dumps(selected(TokenRows(path)))
    assert pickle.loads(copied).read(np.array([0])).columns["tokens"][0].tolist() == [1, 2]
    other = write_tokens(tmp_path / "y", [[1], [2, 3]]).with_suffix(".idx")
    other.replace(tmp_path / "x.idx")
    with pytest.raises(StaleIndexError, match=r"x\.idx: changed after the parent process opened it"):
        pickle.loads(copied)


def test_in_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    """Every form as on this machine."""
    columns = {"n": list(range(40)), "text": [f"text {number}" for number in range(40)]}
    write_arrow(tmp_path / "arrow" / "a.arrow", columns)
    write_feather(tmp_path / "arrow" / "b.feather", columns)
    write_mds(tmp_path / "mds", columns)
    write_mds(tmp_path / "mds-zstd", columns, compression="zstd")
    write_tokens(tmp_path / "tokens" / "x", [range(number) for number in range(20)])
    for name, path in (("arrow", ""), ("mds", ""), ("mds-zstd", ""), ("tokens", "/x.bin")):
        url = bucket.upload(tmp_path / name, name)
        here = [parts(each) for each in in_order(f"{tmp_path}/{name}{path}")]
        assert [parts(each) for each in in_order(f"{url}{path}")] == here
        order = in_order(f"{url}{path}", subset=["20%", "60%"])
        assert len(order) == len(here) * 2 // 5


# Splits by a ratio.


@pytest.mark.parametrize("form", ["parquet", "arrow", "mds", "jsonl", "tokens"])
def test_split_parts_by_a_ratio(tmp_path: Path, form: str) -> None:
    """No sample is in two parts, none is lost, and they stay where they are when a file is added."""
    rows = {"n": list(range(95)), "text": ["x"] * 95}
    path = tmp_path / "set"
    if form == "parquet":
        write_numbers(path, 95, files=3, row_group_size=7)
    elif form == "arrow":
        for number in range(3):
            write_arrow(path / f"{number}.arrow", {"n": list(range(number * 30, min(95, number * 30 + 35)))[-30:]})
    elif form == "mds":
        write_mds(path, rows, shards=3)
    elif form == "jsonl":
        path = tmp_path / "x.jsonl"
        path.write_text("".join(f'{{"n": {number}}}\n' for number in range(95)))
    else:
        path = write_tokens(tmp_path / "x", [[number] for number in range(95)])
    ratio = {"split_ratio": "train:0.8,val:0.1,test:0.1"}

    def keys(part: str, **more: Any) -> list[str]:
        return [each["__key__"] for each in in_order(path, split_part=part, **ratio, **more)]

    every = [each["__key__"] for each in in_order(path)]
    found = [keys(part) for part in ("train", "val", "test")]
    assert sorted(sum(found, [])) == sorted(every)
    assert abs(len(found[1]) - len(every) / 10) <= 2
    assert keys("train", subset=["0%", "50%"]) + keys("train", subset=["50%", "100%"]) == found[0]
    with pytest.raises(SplitError, match="has no split part 'vall'"):
        keys("vall")
    if form == "parquet":
        assert keys("val", where="n % 2 == 0") == [
            each["__key__"] for each in in_order(path, split_part="val", **ratio) if each["n"] % 2 == 0
        ]
        assert len(trained(path, 20, split_part="train", **ratio)) == 20
        write_numbers(path / "more.parquet", 50)
        assert [key for key in keys("val") if not key.startswith("more/")] == found[1]


def test_a_split_part_without_samples(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"n": 0}\n')
    with pytest.raises(EmptyDatasetError, match=r"x\.jsonl: this split part gets none of the 1 samples"):
        in_order(tmp_path / "x.jsonl", split_part="val", split_ratio="train:0.9,val:0.1")


# Joins, and by key.


def join(folder: Path, *members: Any, **more: Any) -> Path:
    return write_v2(folder, train={"join": list(members), **more})


def test_joins_with_tables(tmp_path: Path) -> None:
    """By the keys of the samples, by a column, or by row; as primary or not; next to tars."""
    order = np.random.default_rng(0).permutation(60)
    write_numbers(tmp_path / "numbers.parquet", 60, row_group_size=7)
    captions = {"id": [f"{n:06d}" for n in order], "caption": [f"caption {n}" for n in order], "n": order.tolist()}
    write_arrow(tmp_path / "captions.arrow", captions)
    write_tokens(tmp_path / "ids", [[number] for number in range(60)])
    path = join(
        tmp_path,
        {"path": "captions.arrow", "keys": "n"},
        {"path": "numbers.parquet", "keys": "n"},
        {"path": "ids", "by": "row"},
    )
    samples = in_order(path, split_part="train")
    assert [each["text"] for each in samples] == [f"text {n}" for n in order]
    assert [each["caption"] for each in samples] == captions["caption"]
    assert [each["tokens"].tolist() for each in samples] == [[row] for row in range(60)]
    assert [source.shard_name for source in samples[0]["__sources__"]] == [
        "captions.arrow",
        "numbers.parquet",
        "ids.bin",
    ]
    only = in_order(path, split_part="train", where="n < 10 and ids.bin.tokens == 1")
    assert sorted(int(each["n"]) for each in only) == list(range(10))
    assert sorted(sum(trained(path, 15, repeat=False), [])) == list(range(60))


@pytest.mark.parametrize("column", ["id", "__key__"])
def test_a_join_of_keys_that_come_in_another_order(tmp_path: Path, column: str) -> None:
    """The file has the size and the footer that it had, but rows of the join are other ones."""
    ids = [f"{number:04d}" for number in range(10)]
    for name in ("a", "b"):
        write_parquet(tmp_path / f"{name}.parquet", {column: ids, name: [0] * 10})
    footer = ParquetFiles(tmp_path / "b.parquet").content_id
    named = {"keys": column} if column == "id" else {}
    path = join(tmp_path, {"path": "a.parquet", **named}, {"path": "b.parquet", **named})
    assert len(in_order(path, split_part="train")) == 10
    write_parquet(tmp_path / "b.parquet", {column: ids[::-1], "b": [0] * 10})
    assert ParquetFiles(tmp_path / "b.parquet").content_id == footer
    with pytest.raises(StaleIndexError, match=r"b\.parquet or the keys of its rows changed"):
        in_order(path, split_part="train")


def test_the_same_rows_in_another_order_are_other_content(tmp_path: Path) -> None:
    numbers = list(range(100))
    first = ArrowFiles(write_arrow(tmp_path / "x.arrow", {"n": numbers}, rows=50)).content_id
    assert ArrowFiles(write_arrow(tmp_path / "x.arrow", {"n": numbers[::-1]}, rows=50)).content_id != first
    assert ArrowFiles(write_arrow(tmp_path / "x.arrow", {"n": numbers}, rows=50)).content_id == first
    texts = ["a", "bb", "ccc", "dd"]
    of_mds = MdsFiles(write_mds(tmp_path / "m", {"text": texts}, shards=1)).content_id
    assert MdsFiles(write_mds(tmp_path / "m", {"text": texts}, shards=1)).content_id == of_mds
    assert MdsFiles(write_mds(tmp_path / "m", {"text": texts[::-1]}, shards=1)).content_id != of_mds


def test_joins_of_tars_with_tables(tmp_path: Path) -> None:
    samples = ({"__key__": f"{number:04d}", "txt": f"text {number}"} for number in range(30))
    write_tars(tmp_path / "tars", samples, shards=2)
    write_parquet(tmp_path / "x.parquet", {"id": [f"{n:04d}" for n in range(29, 9, -1)], "n": list(range(29, 9, -1))})
    path = join(tmp_path, {"path": "tars"}, {"path": "x.parquet", "keys": "id", "nonmatch": "skip"})
    samples = in_order(path, split_part="train")
    assert [(each["txt"], int(each["n"])) for each in samples] == [(f"text {n}", n) for n in range(10, 30)]
    (tmp_path / "x.jsonl").write_text("".join(f'{{"row": {number}}}\n' for number in range(30)))
    path = join(tmp_path, {"path": "tars"}, {"path": "x.jsonl", "by": "row"})
    assert [each["json"]["row"] for each in in_order(path, split_part="train")] == list(range(30))


@pytest.mark.parametrize("write", [write_parquet, write_arrow, write_feather])
@pytest.mark.parametrize(("hosts", "cache_bytes"), [(1, None), (1, 0), (8, 0)])
def test_bytes_that_are_fetched_of_a_store(
    tmp_path: Path, bucket: Bucket, hosts: int, cache_bytes: int | None, write: Any
) -> None:
    """Of an epoch the files once; of a condition its column and what meets it; of one column that. And little more.

    A host reads 4 KB of each record batch before anything else, here 8 hosts with 96 batches of 800 KB.
    """
    rng = np.random.default_rng(0)
    for number in range(3):
        rows = np.arange(320) + 320 * number
        columns = {"n": rows, "data": [rng.bytes(80_000) for _ in rows], "more": [rng.bytes(100)] * len(rows)}
        size = {"row_group_size": 10} if write is write_parquet else {"rows": 10}
        ending = "parquet" if write is write_parquet else "arrow"
        write(tmp_path / f"data/{number}.{ending}", columns, **size)
    url, every = bucket.upload(tmp_path / "data", "data"), {"max_samples_per_sequence": 10, "repeat": False}
    total = sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
    for options, count, most in [
        ({"part_filter": {"n", "data"}}, 960, 1.15),
        ({"where": "n < 480"}, 480, 0.7),
        ({"part_filter": {"n"}}, 960, 0.15 if cache_bytes == 0 else 1.0),
    ]:
        found, fetched = list[int](), 0
        for rank in range(hosts):
            cache = str(tmp_path / f"cache-{[*options.values()]}-{rank}")
            use_storage(StorageSettings(cache_dir=cache, cache_bytes=cache_bytes))
            bucket.server.reset()
            config = WorkerConfig(rank=rank, world_size=hosts, num_workers=0)
            given = {"worker_config": config, "batch_size": 4, "lanes": 8, **every, **options}
            with Stream.of(get_train_dataset(url, shuffle_buffer_size=None, **given)) as stream:
                found += [n for batch in stream for n in batch["n"].tolist()]
            fetched += sum(request.sent_bytes for request in bucket.server.requests())
        assert sorted(found) == list(range(count))
        assert fetched <= most * total, (options, fetched / total)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("blank", [False, True])
def test_columns_of_arrow_files_are_read_alone(
    tmp_path: Path, bucket: Bucket, compression: str | None, blank: bool
) -> None:
    """What is put together of a few columns has the values that all have, with nulls and views in lists too."""
    kinds = {
        "null": pa.array([None] * 20, pa.null()),
        "flag": pa.array([n % 3 == 0 for n in range(20)]),
        "text": pa.array(["ä" * n for n in range(20)]),
        "big": pa.array([b"b" * n for n in range(20)], pa.large_binary()),
        "view": pa.array([f"a long text of a view {n}" for n in range(20)], pa.string_view()),
        "fixed": pa.array([[n, None] for n in range(20)], pa.list_(pa.int16(), 2)),
        "inner": pa.array([{"a": [n], "b": {"c": n}} for n in range(20)]),
        "map": pa.array([[("k", n)] for n in range(20)], pa.map_(pa.string(), pa.int8())),
        "kind": pa.array(["a", "b"] * 10).dictionary_encode(),
        "n": pa.array(range(20)),
    }
    if blank:
        kinds["nulls"] = pa.array([[None]] * 20, pa.list_(pa.null()))
        kinds["views"] = pa.array([["a long text of a view"]] * 20, pa.list_(pa.string_view()))
    write_arrow(tmp_path / "data/x.arrow", kinds, rows=7, compression=compression)
    url = bucket.upload(tmp_path / "data", "data")
    files = ArrowFiles(f"{url}/x.arrow")
    whole = pa.table(kinds)
    for names in ([name] for name in kinds):
        found = pa.concat_tables([files.read(group, names) for group in range(3)])
        assert found.to_pydict() == whole.select(names).to_pydict()
    assert files.read(1, ["view", "n", "flag"]).to_pydict() == whole.select(["flag", "view", "n"])[7:14].to_pydict()
    ends = [files.spans(np.array([1]), [name])[1:3] for name in ("text", "big", "inner", "n")]
    assert len({(int(start[0]), int(size[0])) for start, size in ends}) == 4


@pytest.mark.parametrize("starts", [(0, 8, 4), (0, 8, 8), (4, 4, 8)])
def test_documents_in_pieces_are_refused(tmp_path: Path, starts: tuple[int, ...]) -> None:
    """What lies between two sequences of a document would be read as a part of it."""
    path = write_tokens(tmp_path / "ids", [[1, 2, 3, 4, 5, 6]], sequence=2)
    assert selected(TokenRows(path)).read(np.array([0])).columns["tokens"][0].tolist() == [1, 2, 3, 4, 5, 6]
    index = bytearray((tmp_path / "ids.idx").read_bytes())
    index[-16 - 24 : -16] = np.array(starts, "<i8").tobytes()
    (tmp_path / "ids.idx").write_bytes(index)
    with pytest.raises(FormatError, match=r"a document is not one contiguous range of ids\.bin, which has 12 bytes"):
        selected(TokenRows(path)).read(np.array([0]))


@pytest.mark.parametrize("name", ["__sources__", "__restore_key__", "__shard__", "pages.1"])
def test_columns_with_names_that_are_taken(tmp_path: Path, name: str) -> None:
    """They would stand in place of what a sample says of itself, or of an entry of a list."""
    pages = pa.array([[{"bytes": picture(n), "path": None}] for n in range(2)], pa.list_(FILE))
    metadata = features(pages={"feature": {"_type": "Image"}, "_type": "Sequence"})
    path = write_parquet(tmp_path / "x.parquet", {"pages": pages, name: [1, 2], "n": [3, 4]}, metadata=metadata)
    with pytest.raises(ConfigError, match=rf"x\.parquet: the column '{name}' has the name of"):
        in_order(path)
    assert [int(each["n"]) for each in in_order(path, part_filter={"n"})] == [3, 4]


def test_no_part_of_a_join_is_lost(tmp_path: Path) -> None:
    """Of crude members that have parts of one name, each has a name in the join, or the join is refused."""
    for name in ("ask", "answer"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"{name}": {number}}}\n' for number in range(30)))
        samples = [{"__key__": str(number), "json": f'{{"{name}": {number}}}'} for number in range(30)]
        write_tars(tmp_path / name, samples, shards=2)
        prepare_dataset(tmp_path / name, split_ratio=(1, 0, 0), crude=True, num_workers=0)
    members = ("ask", "ask.jsonl", "answer", "answer.jsonl")
    for first, second in itertools.product(members[:2], members[2:]):
        with pytest.raises(ConfigError, match=rf"{first} and {second} both have a part 'json'.*'second\.json'.*joiner"):
            in_order(join(tmp_path, {"path": first}, {"path": second}), split_part="train")
        named = write_v2(tmp_path, train={"join": {"q": {"path": first}, "a": {"path": second}}})
        samples = in_order(named, split_part="train", where="bytes.json > 0 and a.bytes.json > 0")
        assert [(each["json"], each["a.json"]) for each in samples] == [({"ask": n}, {"answer": n}) for n in range(30)]


def test_a_column_that_repeats_the_key_is_not_lost(tmp_path: Path) -> None:
    """It may have the name that it has elsewhere; the primary's stays."""
    write_parquet(tmp_path / "a.parquet", {"n": [1, 2, 3], "id": ["x", "y", "z"]})
    write_parquet(tmp_path / "b.parquet", {"id": [3, 2, 1], "text": ["three", "two", "one"]})
    path = join(tmp_path, {"path": "a.parquet", "keys": "n"}, {"path": "b.parquet", "keys": "id"})
    samples = in_order(path, split_part="train")
    assert [(each["id"], each["text"]) for each in samples] == [("x", "one"), ("y", "two"), ("z", "three")]


def test_parts_that_are_not_read_do_not_matter(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_parquet(tmp_path / f"{name}.parquet", {"__key__": ["x", "y"], "same": [1, 2], name: [1, 2]})
    path = join(tmp_path, {"path": "a.parquet"}, {"path": "b.parquet"})
    with pytest.raises(ConfigError, match="both have a part 'same'"):
        in_order(path, split_part="train")
    samples = in_order(path, split_part="train", part_filter={"a", "b"})
    assert [parts(each) for each in samples] == [{"a": 1, "b": 1}, {"a": 2, "b": 2}]


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ([{"path": "x.parquet", "by": "row"}, {"path": "x.parquet"}], ConfigError, "remove `by: row`"),
        ([{"path": "x.parquet", "keys": "none"}], KeyNotFoundError, "no column 'none'; the columns are n, text"),
        ([{"path": "x.parquet", "keys": "n", "by": "row"}], ConfigError, "`keys` has no effect with `by: row`"),
        ([{"path": "x.parquet"}, {"path": "same.parquet", "keys": "n"}], DuplicateKeyError, "are duplicates"),
        (
            [{"path": "x.parquet"}, {"path": "null.parquet", "keys": "n"}],
            FormatError,
            "row 1: has no key in column 'n'",
        ),
        (
            [{"path": "x.parquet"}, {"path": "x.parquet", "keys": "n"}],
            ConfigError,
            "10 of 10 keys of .* are missing in",
        ),
        ([{"path": "ids.bin", "keys": "n"}], ConfigError, "its keys are numbers; remove `keys`"),
        ([{"path": "mixture.yaml"}], ConfigError, "is a metadataset: join the datasets in it, and mix the joins"),
        ([{"path": "tars", "by": "row"}], ConfigError, "its samples are joined by their own keys"),
    ],
)
def test_joins_that_are_refused(tmp_path: Path, members: Any, error: type[Exception], message: str) -> None:
    write_numbers(tmp_path / "x.parquet", 10)
    write_parquet(tmp_path / "same.parquet", {"n": [1] * 10})
    write_parquet(tmp_path / "null.parquet", {"n": [1, None, 3]})
    write_tokens(tmp_path / "ids", [[1]] * 10)
    (tmp_path / "mixture.yaml").write_text("")
    make_text_dataset(tmp_path / "tars", n=10)
    with pytest.raises(error, match=message):
        in_order(join(tmp_path, *members), split_part="train")


def test_tables_by_key(tmp_path: Path) -> None:
    """As auxiliary stores, and for cookers of the data itself."""
    columns = {
        "__key__": ["a", "b", None],
        "image": pa.array(files([picture(1), picture(2), None]), FILE),
        "pages": pa.array([files([picture(3)] * number) for number in (0, 2, 1)], pa.list_(FILE)),
        "n": [1, 2, 3],
    }
    said = features(image={"_type": "Image"}, pages=[{"_type": "Image"}])
    keyed = write_parquet(tmp_path / "x.parquet", columns, metadata=said, row_group_size=2)
    plain = write_arrow(tmp_path / "many" / "y.z.arrow", {"n": list(range(20)), "text": ["t"] * 20})
    stores = open_aux({"x": keyed, "y": plain.parent}, SampleDecoder(image_decode="rgb8"))
    (image, source), (pages, _), (number, _) = stores["x"].read(["b.image", "b.pages.1", "a.n"])
    assert (image.shape, pages.shape, int(number)) == ((8, 8, 3), (8, 8, 3), 1)
    assert (source.shard_name, source.index, source.file_names) == ("x.parquet", "b.image", ("b.image",))
    assert "a.pages.0" not in stores["x"]
    assert "x/2.n" in stores["x"]
    assert int(stores["y"].get("y.z/19.n")) == 19
    assert stores["y"].get("y.z/3.text") == "t"
    for wrong in ("y.z/20.n", "y.z/03.n", "y.z/1.m", "z/1.n", "1.n", "y.z/1"):
        assert wrong not in stores["y"]
        with pytest.raises(KeyNotFoundError, match=r"no key '.*'; a key is y\.z/0, a dot, and a column"):
            stores["y"][wrong]
    again = pickle.loads(pickle.dumps(open_primary(keyed, None)))
    assert again == open_primary(keyed, None)
    assert again.get("b.image") == picture(2)
    mixture = write_v2(tmp_path, train={"path": "x.parquet", "aux": {"y": "many"}})
    assert len(in_order(mixture, split_part="train")) == 3
    twice = write_parquet(tmp_path / "twice.parquet", {"__key__": ["a", "b", "a"], "n": [1, 2, 3]})
    with pytest.raises(DuplicateKeyError, match="rows 0 and 2 have the same key 'a' in column __key__"):
        open_aux({"x": twice}, None)["x"].get("b.n")
    write_tokens(tmp_path / "ids", [[1]])
    with pytest.raises(ConfigError, match="is a Megatron indexed dataset, whose samples cannot be read by key"):
        open_aux({"ids": tmp_path / "ids.bin"}, None)


# Advice.


def test_advice(tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(
        DatasetNotFoundError, match=r"contains JSONL files, each of which is a dataset.*lines/a\.jsonl.*`concat`"
    ):
        in_order(tmp_path / "lines")
    write_arrow(tmp_path / "arrow" / "x.arrow", {"n": [1]})
    assert "an Arrow file is read directly" in str(run("prepare", tmp_path / "arrow").exception)
    write_tars(tmp_path / "tars", ({"__key__": f"{number}", "txt": "x"} for number in range(3)), shards=1)
    with pytest.raises(KeyNotFoundError, match=r"`energon-grain measure .*tars --column tokens=module:function`"):
        in_order(tmp_path / "tars", split_part="train", where="tokens > 1")
    np.save(tmp_path / "a.npy", np.zeros(1))
    attach = f"--attach=a={tmp_path}/a.npy"
    assert "which cannot get additional columns" in str(
        run("measure", write_tokens(tmp_path / "ids", [[1]]), attach).exception
    )
    assert run("measure", tmp_path / "arrow", attach).exit_code == 0


# Damaged files: `python tests/form_fuzzing.py` reads thousands of each.


@pytest.mark.parametrize("form", list(form_fuzzing.FORMS))
def test_damaged_files_are_named(form: str) -> None:
    """In a process of its own, as what decodes could end it."""
    command = [sys.executable, form_fuzzing.__file__, form, "--here", "--count", "60", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr
    assert "Error" in done.stdout
