"""SIGKILL at any change to files, then the same command: it ends well, with the right files and no others."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_runs import run
from killing import SCENARIOS
from metadatasets import write_v2

from energon_grain.testing import make_text_dataset

pytestmark = pytest.mark.slow

# In each, about every so manyth change, about 100 in all: `tests/killing.py` has all of them.
CHANGES = {
    "prepare": 4,
    "prepare again": 4,
    "fix duplicates": 6,
    "media": 6,
    "media of files": 4,
    "join": 4,
    "lines": 2,
    "measure": 4,
    "measure lines": 4,
    "convert": 8,
    "convert lines": 14,
    "write": 10,
    "write items": 14,
    "append": 12,
    "prepare more": 16,
    "first use": 4,
    "first use of bare tars": 4,
    "first use of a join": 6,
    "first use of lines": 2,
}


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """In memory, if there is such a folder: a killed process leaves there what it leaves on a disk, without syncing."""
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 64 << 20):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def test_the_same_command_goes_on_whenever_it_was_killed(quick_folder: Path) -> None:
    assert CHANGES.keys() == SCENARIOS.keys()
    chosen = [f"{name}={step}" for name, step in CHANGES.items()]
    program = Path(__file__).parents[1] / "killing.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, program, quick_folder, *chosen]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert [line for line in told if not re.fullmatch(r"[a-z ]+: kills: \d+, of less than \d+ changes", line)] == []
    assert len(told) == len(CHANGES)


BEFORE_THE_LAST_FILE = """
import os, signal, sys
from energon_grain.prepare import prepare_dataset
def look(event, arguments):
    if event == "os.rename" and "/staged-" in str(arguments[0]) and str(arguments[1]) == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(look)
prepare_dataset(sys.argv[1], num_workers=0, crude=True, split_ratio=[1])
"""


def test_readers_complete_what_was_killed_while_it_was_put_in_place(tmp_path: Path) -> None:
    root = make_text_dataset(tmp_path / "texts", n=4, shards=2, prepared=False)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", BEFORE_THE_LAST_FILE, root, root / ".nv-meta/.info.json"]
    killed = subprocess.run(command, env=environment, timeout=600)
    assert killed.returncode == -signal.SIGKILL
    assert (root / ".nv-meta/index.sqlite").exists(), "as in a folder of plain files"
    assert not (root / ".nv-meta/.info.json").exists()
    done = run("which", root, "--step=0", "--batch-size=4", "--json")
    assert done.exit_code == 0, done.output + str(done.exception)
    assert (root / ".nv-meta/.info.json").exists()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Somebody else who is writing in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(descriptor)


def join(root: Path) -> Path:
    make_text_dataset(root / "texts", n=4, shards=2)
    write_v2(root, train={"join": [{"path": "texts"}, {"path": "texts"}]})
    return root / "meta.yaml"


def lines(root: Path) -> Path:
    (root / "x.jsonl").write_text('{"a": 1}\n')
    return root / "x.jsonl"


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (join, "meta.yaml.cache/.tmp_0a1b/rows.npy"),
        (join, "meta.yaml.cache/.join_index_0a1b.bin.0a1b.tmp"),
        (lines, ".x.jsonl.idx.0a1b.tmp"),
    ],
)
def test_what_somebody_is_writing_stays(tmp_path: Path, make: Callable[[Path], Path], left: str) -> None:
    path, temporary = make(tmp_path), tmp_path / left
    temporary.parent.mkdir(parents=True, exist_ok=True)
    temporary.touch()
    folder = tmp_path / left.split("/")[0] if make is join else tmp_path
    with writing(folder):
        assert run("prepare", path).exit_code == 0
        assert temporary.exists()
    assert run("prepare", path).exit_code == 0
    assert not temporary.exists()


def test_another_command_is_still_refused_behind_a_kill(tmp_path: Path) -> None:
    root = make_text_dataset(tmp_path / "texts", n=4, shards=2)
    (root / ".nv-meta/.prepare").mkdir()
    (root / ".nv-meta/.prepare/request").write_text("another")
    refused = run("prepare", root, "--non-interactive", "--split-ratio=1")
    assert "already prepared" in str(refused.exception)
    done = run("prepare", root, "--split-ratio=1", "--skip-dataset-yaml", answers="y\n")
    assert done.exit_code == 0, done.output
    assert not (root / ".nv-meta/.prepare").exists()
