"""The code blocks of README, docs and notebooks."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)(?P=fence) *$"
    r"|^<!-- before:(?P<before>.*?)-->",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class CodeBlock:
    """One fenced block of a page."""

    language: str
    title: str | None
    code: str
    line: int  # of the first line of code
    unseen: bool = False  # in a comment


def code_blocks(text: str) -> Iterator[CodeBlock]:
    """The blocks of a page, in order."""
    for match in BLOCK.finditer(text):
        if match["before"] is not None:
            yield CodeBlock(
                "python", None, match["before"], text.count("\n", 0, match.start("before")) + 1, unseen=True
            )
            continue
        language, _, attributes = match["info"].strip().partition(" ")
        title = re.search(r'title="([^"]+)"', attributes)
        line = text.count("\n", 0, match.start("code")) + 1
        yield CodeBlock(language, title[1] if title else None, textwrap.dedent(match["code"]), line)


def blocks_of(page: Path) -> Iterator[CodeBlock]:
    """The blocks of a page or notebook, in order; lines of a notebook are counted in each cell."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text())["cells"]
        return (CodeBlock("python", None, "".join(cell["source"]), 1) for cell in cells if cell["cell_type"] == "code")
    included = re.compile(r'^--8<-- "([^":]+)"$', re.MULTILINE)
    text = included.sub(lambda match: (REPOSITORY / match[1]).read_text().rstrip(), page.read_text())
    return code_blocks(text)
