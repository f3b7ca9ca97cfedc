"""JPEGs per second that `prepare` inspects for media metadata, compared with Megatron-Energon, which decodes each.

    python -m benchmarks.media_headers [--samples 40000] [--side 256] [--energon-samples 2000]

Both commands run like user commands, with two processes, over the same tars, including start-up; and once without
metadata, to separate its cost. For Energon fewer samples are timed, enough for a few seconds. Processor seconds are
printed next to wall-clock seconds: on a busy machine only these are comparable.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.child import program
from benchmarks.machine import energon_program, peer_python
from benchmarks.resources import processor_s
from energon_grain.testing import write_tars
from energon_grain.testing.datasets import draw_picture, encode_picture

PROCESSES = "2"
_PICTURES = 64
_OPTIONS = ("--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml", "--num-workers", PROCESSES)
_MEDIA = "--media-metadata-by-extension"


def write(folder: Path, samples: int, side: int) -> None:
    """Write tars of JPEGs with captions; 64 different pictures alternate."""
    rng = np.random.default_rng(0)
    pictures = [encode_picture(draw_picture(rng, n % 10, (side, side + n)), "JPEG") for n in range(_PICTURES)]

    def rows() -> Iterator[dict[str, object]]:
        for number in range(samples):
            yield {"__key__": f"{number:09d}", "jpg": pictures[number % _PICTURES], "txt": f"picture {number}"}

    write_tars(folder, rows(), shards=8)


def time_prepare(program: Sequence[str], folder: Path, *options: str) -> tuple[float, float]:
    """Return the wall-clock and processor seconds of `prepare` over hard links to the tars."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as copy:
        for tar in folder.glob("*.tar"):
            (Path(copy) / tar.name).hardlink_to(tar)
        started, used = time.perf_counter(), processor_s(own=False)
        done = subprocess.run([*program, "prepare", copy, *_OPTIONS, *options], capture_output=True, text=True)
        seconds = time.perf_counter() - started, processor_s(own=False) - used
        if done.returncode:
            raise RuntimeError(f"{program[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return seconds


def main(
    samples: int = 40_000,
    side: Annotated[int, typer.Option(help="Height of the pictures.")] = 256,
    energon_samples: int = 2_000,
    rounds: int = 3,
) -> None:
    ours = [sys.executable, "-m", "energon_grain.cli"]
    contenders = [("energon-grain", ours, samples)]
    if peer_python() is not None:
        contenders.append(("Megatron-Energon", energon_program(), energon_samples))
    with tempfile.TemporaryDirectory(prefix="media-headers-") as folder:
        for name, command, count in contenders:
            tars = Path(folder) / name
            write(tars, count, side)
            times = [[time_prepare(command, tars, _MEDIA), time_prepare(command, tars)] for _ in range(rounds)]
            (seconds, used), (bare, bare_used) = np.median(np.array(times), axis=0)
            print(
                f"{name:16} {count:,} JPEGs, {side}²: {seconds:.2f} s with metadata, {bare:.2f} s without, "
                f"{count / seconds:,.0f} JPEGs/s; processor time per JPEG {used / count * 1e6:,.0f} µs with, "
                f"{bare_used / count * 1e6:,.0f} µs without; metadata alone: {count / (used - bare_used) * 2:,.0f} "
                f"JPEGs/s "
                "on two cores",
                flush=True,
            )


if __name__ == "__main__":
    program(main)
