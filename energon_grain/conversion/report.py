"""What `convert_dataset` says while it runs and when it is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Container = Literal["tar", "array-record"]
Compression = Literal["none", "zstd"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionProgress:
    """How far a conversion is.

    Attributes:
        stage: `convert` while shards are written, `index` while the new dataset is indexed.
        shards_done: Shards written, or indexed, so far; those of an interrupted run included.
        shards_total: Shards of the dataset.
        samples: Samples in these shards so far.
        bytes_done: Size of the shards done so far: of the old ones while shards are written, of the new ones then.
        bytes_total: Size of all of them.
    """

    stage: Literal["convert", "index"]
    shards_done: int
    shards_total: int
    samples: int
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionReport:
    """What a conversion wrote.

    Attributes:
        source: Path or URL of the dataset that was read.
        target: The new dataset.
        container: Kind of its shards.
        shard_counts: Samples of each of its shards.
        source_bytes: Size of the old shards.
        target_bytes: Size of the new shards.
        shards_reused: Shards that an interrupted run had written already.
        verified: Whether what was written was read back and compared.
        notes: What the caller should know though it is no error.
        elapsed_s: Wall-clock time.
    """

    source: str
    target: Path
    container: Container
    shard_counts: dict[str, int]
    source_bytes: int
    target_bytes: int
    shards_reused: int
    verified: bool
    notes: tuple[str, ...]
    elapsed_s: float

    @property
    def samples(self) -> int:
        """Samples in all shards."""
        return sum(self.shard_counts.values())
