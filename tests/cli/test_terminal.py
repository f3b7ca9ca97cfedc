"""The wizard and the progress bar on a real pseudo-terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from beside_data import described
from cli_runs import run
from patience import PATIENCE_S

from energon_grain.testing import make_captioning_dataset, write_tars

TIMEOUT_S = PATIENCE_S


class Terminal:
    """A command that believes it talks to a person."""

    def __init__(self, *arguments: str) -> None:
        self._descriptor, other_end = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": "200"}
        # What runs behind a shell ignores Ctrl-C, and so would the command.
        heeding = "signal.signal(signal.SIGINT, signal.default_int_handler)"
        program = f"import runpy, signal; {heeding}; runpy.run_module('energon_grain.cli', run_name='__main__')"
        command = [sys.executable, "-c", program, *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
            env=environment,
            start_new_session=True,
        )
        os.close(other_end)
        self.output = ""

    def read_until(self, wanted: str) -> None:
        """Read until `wanted` has appeared since the last call; with "" until the command ends."""
        seen, deadline = "", time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            if not select.select([self._descriptor], [], [], 1)[0]:
                continue
            try:
                seen += os.read(self._descriptor, 4096).decode(errors="replace")
            except OSError:  # the other end is closed
                break
            if wanted and wanted in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen):
                break
        self.output += seen
        assert wanted in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen), self.output

    def answer(self, question: str, text: str) -> None:
        self.read_until(question)
        os.write(self._descriptor, f"{text}\n".encode())

    def exit_code(self) -> int:
        self.read_until("")
        os.close(self._descriptor)
        return self.process.wait(TIMEOUT_S)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_captioning_dataset(tmp_path / "data", n=12, shards=3, prepared=False)


def test_wizard(root: Path) -> None:
    terminal = Terminal("prepare", str(root))
    terminal.answer("Ratio of train, val and test [8,1,1]:", "")
    terminal.answer("Choose a sample type now", "y")
    terminal.answer("Number or name of the sample type:", "CaptioningSample")
    terminal.answer("image", "")
    terminal.answer("caption", "txt")
    assert terminal.exit_code() == 0
    assert "3/3 shards" in terminal.output
    assert "100%" in terminal.output
    assert described(root)["field_map"] == {"image": "jpg", "caption": "txt"}


def test_enter_takes_every_proposal_and_the_command_shown_does_the_same(tmp_path: Path) -> None:
    """With pictures and JSON, too. Enter never repeats a question."""
    sample = {"jpg": b"x", "json": {"captions": ["a cat"]}}
    write_tars(tmp_path / "data", [{"__key__": "a", **sample}])
    terminal = Terminal("prepare", str(tmp_path / "data"))
    for question in ("Ratio of train, val and test", "Choose a sample type now", "Number or name of the sample type"):
        terminal.answer(question, "")
    assert terminal.exit_code() == 0
    assert "CaptioningSample (image from jpg, caption from json[captions][0]). Enter takes it." in terminal.output
    made = described(tmp_path / "data")
    assert made["field_map"] == {"image": "jpg", "caption": "json[captions][0]"}
    shown = terminal.output.replace("\r", "").partition("without questions:\n")[2].strip().splitlines()[0]
    shutil.rmtree(tmp_path / "data/.nv-meta")
    assert run(*shlex.split(shown)[1:]).exit_code == 0
    assert described(tmp_path / "data") == made


def test_lint_shows_how_far_it_is(root: Path) -> None:
    run("prepare", root, "--non-interactive", "--split-ratio=1", "--crude")
    terminal = Terminal("lint", str(root))
    assert terminal.exit_code() == 0
    assert "Indices" in terminal.output
    assert "12/12 samples" in terminal.output


def test_interrupt(root: Path) -> None:
    terminal = Terminal("prepare", str(root))
    terminal.read_until("Ratio of train")
    until = time.monotonic() + TIMEOUT_S
    time.sleep(0.3)  # an interrupt that comes just before Python begins to wait for the answer is noticed with the next
    while terminal.process.poll() is None and time.monotonic() < until:
        terminal.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            terminal.process.wait(10)
    assert terminal.exit_code() != 0
    assert "Traceback" not in terminal.output
    assert not (root / ".nv-meta/.info.json").exists()


def test_errors_are_red(tmp_path: Path) -> None:
    terminal = Terminal("info", str(tmp_path))
    assert terminal.exit_code() == 1
    assert "\x1b[31m" in terminal.output
    assert "energon-grain prepare" in terminal.output
