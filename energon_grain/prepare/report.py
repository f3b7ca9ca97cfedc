"""What `prepare_dataset` says while it runs and when it is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareProgress:
    """How far a `prepare` is.

    Attributes:
        stage: `scan` while shards are read, `index` while the files of the index are written, `commit` at the end.
        shards_done: Shards scanned so far, those of an interrupted run included.
        shards_total: Shards of the dataset.
        samples: Samples found so far.
        bytes_done: Size of the shards scanned so far.
        bytes_total: Size of all shards; 0 while shards in an object store are scanned.
    """

    stage: Literal["scan", "index", "commit"]
    shards_done: int
    shards_total: int
    samples: int
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareReport:
    """What a `prepare` found and wrote.

    Attributes:
        root: The dataset; a URL as text.
        shard_counts: Samples of each shard, in the order of `.info.json`.
        size_bytes: Size of all shards.
        part_names: Distinct part names in order of first appearance, at most 50 for a shard.
        split_parts: Shards of each split part; empty where only indices were written.
        written: Paths of the files that were put in place, relative to `root`, without those of the columnar index.
        shards_reused: Shards that an interrupted run had scanned already.
        notes: What the caller should know though it is no error.
        elapsed_s: Wall-clock time, without what `choose_definition` took, where a person types.
    """

    root: Path | str
    shard_counts: dict[str, int]
    size_bytes: int
    part_names: tuple[str, ...]
    split_parts: dict[str, tuple[str, ...]]
    written: tuple[str, ...]
    shards_reused: int
    notes: tuple[str, ...]
    elapsed_s: float

    @property
    def samples(self) -> int:
        """Samples in all shards."""
        return sum(self.shard_counts.values())

    def samples_of(self, split_part: str) -> int:
        """Samples in the shards of a split part."""
        return sum(self.shard_counts[shard] for shard in self.split_parts[split_part])
