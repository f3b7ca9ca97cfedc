"""The words that our prose does without: one list, and a count of where they still are.

python tests/words.py [FILE …] [--count]

It reads docs (without their code), and of Python files the docstrings, comments and all texts with a space in them:
messages, help texts, log lines. `make check` runs it. The list and what to write instead: CONTRIBUTING.md, *Language*.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).parent.parent
FOLDERS = ("energon_grain", "adapters", "docs", "examples", "benchmarks")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "adapters/README.md", "tests/README.md")
WORDS = {
    "told, tells of": (r"\btold\b|\btells? of\b", "reported, logged, shows, says"),
    "stands": (r"\b(stands|stood|stand)\b(?! for\b| alone\b|-)", "is"),
    "lies": (r"\b(lies|lie|lay)\b(?! out\b)", "is"),
    "mend": (r"\bmend(s|ed|ing)?\b", "fix, repair"),
    "anew": (r"\banew\b", "again"),
    "shall, is meant": (r"\bshall\b|\b(is|are|was) meant\b", "should, is intended, or the plain present"),
    "somebody, nobody": (r"\b(some|no|any)body\b|\bwhoever\b|\bwho(m)?soever\b", "the user, the caller, no host"),
    "so many": (r"\bso many(eth)?\b|\bmanieth\b", "n, every n-th"),
    "came (of data)": (r"\bcame\b", "arrived, was delivered, was read"),
    "house, room, door, skin": (
        r"\b(house|houses|room|rooms|door|doors|skin|skins)\b",
        "package, module, layer, API, adapter; space",
    ),
    "but for, likewise, thereby, of those that": (
        r"\bbut for\b|\blikewise\b|\bthereby\b|\bof those that\b|\btherein\b|\bwherein\b|\bhitherto\b|\bunasked\b",
        "except, also, so",
    ),
    "is bound by": (r"\b(is|are|was) bound\b(?! to\b)|\b(lock|work|machine) bounds\b", "is limited by"),
    "What … as a subject": (r"(?:^|(?<=[.!:;] ))\*{0,2}What\b[^?]*?(?:[.!:;](?=\s|$)|$)", "a noun"),
}
ALLOWED = frozenset({"docs/changelog.md"})
_FOUND = {name: re.compile(pattern) for name, (pattern, _) in WORDS.items()}
_CODE = re.compile(r"^( *)(```|~~~).*?^\1\2[ ]*$|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)", re.M | re.S)


def main(arguments: list[str]) -> int:
    files = [Path(argument).resolve() for argument in arguments if not argument.startswith("--")] or list(_all_files())
    found = [line for file in files for line in _violations(file)]
    print("\n".join(found) if "--count" not in arguments else len(found))
    return int(bool(found))


def _all_files() -> Iterator[Path]:
    for folder in FOLDERS:
        for file in sorted((REPO / folder).rglob("*")):
            if file.suffix in (".py", ".pyi", ".md") and ".ipynb_checkpoints" not in file.parts:
                yield file
    yield from (REPO / page for page in PAGES if (REPO / page).exists())


def _violations(file: Path) -> Iterator[str]:
    name = file.relative_to(REPO).as_posix() if file.is_relative_to(REPO) else str(file)
    if name in ALLOWED:
        return
    texts = _page(file.read_text()) if file.suffix == ".md" else _python(file.read_text())
    for first_line, text in texts:
        for word, pattern in _FOUND.items():
            for match in pattern.finditer(text):
                line = first_line + text.count("\n", 0, match.start())
                yield f"{name}:{line}: {match.group().split(chr(10))[0]!r}: {word}; write: {WORDS[word][1]}"


def _page(text: str) -> Iterator[tuple[int, str]]:
    """The text of a page, line by line in its place, without code, links and comments."""
    text = _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    for number, paragraph in _paragraphs(text):
        yield number, re.sub(r"(?m)^[ >*|#-]+", lambda match: "" if match.start() == 0 else match.group(), paragraph)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Runs of lines, each list item and table row by itself, with the number of their first line."""
    lines, first = list[str](), 1
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or re.match(r"\s*([-*|#]|\d+\.) ?", line):
            if lines:
                yield first, "\n".join(lines)
            lines, first = [line], number
        else:
            lines.append(line)
    if lines:
        yield first, "\n".join(lines)


def _python(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            for number, paragraph in _paragraphs(_CODE.sub("code", node.value)):
                yield node.lineno + number - 1, re.sub(r"^\s*(\w+: )?", "", paragraph)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
