from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from energon_grain.errors import IndexFileError, StaleIndexError
from energon_grain.formats.commit_journal import (
    JOURNAL,
    PREPARE_FOLDER,
    commit_staged,
    finish_interrupted_prepare,
    new_staging_folder,
)

NEW = {
    "shards/a.tar.idx": "new a",
    "b.tar.idx": "new b",
    ".nv-meta/columnar/g2/keys.npy": "new keys",
    ".nv-meta/split.yaml": "new split",
    ".nv-meta/.info.json": "new info",
    ".nv-meta/columnar/header.json": "new header",
}
PUT = (
    "shards/a.tar.idx",
    "b.tar.idx",
    ".nv-meta/columnar/g2",
    ".nv-meta/split.yaml",
    ".nv-meta/.info.json",
    ".nv-meta/columnar/header.json",
)
REMOVE = (".nv-meta/index.sqlite", ".nv-meta/columnar/g1", ".nv-meta/never-there")
OLD = {
    "shards/a.tar": "data",
    "b.tar": "data",
    "shards/a.tar.idx": "old a",
    ".nv-meta/columnar/g1/keys.npy": "old keys",
    ".nv-meta/columnar/header.json": "old header",
    ".nv-meta/index.sqlite": "old sqlite",
    ".nv-meta/.info.json": "old info",
}
AFTER = {"shards/a.tar": "data", "b.tar": "data", **NEW}


def fill(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def contents(root: Path) -> dict[str, str]:
    files = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}
    return {name: text for name, text in files.items() if not name.startswith(PREPARE_FOLDER)}


def staged(root: Path) -> Path:
    fill(root, OLD)
    staging = new_staging_folder(root)
    fill(staging, NEW)
    return staging


def write_journal(root: Path, staging: Path, **changes: object) -> None:
    journal = {"version": 1, "staged": staging.name, "put": PUT, "remove": REMOVE, **changes}
    (root / JOURNAL).write_text(json.dumps(journal))


def test_commit_moves_everything(tmp_path: Path) -> None:
    commit_staged(tmp_path, staged(tmp_path), put=PUT, remove=REMOVE)
    assert contents(tmp_path) == AFTER
    assert not list((tmp_path / PREPARE_FOLDER).iterdir())
    assert not finish_interrupted_prepare(tmp_path)


def test_before_the_journal_the_old_state_holds(tmp_path: Path) -> None:
    staged(tmp_path)
    assert not finish_interrupted_prepare(tmp_path)
    assert contents(tmp_path) == OLD


def test_nothing_to_finish(tmp_path: Path) -> None:
    assert not finish_interrupted_prepare(tmp_path)
    assert not finish_interrupted_prepare(tmp_path / "missing")
    (tmp_path / "file").touch()
    assert not finish_interrupted_prepare(tmp_path / "file")


@pytest.mark.parametrize("done", range(len(PUT) + len(REMOVE) + 1))
def test_every_interrupted_state_is_finished(tmp_path: Path, done: int) -> None:
    """A process was killed after `done` of the steps: the next one gets to the same place."""
    staging = staged(tmp_path)
    write_journal(tmp_path, staging)
    for path in PUT[:done]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / path, tmp_path / path)
    for path in REMOVE[: max(0, done - len(PUT))]:
        shutil.rmtree(tmp_path / path) if (tmp_path / path).is_dir() else (tmp_path / path).unlink(missing_ok=True)
    assert finish_interrupted_prepare(tmp_path)
    assert contents(tmp_path) == AFTER
    assert not finish_interrupted_prepare(tmp_path)


def test_killed_while_a_folder_was_removed(tmp_path: Path) -> None:
    staging = staged(tmp_path)
    write_journal(tmp_path, staging)
    for path in PUT:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / path, tmp_path / path)
    (tmp_path / ".nv-meta/columnar/g1/keys.npy").unlink()  # rmtree had come this far
    assert finish_interrupted_prepare(tmp_path)
    assert contents(tmp_path) == AFTER


def test_several_finish_at_once(tmp_path: Path) -> None:
    for attempt in range(20):
        root = tmp_path / str(attempt)
        root.mkdir()
        write_journal(root, staged(root))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(finish_interrupted_prepare, [root] * 4))
        assert contents(root) == AFTER


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../outside.tar.idx",
        "shards/../../outside.tar.idx",
        ".nv-meta/../data.json",
        ".nv-meta/.prepare/commit.json",
        ".nv-meta",
        "",
        "shards/a.tar",
        "train.py",
    ],
)
@pytest.mark.parametrize("field", ["put", "remove"])
def test_foreign_paths_are_refused(tmp_path: Path, path: str, field: str) -> None:
    write_journal(tmp_path, staged(tmp_path), **{field: [path]})
    with pytest.raises(IndexFileError, match="does not own"):
        finish_interrupted_prepare(tmp_path)
    assert contents(tmp_path) == OLD


def test_tar_indices_are_never_removed(tmp_path: Path) -> None:
    write_journal(tmp_path, staged(tmp_path), remove=["shards/a.tar.idx"])
    with pytest.raises(IndexFileError, match="does not own"):
        finish_interrupted_prepare(tmp_path)


@pytest.mark.parametrize("name", ["../staged-x", "staged-/../..", "other"])
def test_foreign_staging_folders_are_refused(tmp_path: Path, name: str) -> None:
    write_journal(tmp_path, staged(tmp_path), staged=name)
    with pytest.raises(IndexFileError, match="does not own"):
        finish_interrupted_prepare(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": "1", "staged": "", "put": []}'])
def test_damaged_journal(tmp_path: Path, text: str) -> None:
    staged(tmp_path)
    (tmp_path / JOURNAL).write_text(text)
    with pytest.raises(IndexFileError, match="not a commit journal"):
        finish_interrupted_prepare(tmp_path)


def test_newer_journal(tmp_path: Path) -> None:
    write_journal(tmp_path, staged(tmp_path), version=2)
    with pytest.raises(IndexFileError, match="version 2"):
        finish_interrupted_prepare(tmp_path)


def test_lost_staged_file(tmp_path: Path) -> None:
    staging = staged(tmp_path)
    write_journal(tmp_path, staging)
    (staging / ".nv-meta/split.yaml").unlink()
    with pytest.raises(IndexFileError, match=r"split\.yaml.*is gone"):
        finish_interrupted_prepare(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_dataset(tmp_path: Path) -> None:
    write_journal(tmp_path, staged(tmp_path))
    (tmp_path / "shards").chmod(0o500)
    try:
        with pytest.raises(StaleIndexError, match="may not write"):
            finish_interrupted_prepare(tmp_path)
    finally:
        (tmp_path / "shards").chmod(0o700)
