"""The size of the documentation: words, newcomer pages, the width of code, and programs that print no warnings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PYTHONPATH
from page_code import BLOCK, blocks_of
from patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]
NEWCOMER_PAGES = (
    "index",
    "tutorial",
    "train-with-jax",
    "train-with-pytorch",
    "your-data",
    "mix-datasets",
    "resume",
)
GENERATED = ("docs/reference/energon-names.md",)  # tables written by a program, and so no prose
MOST_WORDS = 30_000
WIDEST = 84
_NO_PROSE = re.compile(
    r"\A---\n.*?^---\n|<!--.*?-->|^(?:--8<--|:::)[^\n]*|\]\([^)]*\)|\]: \S+", re.MULTILINE | re.DOTALL
)


def words(page: str) -> int:
    """Words of the prose: without code blocks, comments, included files and targets of links."""
    return len(re.findall(r"[^\W_]\S*", _NO_PROSE.sub(" ", BLOCK.sub("", page))))


def name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def test_words_are_counted() -> None:
    page = "# A title\n\n<!-- not\nthis -->\n```python\nnor = this\n```\n--8<-- 'nor this'\n\n"
    page += "* [two words](page.md) | `code` – counted\n"
    assert words(page) == 2 + 4


def test_all_prose_together() -> None:
    counts = {name(page): words(page.read_text()) for page in PAGES if name(page) not in GENERATED}
    assert len(counts) == len(PAGES) - len(GENERATED)
    assert sum(counts.values()) <= MOST_WORDS, sorted(counts.items(), key=lambda each: -each[1])


@pytest.mark.parametrize("page", NEWCOMER_PAGES)
def test_newcomer_pages_come_first(page: str) -> None:
    """They open with code or a program, and the navigation begins with them."""
    navigation = re.findall(r"^ +- [^:]+: ([\w-]+)\.md$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE)
    assert navigation[: len(NEWCOMER_PAGES)] == list(NEWCOMER_PAGES)
    text = (DOCS / f"{page}.md").read_text()
    first = re.search(r"^```|^--8<--", text, re.MULTILINE)
    assert first is not None
    assert words(text[: first.start()]) <= 110


@pytest.mark.parametrize(("page", "program"), [("train-with-jax", "train_jax"), ("train-with-pytorch", "train_torch")])
def test_training_pages_show_their_program(page: str, program: str) -> None:
    """A formatter once changed the line that includes it."""
    (shown,) = [block.code for block in blocks_of(DOCS / f"{page}.md") if block.title == f"{program}.py"]
    assert shown.strip() == (REPOSITORY / "examples" / "programs" / f"{program}.py").read_text().strip()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_fits_the_page(page: Path) -> None:
    wide = [
        f"{name(page)}:{block.line + number}: {len(line)} columns"
        for block in blocks_of(page)
        if not block.unseen
        for number, line in enumerate(block.code.splitlines())
        if len(line) > WIDEST
    ]
    assert wide == []


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{PYTHONPATH}{os.pathsep}{REPOSITORY}"}
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_the_program_of_the_readme_runs_without_warnings(tmp_path: Path) -> None:
    (program,) = [block.code for block in blocks_of(REPOSITORY / "README.md") if block.language == "python"]
    (tmp_path / "readme.py").write_text(program)
    ended = run(["readme.py"], tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("(48, ") == 10


def test_the_command_of_the_comparison_prints_what_the_page_shows(tmp_path: Path) -> None:
    (shown,) = [block.code for block in blocks_of(DOCS / "why.md") if block.language == "console"]
    command, *expected = shown.splitlines()
    assert command.startswith("$ python -m benchmarks.")
    ended = run(command.removeprefix("$ python ").split(), tmp_path)
    assert ended.stdout.splitlines() == expected, ended.stderr


def test_the_picture_of_the_terminal_shows_todays_output() -> None:
    draw_screens = pytest.importorskip("draw_screens")
    shown = re.findall(r"<text[^>]*>(.*?)</text>", draw_screens.TERMINAL.read_text(encoding="utf-8"))
    today = re.findall(r"<text[^>]*>(.*?)</text>", draw_screens.draw_terminal())
    assert shown == today, "run: python tests/draw_screens.py terminal"
