"""Large indices without tars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from energon_grain.formats.columnar_header import columnar_folder
from energon_grain.formats.nv_meta import DatasetInfo, write_info
from energon_grain.formats.scan import ShardScan
from energon_grain.formats.splits import SplitConfig, write_split_config
from energon_grain.prepare.columnar_build import write_columnar

_SHARD = 1 << 14


@pytest.fixture
def made_up(tmp_path: Path) -> Callable[..., Path]:
    """`made_up(name, n, seed)` makes up the index of a dataset with n keys in an order of its own."""

    def make(name: str, count: int, seed: int = 0) -> Path:
        root = tmp_path / name
        runs = np.split(np.random.default_rng(seed).permutation(count), range(_SHARD, count, _SHARD))
        counts = {f"s{place}.tar": len(run) for place, run in enumerate(runs)}
        columnar_folder(root).mkdir(parents=True)
        write_info(root, DatasetInfo(shard_counts=counts))
        write_split_config(root / ".nv-meta" / "split.yaml", SplitConfig(split_parts={"train": tuple(counts)}))
        write_columnar(columnar_folder(root), list(counts), _scans(runs), unique_keys=True)
        return root

    return make


def _scans(runs: list[np.ndarray]) -> Iterator[ShardScan]:
    for run in runs:
        keys = [b"key-%d" % number for number in run.tolist()]  # of several lengths
        count = len(keys)
        starts = np.arange(count + 1) * 1536
        yield ShardScan(
            size_bytes=int(starts[-1]) + 1024,
            sample_start=starts,
            part_start=np.arange(count + 1),
            part_names=("bin",),
            part_name=np.zeros(count, np.int32),
            part_offset=starts[:-1] + 512,
            part_size=np.full(count, 1000),
            key_start=np.concatenate([[0], np.cumsum([len(key) for key in keys])]),
            key_bytes=np.frombuffer(b"".join(keys), np.uint8),
        )
