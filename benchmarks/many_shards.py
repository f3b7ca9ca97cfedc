"""How long `prepare` takes for a shard, where shards are many and tiny.

    python -m benchmarks.many_shards --shards 10_000

Prints the time of `prepare_dataset` in a process of its own, and of a second run that makes only the indices anew. The
time of processors says more where other programs run beside it; what it lacks is waiting for the disk.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path


def write_shards(root: Path, shards: int, in_folder: int = 1000) -> None:
    """Write shards of one sample each, `in_folder` to a folder."""
    for number in range(shards):
        folder = root / f"{number // in_folder:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            member = tarfile.TarInfo(f"{number:09d}.txt")
            member.size = 2
            tar.addfile(member, io.BytesIO(b"ab"))
        (folder / f"{number:06d}.tar").write_bytes(buffer.getvalue()[:2048])


def prepare(root: Path, again: bool, sqlite: bool) -> None:
    """Prepare the dataset here, and print what that took."""
    from energon_grain.prepare import prepare_dataset

    started = time.perf_counter()
    prepare_dataset(root, crude=not again, tar_index_only=again, sqlite=sqlite)
    seconds = time.perf_counter() - started
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(each.ru_utime + each.ru_stime for each in used)
    print(json.dumps({"seconds": seconds, "cpu_s": cpu_s, "peak_mb": used[0].ru_maxrss / 1024}))


def main() -> None:
    """Write, prepare twice, print and remove."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--scratch", default=None)
    parser.add_argument("--no-sqlite", dest="sqlite", action="store_false")
    parser.add_argument("--run", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run is not None:
        return prepare(chosen.run, chosen.again, chosen.sqlite)
    root = Path(tempfile.mkdtemp(prefix="many-shards-", dir=chosen.scratch))
    try:
        write_shards(root, chosen.shards)
        for again in (False, True):
            command = [sys.executable, "-m", "benchmarks.many_shards", "--run", str(root)]
            command += ["--again"] * again + ["--no-sqlite"] * (not chosen.sqlite)
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            wall_ms, cpu_ms = (found[name] / chosen.shards * 1000 for name in ("seconds", "cpu_s"))
            what = "indices anew" if again else "prepare"
            print(f"{what:14} {wall_ms:6.3f} ms a shard, {cpu_ms:6.3f} ms of a processor, {found['peak_mb']:6.0f} MiB")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
