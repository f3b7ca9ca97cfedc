"""How much memory sorting and joining the keys of large datasets takes: columnar indices are made up, without tars.

    python -m benchmarks.join_scale --keys 1e6 1e7 1e8 --order shuffled

Each step runs in a process of its own, whose highest resident memory is printed. 100 million keys take 25 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from energon_grain.formats.tar.scan import ShardScan

SHARD_SAMPLES = 250_000


def make_index(root: Path, keys: int, order: str, seed: int) -> None:
    """Write what `prepare` would write for `keys` samples of one 1,000-byte part; sorting the keys is part of it."""
    from energon_grain.formats.columnar_build import write_columnar
    from energon_grain.formats.columnar_header import columnar_folder
    from energon_grain.formats.nv_meta import DatasetInfo, write_info, write_uuid
    from energon_grain.formats.splits import SplitConfig, write_split_config

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
    from energon_grain.formats.tar.scan import ShardScan
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


def join(folder: Path, memory_mb: int) -> None:
    """Join the two datasets that `make_index` wrote in `folder`."""
    from energon_grain.prepare.join_build import build_join
    from energon_grain.prepare.join_members import JoinedDataset

    members = [JoinedDataset(folder / name, "train") for name in ("primary", "other")]
    build_join(members, folder / "meta.yaml.cache", memory_bytes=memory_mb << 20)


def measure(folder: Path, step: str, arguments: argparse.Namespace, keys: int) -> dict[str, float]:
    """Run a step in a process of its own; seconds, and the highest resident memory in MiB."""
    command = [sys.executable, "-m", "benchmarks.join_scale", "--step", step, "--folder", str(folder)]
    command += ["--keys", str(keys), "--order", arguments.order, "--memory-mb", str(arguments.memory_mb)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def run_step(arguments: argparse.Namespace) -> None:
    """Run one step here and print what it took."""
    started = time.perf_counter()
    if arguments.step == "join":
        join(arguments.folder, arguments.memory_mb)
    else:
        seed = 1 if arguments.step == "primary" else 2
        make_index(arguments.folder / arguments.step, int(arguments.keys[0]), arguments.order, seed)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mb": peak}))


def run_all(arguments: argparse.Namespace) -> None:
    """Measure all steps at all sizes and print a table."""
    for keys in map(int, arguments.keys):
        folder = Path(tempfile.mkdtemp(prefix="join-scale-", dir=arguments.scratch))
        try:
            for step in ("primary", "other", "join"):
                found = measure(folder, step, arguments, keys)
                print(f"{keys:>12,} keys {step:8} {found['seconds']:8.1f} s {found['peak_mb']:8.0f} MiB", flush=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--keys", type=float, nargs="+", default=[1e6, 1e7, 1e8])
    parser.add_argument("--order", choices=("sorted", "shuffled"), default="shuffled")
    parser.add_argument("--memory-mb", type=int, default=256)
    parser.add_argument("--scratch", default=None)
    parser.add_argument("--step", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    run_step(chosen) if chosen.step else run_all(chosen)
