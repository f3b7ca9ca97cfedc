"""Time of `prepare` per shard, for many tiny shards.

    python -m benchmarks.many_shards --shards 10_000

Prints the time of `prepare_dataset` in a separate process, and of a second run that only rewrites the indexes.
Processor time is more reliable if other programs run at the same time; it excludes waiting for the disk.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.child import ask, program
from benchmarks.resources import processor_s
from energon_grain.testing import write_tars


def write_shards(root: Path, shards: int, in_folder: int = 1000) -> None:
    """Write shards of one sample each, `in_folder` per folder."""
    for number in range(shards):
        sample = {"__key__": f"{number:09d}", "txt": "ab"}
        [path] = write_tars(root, [sample], name=f"{number // in_folder:04d}/{number:06d}.tar")
        os.truncate(path, 2048)  # most of a tar of one small file is padding


def prepare(root: str, again: bool, sqlite: bool) -> dict[str, float]:
    """Prepare the dataset in this process, and return the time and memory."""
    from energon_grain.prepare import prepare_dataset

    started = time.perf_counter()
    prepare_dataset(root, crude=not again, tar_index_only=again, sqlite=sqlite)
    seconds, peak = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "cpu_s": processor_s(), "peak_mb": peak / 1024}


def main(shards: int = 10_000, scratch: str | None = None, sqlite: bool = True) -> None:
    with tempfile.TemporaryDirectory(prefix="many-shards-", dir=scratch) as root:
        write_shards(Path(root), shards)
        for again in (False, True):
            found = ask("many_shards", "prepare", root=root, again=again, sqlite=sqlite)
            wall_ms, cpu_ms = (found[name] / shards * 1000 for name in ("seconds", "cpu_s"))
            what = "indexes again" if again else "prepare"
            print(
                f"{what:14} {wall_ms:6.3f} ms/shard, {cpu_ms:6.3f} ms/shard of a processor, {found['peak_mb']:6.0f} MiB"
            )


if __name__ == "__main__":
    program(main, prepare=prepare)
