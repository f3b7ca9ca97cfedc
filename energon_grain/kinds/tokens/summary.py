# SPDX-License-Identifier: Apache-2.0
"""The summary of a Megatron indexed dataset that `energon-grain info` prints."""

from __future__ import annotations

import os

from energon_grain.kinds.tokens.source import TokenRows
from energon_grain.prepare.summary import TableSummary
from energon_grain.sources.rows import selected


def summarize_tokens(path: str | os.PathLike[str]) -> TableSummary:
    """Describe a Megatron indexed dataset. Raises EnergonGrainError as `TokenRows` does."""
    tokens = TokenRows(path)
    source = selected(tokens)
    return TableSummary(
        path=tokens.path,
        files=1,
        row_groups=None,
        group_word="",
        are_blocks=False,
        samples=len(source),
        size_bytes=tokens.size_bytes,
        content_id=source.content_id,
        columns={"tokens": f"list of {tokens.type}"},
        measured={},
        stale_columns=(),
        row_group_bytes=(0, 0),
    )
