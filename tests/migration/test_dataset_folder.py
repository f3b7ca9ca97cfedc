from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from energon_grain.formats.commit_journal import JOURNAL
from energon_grain.migration.dataset_folder import dataset_findings
from energon_grain.migration.finding import Finding
from energon_grain.migration.options import CheckOptions
from energon_grain.testing import make_text_dataset

FIXTURES = Path(__file__).parents[1] / "fixtures" / "energon"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_text_dataset(tmp_path / "text", n=8, shards=4)


def found(root: Path, **how: object) -> list[Finding]:
    return list(dataset_findings(root, CheckOptions(), **how))  # type: ignore[arg-type]


def only(findings: list[Finding], file: str) -> Finding:
    (finding,) = (each for each in findings if Path(each.where.split(": $")[0]).name == file)
    return finding


def files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_what_we_prepared_is_like_energon(root: Path) -> None:
    assert found(root) == []


def test_not_prepared(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        (finding,) = found(path)
        assert finding.severity == "error"
    root = make_text_dataset(tmp_path / "bare", n=4, shards=1, prepared=False)
    (finding,) = found(root)
    assert "energon-grain prepare" in finding.what


@pytest.mark.parametrize("name", ["captioning", "excludes", "long_names"])
def test_what_energon_prepared(name: str) -> None:
    before = files(FIXTURES / name)
    findings = found(FIXTURES / name)
    assert not [finding for finding in findings if finding.severity == "error"]
    assert "energon-grain info" in only(findings, "columnar").advice
    assert files(FIXTURES / name) == before, "a check only reads"


def test_excludes_and_empty_parts() -> None:
    finding = only([each for each in found(FIXTURES / "excludes") if each.severity == "differs"], "split.yaml")
    assert finding.what.startswith("3 samples")
    notes = [finding for finding in found(FIXTURES / "long_names") if "split_parts" in finding.where]
    assert [finding.where.rpartition("$")[2] for finding in notes] == [".split_parts.val", ".split_parts.test"]


def test_split_file(root: Path) -> None:
    path = root / ".nv-meta/split.yaml"

    def write(**content: object) -> None:
        path.write_text(yaml.safe_dump(content))

    write(split_parts={"train": ["shard_00{0..2}.tar"]}, exclude=["shard_009.tar/x", "shard_000.tar"])
    findings = found(root)
    assert [(finding.severity, finding.where) for finding in findings] == [
        ("note", f"{path}: $.exclude"),
        ("note", str(path)),
    ]
    assert "'shard_009.tar/x'" in findings[0].what
    assert "shard_003.tar" in findings[1].what
    write(split_parts={"train": ["shard_00{0..3}.tar"], "val": ["other.tar"]})
    (finding,) = found(root)
    assert (finding.severity, finding.where) == ("error", f"{path}: $.split_parts.val")
    write(split_parts={"train": []}, more=1)
    assert [finding.severity for finding in found(root)] == ["error"]
    assert found(root, as_store=True) == []
    assert [finding.severity for finding in found(root, split_config="none.yaml")] == ["error"]


def test_index_files(root: Path) -> None:
    database = root / ".nv-meta/index.sqlite"
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE media_metadata (entry_key TEXT)")
    connection.commit()
    connection.close()
    assert only(found(root), "index.sqlite").severity == "differs"
    database.write_bytes(b"no database" * 100)
    assert only(found(root), "index.sqlite").severity == "better"
    database.unlink()
    assert only(found(root), "index.sqlite").severity == "better"


def test_older_generations(root: Path) -> None:
    meta = root / ".nv-meta"
    connection = sqlite3.connect(meta / "index.sqlite")
    connection.execute("DROP TABLE sample_parts")
    connection.commit()
    connection.close()
    info = json.loads((meta / ".info.json").read_text())
    (meta / ".info.json").unlink()
    (meta / ".info.yaml").write_text(yaml.safe_dump({"shard_counts": info["shard_counts"]}))
    findings = found(root)
    assert "5.3 to 6" in only(findings, "index.sqlite").what
    assert only(findings, ".info.yaml").severity == "note"
    shutil.copy(root / "shard_000.tar", root / "shard_001.tar")
    assert [finding.where for finding in found(root) if finding.severity == "differs"] == [str(root / "shard_001.tar")]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda root: (root / ".nv-meta/.info.json").write_text('{"shard_counts": {}, "more": 1}'), ".info.json"),
        (lambda root: (root / ".nv-meta/dataset.yaml").unlink(), "dataset.yaml"),
        (lambda root: (root / ".nv-meta/dataset.yaml").write_text("colour: red"), "dataset.yaml"),
    ],
)
def test_damage(root: Path, change: Callable[[Path], object], where: str) -> None:
    change(root)
    assert only(found(root), where).severity == "error"


def test_interrupted_prepare_is_left_alone(root: Path) -> None:
    journal = root / JOURNAL
    journal.parent.mkdir(exist_ok=True)
    journal.write_text("{}")
    assert only(found(root), "commit.json").severity == "note"
    assert journal.exists()


def test_more_shards_than_are_looked_at(tmp_path: Path) -> None:
    root = make_text_dataset(tmp_path / "many", n=12, shards=12)
    (finding,) = found(root)
    assert (finding.severity, finding.what) == ("note", "Headers of 8 of 12 shards were read.")
    assert list(dataset_findings(root, CheckOptions(max_shards=None))) == []
