"""Large indices without tars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from energon_grain.formats.columnar_build import write_columnar
from energon_grain.formats.columnar_header import columnar_folder
from energon_grain.formats.nv_meta import DatasetInfo, write_info
from energon_grain.formats.splits import SplitConfig, write_split_config
from energon_grain.formats.tar.scan import ShardScan
from energon_grain.prepare.join_input import JoinInput, read_join_input

_SHARD = 1 << 14


@pytest.fixture
def join_of(tmp_path: Path) -> Callable[[int], list[JoinInput]]:
    """`join_of(n)` makes up the indices of two datasets with the same n keys in different orders."""

    def make(count: int) -> list[JoinInput]:
        for seed, name in enumerate(("primary", "other")):
            root = tmp_path / name
            numbers = np.random.default_rng(seed).permutation(count)
            runs = np.split(numbers, range(_SHARD, count, _SHARD))
            counts = {f"s{place}.tar": len(run) for place, run in enumerate(runs)}
            columnar_folder(root).mkdir(parents=True)
            write_info(root, DatasetInfo(shard_counts=counts))
            write_split_config(root / ".nv-meta" / "split.yaml", SplitConfig(split_parts={"train": tuple(counts)}))
            write_columnar(columnar_folder(root), list(counts), _scans(runs), unique_keys=True)
        return [read_join_input(tmp_path / name, "train") for name in ("primary", "other")]

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
