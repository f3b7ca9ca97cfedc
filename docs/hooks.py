"""Hooks of mkdocs: the version in the header, and sections that list a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent


def on_config(config: Any) -> None:
    """Read the version, and expand navigation entries such as `recipes/`."""
    version = (DOCS.parent / "energon_grain" / "_version.py").read_text(
        encoding="utf-8"
    )
    config.extra["release"] = re.search(r'__version__ = "(.+)"', version)[1]  # type: ignore[index]
    config.nav = _expanded(config.nav)


def _expanded(entries: list[Any]) -> list[Any]:
    found = list[Any]()
    for entry in entries:
        (title, target), *_ = (
            entry.items() if isinstance(entry, dict) else [(None, entry)]
        )
        if isinstance(target, list):
            found.append({title: _expanded(target)})
        elif not target.endswith("/"):
            found.append(entry)
        elif pages := _pages(target):
            found.append({title: pages})
    return found


def _pages(folder: str) -> list[Any]:
    pages = sorted(
        (DOCS / folder).glob("*.md"),
        key=lambda page: (page.name != "index.md", _title(page)),
    )
    return [{_title(page): f"{folder}{page.name}"} for page in pages]


def _title(page: Path) -> str:
    heading = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return heading[1].strip() if heading else page.stem
