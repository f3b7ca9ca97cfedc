"""Rates with 1 to 16 threads and worker processes: `python -m benchmarks.cores [--only text,jpeg] [--workers 1,2,4]`.

Prints a Markdown table for each kind of data: samples per second, the factor to the program without workers, and cores
used. Texts are typed samples of 1 KB without hooks, blobs are crude samples of 100 KB with a cooker, JPEGs are decoded
to uint8 of 256 x 256, and videos are clips of one second from H.264 at 640 x 360, scaled to 160 x 90. Every measurement
runs in a fresh process, warm, with the steady consumer of the other benchmarks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import energon_grain
from benchmarks import datasets, ours
from benchmarks.child import ask, program
from benchmarks.media import made_dataset, of_energon
from benchmarks.resources import CACHE, warm
from benchmarks.steady import steady

KINDS = {
    "text": ("text", "plain"),
    "text-crude": ("text-crude", "crude-text"),
    "blobs": ("bucket", "crude-blob"),
    "jpeg": ("jpeg", "rgb8"),
    "video": ("video", ""),
}
"""By kind of data: its folder in the cache, and the program that reads it."""


def rate(kind: str, folder: str, worker_type: str, workers: int, seconds: float) -> dict[str, float]:
    """Return samples per second, and cores used by this process without its worker processes."""
    energon_grain.DefaultTaskEncoder.thread_safe = True  # the programs keep no state in their encoders

    def make() -> Any:
        if kind == "video":
            return of_energon("energon_grain", kind, folder, workers, worker_type)
        return iter(ours.build_loader(folder, KINDS[kind][1], workers, worker_type=worker_type))

    def weigh(batch: Any) -> tuple[int, int]:
        return (batch, 0) if kind == "video" else ours.weigh(batch)

    found = steady(make, weigh, warmup_s=1.0, seconds=seconds)
    return {"rate": found["samples_per_s"], "own_cores": found["samples_per_s"] / found["samples_per_cpu_s"]}


def prepared(kind: str, cache: Path) -> Path:
    """Return the folder of a kind of data, made on first use."""
    if kind == "video":
        return made_dataset(cache, "video")
    name = KINDS[kind][0]
    datasets.build(cache, [name.removesuffix("-crude")])
    return cache / name


def main(
    only: str = ",".join(KINDS),
    workers: str = "1,2,4,8,16",
    worker_types: str = "thread,process",
    seconds: float = 2.0,
    cache: Path = CACHE,
) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    cores = os.cpu_count() or 1
    print(f"{cores} cores")
    for kind in only.split(","):
        folder = prepared(kind, cache)
        warm(folder)
        print(
            f"\n| {kind} | samples/s | factor | cores of the program without worker processes |\n|---|---|---|---|",
            flush=True,
        )
        base = 0.0
        pools = [(each, int(count)) for each in worker_types.split(",") for count in workers.split(",")]
        for worker_type, count in [("thread", 0), *(pool for pool in pools if pool[1] <= cores)]:
            found = ask(
                "cores", "rate", kind=kind, folder=str(folder), worker_type=worker_type, workers=count, seconds=seconds
            )
            base = base or found["rate"]
            name = f"{count} {'threads' if worker_type == 'thread' else 'processes'}" if count else "no workers"
            rate, factor = f"{found['rate']:,.0f}", f"{found['rate'] / base:.2f}"
            print(f"| {name} | {rate} | {factor} | {found['own_cores']:.2f} |", flush=True)


if __name__ == "__main__":
    program(main, rate=rate)
