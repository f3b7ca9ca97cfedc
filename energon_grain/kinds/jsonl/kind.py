# SPDX-License-Identifier: Apache-2.0
"""JSONL files as a kind of data."""

from __future__ import annotations

from typing import Any

from energon_grain.kinds.jsonl.field import read_field
from energon_grain.kinds.jsonl.hint import hint_for_lines
from energon_grain.kinds.jsonl.prepare import JsonlReport, plan_jsonl, prepare_jsonl
from energon_grain.kinds.jsonl.source import PART, JsonlFileStore, JsonlRows
from energon_grain.kinds.jsonl.streamed import ENDINGS, runs_of_lines
from energon_grain.kinds.jsonl.summary import summarize_jsonl
from energon_grain.sources.kinds import IndexProgress, Kind, LintOptions, Opened, Streamed
from energon_grain.sources.source import PartFilter


def _open(location: str, parts: PartFilter) -> Opened:
    return Opened(rows=JsonlRows(location, parts=parts), part_names=(PART,), decoded="always")


def _lint(location: str, ask: LintOptions) -> Any:
    from energon_grain.kinds.jsonl.lint import lint_jsonl  # imports the general checks, which takes 30 ms

    return lint_jsonl(location, ask)


def _index(location: str, progress: IndexProgress) -> JsonlReport:
    return prepare_jsonl(location, progress=progress)


JSONL = Kind(
    name="jsonl",
    described="a JSONL file",
    open=_open,
    endings=(".jsonl",),
    store=JsonlFileStore,
    summary=summarize_jsonl,
    lint=_lint,
    index=_index,
    index_plan=plan_jsonl,
    hint=hint_for_lines,
    has_plain_bytes=True,
    read_field=read_field,
    streamed=Streamed(endings=ENDINGS, runs=runs_of_lines),
)
