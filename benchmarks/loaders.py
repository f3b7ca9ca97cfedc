"""Measurements of a loader, with the same code for energon-grain and for Megatron-Energon.

`programs` names the module that builds the loaders: `benchmarks.ours` or `benchmarks.peers.energon`. It is imported
before the clock starts.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.child import serve
from benchmarks.resources import open_files, resident_mb
from benchmarks.steady import steady


def throughput(
    programs: str,
    folder: str,
    warmup_s: float,
    seconds: float,
    program: str,
    workers: int = 0,
    worker_type: str = "",
    blocks: bool = True,
    metadataset: str = "",
) -> dict[str, Any]:
    """Measure the steady rate of a program over a dataset, or over the file `metadataset` in a folder of datasets."""
    module = importlib.import_module(programs)

    def make() -> Iterator[Any]:
        path = str(Path(folder, metadataset))
        return iter(module.build_loader(path, program, workers, worker_type=worker_type, blocks=blocks))

    return steady(make, module.weigh, warmup_s=warmup_s, seconds=seconds)


def first_batch(programs: str, folder: str, batches: int = 200, metadataset: str = "") -> dict[str, Any]:
    """Measure the time from imports to the first batch, and memory and open files beyond imports after more batches."""
    module = importlib.import_module(programs)
    memory_before, files_before = resident_mb(), open_files()
    started = time.perf_counter()
    loader = iter(module.build_loader(str(Path(folder, metadataset)), "plain", 0))
    next(loader)
    first_batch_s = time.perf_counter() - started
    files = 0
    for _ in range(batches):
        module.weigh(next(loader))
        files = max(files, open_files() - files_before)
    return {
        "first_batch_s": first_batch_s,
        "memory_mb": resident_mb() - memory_before,
        "open_files": files,
        "imports_mb": memory_before,
    }


def import_time(modules: Sequence[str]) -> dict[str, Any]:
    """Measure the seconds to import modules in a fresh interpreter."""
    started = time.perf_counter()
    for module in modules:
        importlib.import_module(module)
    return {"import_s": time.perf_counter() - started}


def resume(
    programs: str, folder: str, program: str, batches: int, workers: int, shuffle_buffer: int = 100
) -> dict[str, Any]:
    """Read `batches`, save, restore into a new loader, and wait for its first batch.

    `restore_s` starts when the new loader has been built. `exact`: the batch equals the next one of the first loader.
    """
    module = importlib.import_module(programs)
    options = {"shuffle_buffer": shuffle_buffer, "savable": True}
    loader = module.build_loader(folder, program, workers, **options)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    started = time.perf_counter()
    state = module.save(loader)
    save_s = time.perf_counter() - started
    expected = list(next(iterator).__key__)
    del iterator

    started = time.perf_counter()
    fresh = module.build_loader(folder, program, workers, **options)
    build_s = time.perf_counter() - started
    started = time.perf_counter()
    module.restore(fresh, state)
    got = list(next(iter(fresh)).__key__)
    restore_s = time.perf_counter() - started
    return {
        "state_bytes": module.state_bytes(state),
        "save_s": save_s,
        "build_s": build_s,
        "restore_s": restore_s,
        "exact": got == expected,
    }


if __name__ == "__main__":
    serve(throughput=throughput, first_batch=first_batch, import_time=import_time, resume=resume)
