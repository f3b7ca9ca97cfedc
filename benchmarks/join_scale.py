"""Memory for sorting and joining the keys of large datasets, with synthetic columnar indexes without tars.

    python -m benchmarks.join_scale --keys 1e6,1e7,1e8 --order shuffled

Each step runs in a separate process and prints its highest resident memory. 100 million keys need 25 GB of disk.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from benchmarks.child import ask, program

if TYPE_CHECKING:
    from energon_grain.formats.scan import ShardScan

SHARD_SAMPLES = 250_000


def make_index(root: Path, keys: int, order: str, seed: int) -> None:
    """Write the index that `prepare` writes for `keys` samples of one 1,000-byte part, including the sorted keys."""
    from energon_grain.formats.columnar_header import columnar_folder
    from energon_grain.formats.nv_meta import DatasetInfo, write_info, write_uuid
    from energon_grain.formats.splits import SplitConfig, write_split_config
    from energon_grain.prepare.columnar_build import write_columnar

    counts = {
        f"shard_{begin // SHARD_SAMPLES:06d}.tar": min(SHARD_SAMPLES, keys - begin)
        for begin in range(0, keys, SHARD_SAMPLES)
    }
    (root / ".nv-meta").mkdir(parents=True)
    write_info(root, DatasetInfo(shard_counts=counts))
    write_split_config(root / ".nv-meta" / "split.yaml", SplitConfig(split_parts={"train": tuple(counts)}))
    write_uuid(root)
    columnar_folder(root).mkdir()
    write_columnar(columnar_folder(root), list(counts), _scans(keys, order, seed), unique_keys=True)


def _scans(keys: int, order: str, seed: int) -> Iterator[ShardScan]:
    from energon_grain.formats.scan import ShardScan
    from energon_grain.samplers.permutation import permute

    for begin in range(0, keys, SHARD_SAMPLES):
        numbers = np.arange(begin, min(begin + SHARD_SAMPLES, keys), dtype=np.int64)
        count = len(numbers)
        if order == "shuffled":
            numbers = permute(numbers, keys, seed)
        digits = (numbers[:, None] // 10 ** np.arange(11, -1, -1) % 10 + ord("0")).astype(np.uint8)
        sample_start = np.arange(count + 1, dtype=np.int64) * 1536
        yield ShardScan(
            size_bytes=int(sample_start[-1]) + 1024,
            sample_start=sample_start,
            part_start=np.arange(count + 1, dtype=np.int64),
            part_names=("bin",),
            part_name=np.zeros(count, np.int32),
            part_offset=sample_start[:-1] + 512,
            part_size=np.full(count, 1000, np.int64),
            key_start=np.arange(count + 1, dtype=np.int64) * digits.shape[1],
            key_bytes=digits.reshape(-1),
        )


def step(folder: str, name: str, keys: int, order: str, memory_mb: int) -> dict[str, float]:
    """Make one of the two indexes in a folder, or join them. Returns seconds and the highest resident memory in MiB."""
    from energon_grain.kinds.joins.build import build_join
    from energon_grain.kinds.joins.members import JoinedDataset

    started, root = time.perf_counter(), Path(folder)
    if name == "join":
        members = [JoinedDataset(root / each, "train") for each in ("primary", "other")]
        build_join(members, root / "meta.yaml.cache", memory_bytes=memory_mb << 20)
    else:
        make_index(root / name, keys, order, 1 if name == "primary" else 2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": time.perf_counter() - started, "peak_mb": peak}


def main(
    keys: str = "1e6,1e7,1e8",
    order: Literal["sorted", "shuffled"] = "shuffled",
    memory_mb: int = 256,
    scratch: str | None = None,
) -> None:
    for count in map(int, map(float, keys.split(","))):
        with tempfile.TemporaryDirectory(prefix="join-scale-", dir=scratch) as folder:
            for name in ("primary", "other", "join"):
                arguments = {"folder": folder, "name": name, "keys": count, "order": order, "memory_mb": memory_mb}
                found = ask("join_scale", "step", **arguments)
                print(f"{count:>12,} keys {name:8} {found['seconds']:8.1f} s {found['peak_mb']:8.0f} MiB", flush=True)


if __name__ == "__main__":
    program(main, step=step)
