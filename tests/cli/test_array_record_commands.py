"""Commands on folders of ArrayRecord files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import run
from records import msgpack_record, write_records, write_shards

from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.testing import make_text_dataset

PREPARED = (
    "--split-ratio",
    "8,1,1",
    "--non-interactive",
    "--sample-type",
    "TextSample",
    "--field-map",
    '{"text": "txt"}',
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    samples = ({"__key__": f"{number:03d}", "txt": b"text", "json": b'{"a": 1}'} for number in range(20))
    write_shards(tmp_path / "x", [msgpack_record(sample) for sample in samples], 10)
    return tmp_path / "x"


def test_prepare(path: Path) -> None:
    assert isinstance(run("prepare", path, *PREPARED).exception, DatasetNotFoundError)
    done = run("prepare", path, "--records", "msgpack", *PREPARED)
    assert done.exit_code == 0, done.output
    assert "Found 10 ArrayRecord files, shard_000.array_record … shard_009.array_record." in done.output
    assert "20 samples in 10 shards" in done.output
    assert run("prepare", path, "--tar-index-only").exit_code == 0
    assert run("prepare", path, *PREPARED, "--force-overwrite").exit_code == 0
    assert run("prepare", path, "--records", "json").exit_code == 2
    wrong = run("prepare", path, *PREPARED, "--force-overwrite", "--records", "tf_example")
    assert "record 0: is no tf.train.Example" in str(wrong.exception)


def test_prepare_asks(path: Path) -> None:
    done = run("prepare", path, "--records", "msgpack", answers="8,1,1\ny\nTextSample\n\n")
    assert done.exit_code == 0, done.output
    assert "Sample '000' of shard_000.array_record: txt (4 bytes), json (8 bytes)" in done.output
    assert '"a": 1' in done.output


def test_info_and_lint(path: Path) -> None:
    run("prepare", path, "--records", "msgpack", *PREPARED)
    done = run("info", path)
    assert "20 samples in 10 shards, 1.31 MB of ArrayRecord files (msgpack) (240 B of payload)" in done.output
    assert json.loads(run("info", path, "--json").output)["records"] == "msgpack"
    assert "No problems in 20 samples and 10 shards." in run("lint", path).output
    write_records(path / "shard_003.array_record", [msgpack_record({"__key__": "x", "txt": b"\xff"})] * 2)
    done = run("lint", path)
    assert done.exit_code == 1
    assert "shard_003.array_record: the columnar index says otherwise" in done.output


def test_which_counts_bytes_of_records(path: Path) -> None:
    run("prepare", path, "--records", "msgpack", *PREPARED)
    shown = run("which", path, "--step", "0", "--batch-size", "2", "--validation").output.splitlines()
    assert "  bytes, uncompressed  " in shown[0]
    assert [line.split()[3] for line in shown[1:]] == ["0-38", "38-76"]


def test_convert(tmp_path: Path) -> None:
    tars = make_text_dataset(tmp_path / "tars", n=20, shards=4)
    records = tmp_path / "records"
    done = run("convert", tars, records, "--compression", "zstd")
    assert done.exit_code == 0, done.output
    assert "20 samples in 4 ArrayRecord files" in done.output
    assert "every shard was read back and compared." in done.output
    assert isinstance(run("convert", tars, records).exception, ConfigError)
    done = run("convert", records, tmp_path / "back", "--to", "tar", "--no-verify", "--no-sqlite")
    assert "20 samples in 4 tar files" in done.output
    assert "nothing was read back." in done.output
