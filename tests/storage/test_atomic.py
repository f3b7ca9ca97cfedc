"""A file appears whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

from energon_grain.storage.atomic import atomic_write, atomic_write_bytes, atomic_write_text


def test_replaces_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_write_bytes(path, b"old")
    atomic_write_text(path, "né w")
    assert path.read_text(encoding="utf-8") == "né w"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        write()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_new_file_is_not_seen_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"new"


def test_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    atomic_write_bytes(path, b"new")
    assert path.stat().st_mode & 0o7777 == 0o640


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    """Of `write`, which names none; other errors are left alone."""
    path = tmp_path / "file"
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*/file'$"),
        atomic_write(path),
        open("/dev/full", "wb") as full,
    ):
        full.write(b"x")
    for error in (OSError(errno.EIO, "broken"), OSError("our own"), OSError(errno.ENOSPC, "no room", "elsewhere")):
        with pytest.raises(OSError, match=f"^{re.escape(str(error))}$"), atomic_write(path):
            raise error
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic_write_bytes(tmp_path / "none" / "file", b"")


KILLED = """
import os, signal, sys
from energon_grain.storage.atomic import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"x" * 100_000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment, timeout=PATIENCE_S)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
