from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from energon_grain import Sample
from energon_grain.errors import DatasetNotFoundError
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.lint import LintProgress, lint_dataset
from energon_grain.testing import make_captioning_dataset, make_crude_dataset, write_tars


@dataclass
class Positive(Sample):
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("negative")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_captioning_dataset(tmp_path_factory.mktemp("lint") / "clean", n=24, shards=4)


@pytest.fixture
def root(clean: Path, tmp_path: Path) -> Path:
    return shutil.copytree(clean, tmp_path / "copy", copy_function=shutil.copy2)


def wrong(root: Path, **how: object) -> list[str]:
    """Where something is wrong."""
    found = lint_dataset(root, **how).findings  # type: ignore[arg-type]
    return [finding.where for finding in found if finding.severity == "error"]


def test_clean(clean: Path) -> None:
    seen: list[LintProgress] = []
    report = lint_dataset(clean, progress=seen.append)
    assert (report.shards, report.samples, report.findings) == (4, 24, ())
    assert (seen[0].done, seen[0].total) == (0, 4)
    assert (seen[-1].stage, seen[-1].done, seen[-1].total) == ("samples", 24, 24)


def test_broken_samples_are_found(tmp_path: Path) -> None:
    root = make_captioning_dataset(tmp_path / "data", n=24, shards=4, broken={0, 5, 23})
    report = lint_dataset(root)
    broken = ["shard_000.tar/000000", "shard_000.tar/000005", "shard_003.tar/000023"]
    assert [finding.where for finding in report.findings] == broken
    assert all("jpg" in finding.what for finding in report.findings)
    assert wrong(root, split_parts=["val"]) == ["shard_003.tar/000023"]
    split = root / ".nv-meta/split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude: [shard_003.tar, shard_000.tar/000000]"))
    assert wrong(root) == ["shard_000.tar/000005"]
    assert wrong(root, split_parts=["train"]) == ["shard_000.tar/000005"]
    assert wrong(root, first_samples=True) == []


def test_shard_that_was_replaced(root: Path) -> None:
    shutil.copy(root / "shard_000.tar", root / "shard_002.tar")
    report = lint_dataset(root)
    *errors, note = report.findings
    assert {finding.where for finding in errors} == {"shard_002.tar"}
    assert report.samples == 18
    assert "1 shards were not decoded" in note.what


def test_shard_that_is_gone(root: Path) -> None:
    (root / "shard_001.tar").unlink()
    finding, note = lint_dataset(root).findings
    assert finding.where == "shard_001.tar"
    assert "gone" in finding.what
    assert note.severity == "note"


@pytest.mark.parametrize("damage", [b"", b"1234567", bytes(8 * 7), bytes(8 * 3)])
def test_damaged_tar_index(root: Path, damage: bytes) -> None:
    (root / "shard_001.tar.idx").write_bytes(damage)
    assert wrong(root) == ["shard_001.tar"]
    prepare_dataset(root, tar_index_only=True, num_workers=0)
    assert wrong(root) == []


def test_missing_tar_index(root: Path) -> None:
    (root / "shard_001.tar.idx").unlink()
    finding, _ = lint_dataset(root).findings
    assert "--tar-index-only" in finding.way_out


def test_truncated_shard(root: Path) -> None:
    data = (root / "shard_003.tar").read_bytes()
    (root / "shard_003.tar").write_bytes(data[: len(data) // 2])
    assert wrong(root) == ["shard_003.tar"]


def test_damaged_columnar_index(root: Path) -> None:
    (column,) = (root / ".nv-meta/columnar").glob("*/part_size.npy")
    data = bytearray(column.read_bytes())
    data[-8] ^= 1
    column.write_bytes(data)
    assert wrong(root) == [str(column)]
    column.write_bytes(data[:-8])
    assert wrong(root) == [str(column)]


def test_crude_and_without_configuration(tmp_path: Path) -> None:
    root = make_crude_dataset(tmp_path / "crude", n=8, shards=2)
    assert lint_dataset(root).findings == ()
    (root / ".nv-meta/dataset.yaml").unlink()
    (note,) = lint_dataset(root).findings
    assert (note.severity, "no dataset.yaml" in note.what) == ("note", True)


def test_sample_type_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tars(tmp_path, [{"__key__": str(i), "json": {"n": 3 - i}} for i in range(5)])
    prepare_dataset(
        tmp_path,
        num_workers=0,
        split_ratio=[1],
        sample_type=f"{__name__}:Positive",
        field_map={"number": "json[n]"},
    )
    with monkeypatch.context() as without:
        without.delitem(sys.modules, __name__)  # as if the program had not imported it
        (finding,) = lint_dataset(tmp_path).findings
        assert (finding.where, "trusted_modules" in finding.what) == (str(tmp_path), True)
    (finding,) = lint_dataset(tmp_path, trusted_modules=[__name__]).findings
    assert str(finding) == "shard_000.tar/4: negative"


def test_missing_value_of_a_field(tmp_path: Path) -> None:
    write_tars(tmp_path, [{"__key__": "a", "json": {"text": "x"}}, {"__key__": "b", "json": {}}])
    prepare_dataset(
        tmp_path, num_workers=0, split_ratio=[1], sample_type="TextSample", field_map={"text": "json[text]"}
    )
    assert wrong(tmp_path) == ["shard_000.tar/b"]


def test_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError):
        lint_dataset(tmp_path)
