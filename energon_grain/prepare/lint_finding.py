"""What lint finds wrong, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class LintFinding:
    """One thing that is wrong.

    Attributes:
        shard: The shard, or "" where it is about the dataset.
        key: The sample, or None where it is about the shard.
        reason: What is wrong and what to do.
    """

    shard: str
    key: str | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LintProgress:
    """How far lint is: shards compared with their index, or samples decoded."""

    stage: Literal["index", "samples"]
    done: int
    total: int
    findings: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LintReport:
    """What lint looked at and found.

    Attributes:
        root: The dataset, its path or URL.
        shards: Shards that were compared with their indices.
        samples: Samples that were decoded.
        findings: In the order of shards, those about indices first.
        notes: What was not looked at, and why.
    """

    root: str
    shards: int
    samples: int
    findings: tuple[LintFinding, ...]
    notes: tuple[str, ...]
