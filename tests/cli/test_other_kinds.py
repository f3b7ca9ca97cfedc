"""Commands on what is no folder of tars: JSONL files, arrays, and folders of ArrayRecord files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from arrays import numbered, write_group
from cli_runs import run
from metadatasets import write_v2
from records import msgpack_record, write_records, write_shards

from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.prepare import lint as lint_module
from energon_grain.testing import make_text_dataset

TYPED = ("--sample-type", "TextSample", "--field-map", '{"text": "txt"}')
PREPARED = ("--split-ratio", "8,1,1", "--non-interactive", *TYPED)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 0}\n\n{"n": 1, "long": "' + "x" * 3000 + '"}\n{"n": 2}\n')
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_group(tmp_path / "x.zarr", "zarr3", label=np.arange(20), image=numbered(20, 3, 2))


@pytest.fixture
def records(tmp_path: Path) -> Path:
    samples = ({"__key__": f"{number:03d}", "txt": b"text", "json": b'{"a": 1}'} for number in range(20))
    write_shards(tmp_path / "x", [msgpack_record(sample) for sample in samples], 10)
    return tmp_path / "x"


def said(*arguments: str | Path, status: int = 0, answers: str | None = None) -> str:
    done = run(*arguments, answers=answers)
    assert done.exit_code == status, done.output
    return done.output


def refused(kind: type[Exception], *arguments: str | Path) -> str:
    error = run(*arguments).exception
    assert isinstance(error, kind)
    return str(error)


def test_info(lines: Path, rows: Path) -> None:
    shown = said("info", rows)
    assert "20 samples, 640 B of rows" in shown
    assert "  image  float32[3, 2]  24 B  in chunks of 7 rows" in shown
    label = {"type": "int64", "row_shape": [], "row_bytes": 8, "chunk_rows": 7}
    assert json.loads(said("info", rows, "--json"))["arrays"]["label"] == label
    shown = said("info", write_v2(rows.parent, train={"path": rows.name}))
    assert "x.zarr" in shown
    assert "20" in shown
    shown = said("info", lines)
    assert "3 samples" in shown
    assert "2 KiB to 4 KiB" in shown
    told = json.loads(said("info", lines, "--json"))
    assert (told["samples"], told["size_bytes"]) == (3, lines.stat().st_size)
    for path in (lines, rows):
        refused(ConfigError, "info", path, "--split-config", "s.yaml")


def test_which(lines: Path, rows: Path, records: Path) -> None:
    options = ("--step", "0", "--batch-size", "2", "--validation")
    for path in (lines, rows):
        shown = said("which", path, *options)
        assert f"{path.name}/0" in shown
        assert f"{path.name}/1" in shown
    assert "  bytes, uncompressed  " in shown
    said("prepare", records, "--records", "msgpack", *PREPARED)
    first, *others = said("which", records, *options).splitlines()
    assert "  bytes, uncompressed  " in first
    assert [line.split()[3] for line in others] == ["0-38", "38-76"]


def test_arrays_need_nothing(rows: Path) -> None:
    assert "nothing to prepare" in refused(ConfigError, "prepare", rows, "--split-ratio", "1,0,0")
    assert "is an array, which is read as it is" in refused(DatasetNotFoundError, "lint", rows)


def test_lines_are_indexed(lines: Path) -> None:
    assert "3 samples, 3.04 kB" in said("prepare", lines)
    assert lines.with_name("x.jsonl.idx").stat().st_size == 8 * 4
    told = refused(ConfigError, "prepare", lines, "--crude", "--split-ratio", "1")
    assert told.endswith("a JSONL file, which is only indexed: leave out --split-ratio and --crude.")
    refused(DatasetNotFoundError, "prepare", lines.with_name("y.jsonl"))


def test_lint_of_lines_and_their_indices(lines: Path) -> None:
    assert "No problems in 3 samples" in said("lint", lines)
    said("prepare", lines)
    assert "No problems in 3 samples" in said("lint", lines)
    content = lines.read_text()
    lines.write_text(content.replace('{"n": 0}', '{"n": ,}').replace('{"n": 2}', "[      ]"))
    shown = said("lint", lines, status=1)
    assert "x.jsonl:1: part 'json'" in shown
    assert "x.jsonl:4: holds no JSON object: b'[      ]'" in shown
    refused(ConfigError, "lint", lines, "--split-parts", "train")
    for changed, told in (
        (content.replace('\n\n{"n": 1', '{}\n{"n": 1'[:10]), "x.jsonl.idx: "),
        (content.replace("\n\n", "\n") + "\n", "samples are not where it says; run `energon-grain prepare"),
        (content + "\n", "was changed after it was indexed"),
    ):
        lines.write_text(changed)
        assert told in run("lint", lines).output


def test_lint_lists_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint_module, "LISTED_FINDINGS", 10)
    (tmp_path / "x.jsonl").write_text("7\n" * 100)
    shown = said("lint", tmp_path / "x.jsonl", "--limit", "3", status=1)
    assert "… and 7 more" in shown
    assert "Nothing was read after problem 10" in shown


def test_records_are_prepared(records: Path) -> None:
    refused(DatasetNotFoundError, "prepare", records, *PREPARED)
    shown = said("prepare", records, "--records", "msgpack", *PREPARED)
    assert "Found 10 ArrayRecord files, shard_000.array_record … shard_009.array_record." in shown
    assert "20 samples in 10 shards" in shown
    said("prepare", records, "--tar-index-only")
    said("prepare", records, *PREPARED, "--force-overwrite")
    said("prepare", records, "--records", "json", status=2)
    again = (*PREPARED, "--force-overwrite", "--records", "tf_example")
    assert "record 0: is no tf.train.Example" in str(run("prepare", records, *again).exception)
    shown = said("info", records)
    assert "20 samples in 10 shards, 1.31 MB of ArrayRecord files (msgpack) (240 B of payload)" in shown
    assert json.loads(said("info", records, "--json"))["records"] == "msgpack"
    assert "No problems in 20 samples and 10 shards." in said("lint", records)
    write_records(records / "shard_003.array_record", [msgpack_record({"__key__": "x", "txt": b"\xff"})] * 2)
    assert "shard_003.array_record: the columnar index says otherwise" in said("lint", records, status=1)


def test_the_wizard_shows_a_record(records: Path) -> None:
    shown = said("prepare", records, "--records", "msgpack", answers="8,1,1\ny\nTextSample\n\n")
    assert "Sample '000' of shard_000.array_record: txt (4 bytes), json (8 bytes)" in shown
    assert '"a": 1' in shown


def test_convert(tmp_path: Path) -> None:
    tars = make_text_dataset(tmp_path / "tars", n=20, shards=4)
    shown = said("convert", tars, tmp_path / "records", "--compression", "zstd")
    assert "20 samples in 4 ArrayRecord files" in shown
    assert "every shard was read back and compared." in shown
    refused(ConfigError, "convert", tars, tmp_path / "records")
    shown = said("convert", tmp_path / "records", tmp_path / "back", "--to", "tar", "--no-verify", "--no-sqlite")
    assert "20 samples in 4 tar files" in shown
    assert "nothing was read back." in shown
