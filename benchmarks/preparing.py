"""Time `prepare` as a user runs it: the whole process, over hard links to the shards, without an existing index."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.child import serve
from benchmarks.datasets import link


def prepare(folder: str, samples: int, program: Sequence[str], options: Sequence[str]) -> dict[str, Any]:
    """Run `program prepare OPTIONS` and return how many samples per second it indexed, including start-up."""
    target = Path(tempfile.mkdtemp(prefix="prepare-", dir=Path(folder).parent))
    try:
        link(Path(folder), target)
        started = time.perf_counter()
        done = subprocess.run([*program, "prepare", *options, str(target)], capture_output=True, text=True)
        elapsed = time.perf_counter() - started
        if done.returncode:
            raise RuntimeError(f"{program[0]} prepare exited with {done.returncode}:\n{done.stdout}{done.stderr}")
        for name in (".nv-meta/.info.json", ".nv-meta/split.yaml", ".nv-meta/dataset.yaml", "shard_000000.tar.idx"):
            if not (target / name).exists():
                raise RuntimeError(f"{program[0]} prepare did not write {name}")
        index_mb = sum(path.stat().st_size for path in target.rglob("*") if path.suffix != ".tar") / 1e6
    finally:
        shutil.rmtree(target)
    return {"samples_per_s": samples / elapsed, "seconds": elapsed, "index_mb": index_mb}


def prepare_join(folder: str, metadataset: str, samples: int, program: Sequence[str]) -> dict[str, Any]:
    """Run `program prepare METADATASET` without an existing join index, and return the rows per second it wrote."""
    with tempfile.NamedTemporaryFile(prefix="prepare-", suffix=".yaml", dir=folder) as copy:
        copy.write(Path(folder, metadataset).read_bytes())
        copy.flush()
        cache = Path(f"{copy.name}.cache")
        try:
            started = time.perf_counter()
            done = subprocess.run([*program, "prepare", copy.name], capture_output=True, text=True)
            elapsed = time.perf_counter() - started
            files = [path.stat() for path in cache.rglob("*") if path.is_file()]
            index_mb = sum({file.st_ino: file.st_size for file in files}.values()) / 1e6  # some files have two names
        finally:
            shutil.rmtree(cache, ignore_errors=True)
    if done.returncode or not index_mb:
        raise RuntimeError(f"{program[0]} prepare exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return {"samples_per_s": samples / elapsed, "seconds": elapsed, "index_mb": index_mb}


if __name__ == "__main__":
    serve(prepare=prepare, prepare_join=prepare_join)
