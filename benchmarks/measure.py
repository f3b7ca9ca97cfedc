"""Samples per second of measuring a column, compared with a plain loop over the same tars and the same function.

    python -m benchmarks.measure [--samples 200000] [--words 200] [--rounds 3]

The loop reads tars with `tarfile`, like a hand-written script, and keeps the numbers in a list. All ways alternate in
one run, in wall-clock and processor seconds; the best of each is printed. The function counts words and takes a few
microseconds per sample, so the overhead is visible.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.child import program
from benchmarks.peers.samples import tar_samples
from benchmarks.resources import processor_s
from energon_grain import column_function, measure_dataset, open_columns
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars


def count_words(parts: dict[str, bytes]) -> int:
    """Count the words of one sample."""
    return len(parts["txt"].split())


@column_function(batched=True)
def count_words_of_many(samples: list[dict[str, bytes]]) -> list[int]:
    """Count the words of many samples."""
    return [len(parts["txt"].split()) for parts in samples]


def loop(folder: Path) -> int:
    """The loop of a script."""
    found = [count_words(parts) for path in sorted(folder.glob("*.tar")) for parts in tar_samples(str(path))]
    return sum(found)


def measure(folder: Path, name: str, workers: int) -> int:
    """The work of `energon-grain measure`."""
    measure_dataset(folder, {"words": f"benchmarks.measure:{name}"}, num_workers=workers)
    return int(open_columns(folder)["words"].sum())


def main(samples: int = 200_000, words: int = 200, rounds: int = 3) -> None:
    rows = (
        {"__key__": f"{number:09d}", "txt": "word " * (number % words + 1), "cls": number % 10}
        for number in range(samples)
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "data"
        write_tars(folder, rows, shards=8)
        prepare_dataset(folder, split_ratio=(1,), crude=True)
        ways: dict[str, Callable[[], int]] = {
            "a loop over tarfile": partial(loop, folder),
            "measure, no processes": partial(measure, folder, "count_words", 0),
            "measure, lists of samples": partial(measure, folder, "count_words_of_many", 0),
            "measure, 2 processes": partial(measure, folder, "count_words", 2),
        }
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        sums: set[int] = set()
        for _ in range(rounds):
            for name, way in ways.items():
                begun_s, used_s = time.perf_counter(), processor_s()
                sums.add(way())
                took[name].append((time.perf_counter() - begun_s, processor_s() - used_s))
        assert len(sums) == 1, "all ways count the same words"
    print(f"{samples:,} samples\n\n| way | samples/s | µs of a processor per sample |\n|---|---|---|")
    for name, seconds in took.items():
        clock, processor = map(min, zip(*seconds, strict=True))
        print(f"| {name} | {samples / clock:,.0f} | {processor / samples * 1e6:.1f} |")


if __name__ == "__main__":
    program(main)
