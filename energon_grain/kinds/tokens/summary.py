"""What `energon-grain info` says of an indexed dataset of Megatron."""

from __future__ import annotations

import os

from energon_grain.kinds.tokens.source import TokenSource
from energon_grain.prepare.summary import TableSummary


def summarize_tokens(path: str | os.PathLike[str]) -> TableSummary:
    """Describe an indexed dataset of Megatron. Raises EnergonGrainError as `TokenSource` does."""
    tokens = TokenSource(path)
    return TableSummary(
        path=tokens.path,
        files=1,
        row_groups=None,
        group_word="",
        are_blocks=False,
        samples=len(tokens),
        size_bytes=tokens.size_bytes,
        content_id=tokens.content_id,
        columns={"tokens": f"list of {tokens.type}"},
        measured={},
        stale_columns=(),
        row_group_bytes=(0, 0),
    )
