"""JSONL files as a kind of data."""

from __future__ import annotations

from typing import Any

from energon_grain.kinds.jsonl.source import PART, JsonlFileStore, JsonlRows
from energon_grain.sources.kinds import Described, IndexProgress, Kind, LintAsk, Opened
from energon_grain.sources.source import PartFilter


def _open(location: str, parts: PartFilter) -> Opened:
    return Opened(rows=JsonlRows(location, parts=parts), part_names=(PART,), decoded="always")


def _summary(location: str) -> Described:
    from energon_grain.kinds.jsonl.summary import summarize_jsonl

    return summarize_jsonl(location)


def _lint(location: str, ask: LintAsk) -> Any:
    from energon_grain.kinds.jsonl.lint import lint_jsonl

    return lint_jsonl(location, ask)


def _index(location: str, progress: IndexProgress) -> Described:
    from energon_grain.kinds.jsonl.prepare import prepare_jsonl

    return prepare_jsonl(location, progress=progress)


def _plan(location: str) -> Described:
    from energon_grain.kinds.jsonl.prepare import plan_jsonl

    return plan_jsonl(location)


JSONL = Kind(
    name="jsonl",
    described="a JSONL file",
    open=_open,
    endings=(".jsonl",),
    store=JsonlFileStore,
    summary=_summary,
    lint=_lint,
    index=_index,
    index_plan=_plan,
)
