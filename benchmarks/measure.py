"""Measuring a column: samples a second, beside a plain loop over the same tars that calls the same function.

    python -m benchmarks.measure [--samples 200000] [--words 200] [--rounds 3]

The loop reads tars by `tarfile`, as a script would that somebody writes for this, and keeps the numbers in a list. All
ways take turns in one run, in seconds of the clock and of processors; the best of each is told. The function counts
words, some microseconds a sample, so that what all the rest takes shows.
"""

from __future__ import annotations

import argparse
import resource
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from energon_grain import column_function, measure_dataset, open_columns
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars


def count_words(parts: dict[str, bytes]) -> int:
    """One sample."""
    return len(parts["txt"].split())


@column_function(batched=True)
def count_words_of_many(samples: list[dict[str, bytes]]) -> list[int]:
    """Many at once."""
    return [len(parts["txt"].split()) for parts in samples]


def loop(folder: Path) -> int:
    """What a script does."""
    found: list[int] = []
    for path in sorted(folder.glob("*.tar")):
        parts: dict[str, bytes] = {}
        key = None
        with tarfile.open(path) as tar:
            for member in tar:
                name, _, part = member.name.partition(".")
                if key is not None and name != key:
                    found.append(count_words(parts))
                    parts = {}
                key, file = name, tar.extractfile(member)
                assert file is not None
                parts[part] = file.read()
        found.append(count_words(parts))
    return sum(found)


def measure(folder: Path, name: str, workers: int) -> int:
    """What `energon-grain measure` does."""
    measure_dataset(folder, {"words": f"benchmarks.measure:{name}"}, num_workers=workers)
    return int(open_columns(folder)["words"].sum())


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    def rows() -> Iterator[dict[str, object]]:
        for number in range(options.samples):
            yield {"__key__": f"{number:09d}", "txt": "word " * (number % options.words + 1), "cls": number % 10}

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "data"
        write_tars(folder, rows(), shards=8)
        prepare_dataset(folder, split_ratio=(1,), crude=True)
        ways: dict[str, Callable[[], int]] = {
            "a loop over tarfile": partial(loop, folder),
            "measure, no processes": partial(measure, folder, "count_words", 0),
            "measure, lists of samples": partial(measure, folder, "count_words_of_many", 0),
            "measure, 2 processes": partial(measure, folder, "count_words", 2),
        }
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        sums: set[int] = set()
        for _ in range(options.rounds):
            for name, way in ways.items():
                begun_s, used_s = time.perf_counter(), _processor_seconds()
                sums.add(way())
                took[name].append((time.perf_counter() - begun_s, _processor_seconds() - used_s))
        assert len(sums) == 1, "all ways count the same words"
    print(f"{options.samples:,} samples\n\n| way | samples a second | µs of a processor a sample |\n|---|---|---|")
    for name, seconds in took.items():
        clock, processor = map(min, zip(*seconds, strict=True))
        print(f"| {name} | {options.samples / clock:,.0f} | {processor / options.samples * 1e6:.1f} |")


def _processor_seconds() -> float:
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in (own, ended))


if __name__ == "__main__":
    main()
