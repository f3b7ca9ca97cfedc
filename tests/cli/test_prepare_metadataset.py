"""`energon-grain prepare METADATASET`."""

from __future__ import annotations

from pathlib import Path

from cli_runs import run
from metadatasets import write_v2

from energon_grain.testing import make_text_dataset


def prepare(path: Path) -> str:
    result = run("prepare", path)
    assert result.exit_code == 0, result.output
    return result.output


def test_joins_are_indexed_once(tmp_path: Path) -> None:
    make_text_dataset(tmp_path / "a", n=30, shards=3)
    make_text_dataset(tmp_path / "b", n=20, shards=2)
    join = {"join": [{"path": "a"}, {"path": "b", "nonmatch": "skip"}]}
    path = write_v2(tmp_path, train={"blend": [join, {"path": "a"}]})
    said = prepare(path)
    assert ": 10 rows joined, in meta.yaml.cache" in said
    assert "without a row: 10 samples of the first dataset" in said
    cache = tmp_path / "meta.yaml.cache"
    files = {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.is_file()}
    assert files
    assert ": 10 rows up to date, in meta.yaml.cache" in prepare(path)
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.is_file()} == files


def test_without_joins_there_is_nothing_to_do(tmp_path: Path) -> None:
    make_text_dataset(tmp_path / "a", n=5)
    assert "has no joins" in prepare(write_v2(tmp_path, train={"path": "a"}))


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    make_text_dataset(tmp_path / "a", n=30, shards=3)
    make_text_dataset(tmp_path / "b", n=20, shards=2)
    path = write_v2(tmp_path, train={"join": [{"path": "a"}, {"path": "b"}]})
    result = run("prepare", path)
    assert result.exit_code != 0
    assert "nonmatch" in str(result.exception or result.output)
