"""The slice of a commit: the same each time, nothing lost over its four quarters, and what it never leaves out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import slices

IDS = [
    f"{module}::test_{name}[{n}]" for module in sorted(slices.SLICED) for name in ("a", "saved_state") for n in range(9)
]
IDS += ["tests/samplers/test_blend.py::test_x", "tests/golden/test_streams.py::test_y[1]"]


def test_four_quarters_are_everything() -> None:
    runs = [slices.split(IDS, quarter) for quarter in range(4)]
    for run, left in runs:
        assert sorted(run + left) == list(range(len(IDS)))
    always = [place for place, name in enumerate(IDS) if "saved_state" in name or place >= len(IDS) - 2]
    for place in range(len(IDS)):
        assert sum(place in run for run, _ in runs) == (4 if place in always else 1)


def test_modules_on_the_list_exist_and_may_be_sliced() -> None:
    for name in slices.SLICED:
        assert (slices.ROOT / name).is_file(), f"{name}: is gone; take it off the list in tests/slices.py"
        assert not slices.ALWAYS.search(name), f"{name}: is never sliced"


def test_the_commit_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tree, so that a commit with the same files has the same quarter; the files themselves without git."""
    for folder in ("energon_grain", "adapters", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tests" / "a.py").write_text("a = 1\n")
    monkeypatch.setattr(slices, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    without = slices.tree()
    assert without == slices.tree()
    (tmp_path / "tests" / "a.py").write_text("a = 2\n")
    assert slices.tree() != without
    if shutil.which("git") is None:
        pytest.skip("the rest needs git")

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    first = slices.tree()
    assert len(first) == 40
    git("commit", "--allow-empty", "-m", "two")
    assert slices.tree() == first
    assert slices.quarter("commit") == int(first[:8], 16) % 4


def test_other_values_are_refused() -> None:
    assert (slices.quarter("all"), slices.quarter("3")) == (None, 3)
    with pytest.raises(ValueError, match="expected commit, all, or a number from 0 to 3"):
        slices.quarter("4")
