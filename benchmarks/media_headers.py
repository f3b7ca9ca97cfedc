"""Metadata of media: how many JPEGs a second `prepare` looks at, beside Megatron-Energon, which decodes each.

    python -m benchmarks.media_headers [--samples 40000] [--side 256] [--energon-samples 2000]

Both commands run as users run them, with two processes, over the same tars, start-up included; and once without
metadata, so that what these cost by themselves can be told. Of Energon fewer samples are timed, as many as take a few
seconds. Seconds of processors are told beside those of the clock: on a busy machine only they can be compared.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.machine import energon_program, peer_python
from energon_grain.testing import write_tars
from energon_grain.testing.datasets import draw_picture, encode_picture

PROCESSES = "2"
_PICTURES = 64
_OPTIONS = ("--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml", "--num-workers", PROCESSES)
_MEDIA = "--media-metadata-by-extension"


def write(folder: Path, samples: int, side: int) -> None:
    """Write tars of JPEGs with captions; 64 different pictures take turns."""
    rng = np.random.default_rng(0)
    pictures = [encode_picture(draw_picture(rng, n % 10, (side, side + n)), "JPEG") for n in range(_PICTURES)]

    def rows() -> Iterator[dict[str, object]]:
        for number in range(samples):
            yield {"__key__": f"{number:09d}", "jpg": pictures[number % _PICTURES], "txt": f"picture {number}"}

    write_tars(folder, rows(), shards=8)


def time_prepare(program: Sequence[str], folder: Path, *options: str) -> tuple[float, float]:
    """Seconds that `prepare` takes over hard links to the tars, of the clock and of processors."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as copy:
        for tar in folder.glob("*.tar"):
            (Path(copy) / tar.name).hardlink_to(tar)
        started, used = time.perf_counter(), _processor_seconds()
        done = subprocess.run([*program, "prepare", copy, *_OPTIONS, *options], capture_output=True, text=True)
        seconds = time.perf_counter() - started, _processor_seconds() - used
        if done.returncode:
            raise RuntimeError(f"{program[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return seconds


def _processor_seconds() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--side", type=int, default=256, help="height of the pictures")
    parser.add_argument("--energon-samples", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    ours = [sys.executable, "-m", "energon_grain.cli"]
    contenders = [("energon-grain", ours, given.samples)]
    if peer_python() is not None:
        contenders.append(("Megatron-Energon", energon_program(), given.energon_samples))
    work = Path(tempfile.mkdtemp(prefix="media-headers-"))
    try:
        for name, program, samples in contenders:
            write(work / name, samples, given.side)
            rounds = np.array(
                [
                    [time_prepare(program, work / name, _MEDIA), time_prepare(program, work / name)]
                    for _ in range(given.rounds)
                ]
            )
            (seconds, used), (bare, bare_used) = np.median(rounds, axis=0)
            print(
                f"{name:16} {samples:,} JPEGs, {given.side}²: {seconds:.2f} s with metadata, {bare:.2f} s without, "
                f"{samples / seconds:,.0f} a second; of processors {used / samples * 1e6:,.0f} µs a JPEG with, "
                f"{bare_used / samples * 1e6:,.0f} µs without, {samples / (used - bare_used) * 2:,.0f} a second on two "
                "cores for metadata alone",
                flush=True,
            )
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
