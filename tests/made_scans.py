"""Scans of shards that do not exist."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from energon_grain.formats.tar.scan import ShardScan


def scan_of(
    keys: Sequence[bytes], parts: Sequence[Sequence[str]] | None = None, size_bytes: int = 1 << 20
) -> ShardScan:
    """Make a scan by hand: sample i has the parts parts[i], or `jpg` and `txt`, each of one block."""
    parts = [("jpg", "txt")] * len(keys) if parts is None else parts
    names = list(dict.fromkeys(part for of_sample in parts for part in of_sample))
    counts = [len(of_sample) for of_sample in parts]
    part_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return ShardScan(
        size_bytes=size_bytes,
        sample_start=part_start * 1024,
        part_start=part_start,
        part_names=tuple(names),
        part_name=np.array([names.index(part) for of_sample in parts for part in of_sample], dtype=np.int32),
        part_offset=np.arange(part_start[-1]) * 1024 + 512,
        part_size=np.arange(part_start[-1]) % 500,
        key_start=np.concatenate([[0], np.cumsum([len(key) for key in keys])]).astype(np.int64),
        key_bytes=np.frombuffer(b"".join(keys), np.uint8),
    )
