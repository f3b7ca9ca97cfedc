from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import run

from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.formats.jsonl import jsonl_index_path, read_jsonl_index
from energon_grain.prepare import lint as lint_module


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 0}\n\n{"n": 1, "long": "' + "x" * 3000 + '"}\n{"n": 2}\n')
    return path


def test_prepare(path: Path) -> None:
    done = run("prepare", path)
    assert done.exit_code == 0, done.output
    assert "3 samples, 3.04 kB" in done.output
    assert len(read_jsonl_index(jsonl_index_path(path))) == 4
    assert isinstance(run("prepare", path, "--crude").exception, ConfigError)
    assert isinstance(run("prepare", path.with_name("y.jsonl")).exception, DatasetNotFoundError)


def test_info(path: Path) -> None:
    done = run("info", path)
    assert done.exit_code == 0, done.output
    assert "3 samples" in done.output
    assert "2 KiB to 4 KiB" in done.output
    told = json.loads(run("info", path, "--json").output)
    assert (told["samples"], told["size_bytes"]) == (3, path.stat().st_size)
    assert isinstance(run("info", path, "--split-config", "s.yaml").exception, ConfigError)


def test_which(path: Path) -> None:
    done = run("which", path, "--step", "0", "--batch-size", "2", "--validation")
    assert done.exit_code == 0, done.output
    assert "x.jsonl/0" in done.output
    assert "x.jsonl/1" in done.output


def test_lint(path: Path) -> None:
    assert "No problems in 3 samples" in run("lint", path).output
    run("prepare", path)
    assert "No problems in 3 samples" in run("lint", path).output
    content = path.read_text()
    path.write_text(content.replace('{"n": 0}', '{"n": ,}').replace('{"n": 2}', "[      ]"))
    done = run("lint", path)
    assert done.exit_code == 1
    assert "x.jsonl:1: part 'json'" in done.output
    assert "x.jsonl:4: holds no JSON object: b'[      ]'" in done.output
    assert isinstance(run("lint", path, "--split-parts", "train").exception, ConfigError)


def test_lint_of_indices(path: Path) -> None:
    run("prepare", path)
    content = path.read_text()
    path.write_text(content.replace('\n\n{"n": 1', '{}\n{"n": 1'[:10]))
    assert "x.jsonl.idx: " in run("lint", path).output
    path.write_text(content.replace("\n\n", "\n") + "\n")
    assert "samples are not where it says; run `energon-grain prepare" in run("lint", path).output
    path.write_text(content + "\n")
    assert "was changed after it was indexed" in run("lint", path).output


def test_lint_lists_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint_module, "LISTED_FINDINGS", 10)
    path = tmp_path / "x.jsonl"
    path.write_text("7\n" * 100)
    done = run("lint", path, "--limit", "3")
    assert "… and 7 more" in done.output
    assert "Nothing was read after problem 10" in done.output
