from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import run
from typer.testing import Result

from energon_grain.testing import make_captioning_dataset, make_text_dataset


def check(*arguments: str | Path) -> Result:
    return run("migrate", "check", *arguments)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_captioning_dataset(tmp_path / "data", n=24, shards=12)


def test_nothing_differs(tmp_path: Path) -> None:
    done = check(make_text_dataset(tmp_path / "text", n=8, shards=2))
    assert (done.exit_code, done.output) == (0, "Nothing behaves differently.\n")


def test_findings_are_listed(root: Path) -> None:
    done = check(root)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == f"differs  {root}"
    assert lines[2] == "         Energon: gives torch tensors"
    assert lines[-1] == "0 error, 1 differs, 0 better, 1 note"
    assert "--all" in done.output
    assert check(root, "--all").output.splitlines()[-1] == "0 error, 1 differs, 0 better, 0 note"
    assert "… and 1 more" in check(root, "--limit", "1").output


def test_refusals_set_the_exit_code(root: Path) -> None:
    (root / ".nv-meta/split.yaml").write_text("colour: red\n")
    done = check(root)
    assert done.exit_code == 1
    assert done.output.startswith("error    ")


def test_json(root: Path) -> None:
    (root / "shard_000.tar").unlink()
    done = check(root, "--json", "--shards", "2")
    assert done.exit_code == 1
    findings = json.loads(done.output)
    assert [finding["severity"] for finding in findings] == ["error", "differs", "note"]
    assert findings[0].keys() == {"severity", "where", "what", "energon", "here", "advice"}


def test_help_says_what_it_is() -> None:
    assert "Move over from Energon" in run("--help").output
    assert "check" in run("migrate", "--help").output
