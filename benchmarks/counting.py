"""Cost of counting for `loader.stats()`: the same steps with and without it, alternating in one process.

`python -m benchmarks.counting` prints, for single samples, batches of one and batches of 16, without workers and with
one, the median ratio of processor time of many interleaved pairs of runs, and as a control the ratio of pairs without
counting. Without counting, a stream neither reads the clock nor adds anything up when it delivers a step. The time of
chunks is counted in both.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.child import program
from energon_grain import Stream, WorkerConfig, get_train_dataset
from energon_grain.samples.registration import register_value
from energon_grain.storage.cancellation import cancelled_by
from energon_grain.testing import make_text_dataset

TARGET = 1.01
"""At most a hundredth of the time of a step."""


class Uncounted(Stream):
    """Delivers the same steps without counting."""

    def __next__(self) -> Any:
        self._require_here("go on")
        with self.turn:
            if self._closed_at:
                raise ValueError(self._closed_at)
            if self._progress.ended:
                raise StopIteration
            step = self._advance()
        register_value(step.batch)
        return step.batch

    def _read(self) -> Any:
        if self._none_left:
            raise StopIteration
        with self._starting:
            if self._steps is None:
                self._start()
            steps = self._steps
        with cancelled_by(self._under_way.over):
            return next(steps)


def cpu_ns(stream: Stream, way: type[Stream], steps: int) -> int:
    """Return the processor time of some steps, with or without counting.

    Class and object stay the same: two objects would differ in their memory locations.
    """
    for name, function in WAYS[way].items():
        setattr(Stream, name, function)
    for _ in range(WARM_STEPS):  # until the interpreter has specialised the functions
        next(stream)
    began = time.process_time_ns()
    for _ in range(steps):
        next(stream)
    return time.process_time_ns() - began


WAYS = {way: {name: vars(way)[name] for name in ("__next__", "_read")} for way in (Stream, Uncounted)}
WARM_STEPS = 100


def ratio(path: Path, batch_size: int | None, workers: int, pairs: int, steps: int) -> tuple[float, float, float]:
    """Return the medians of (with / without counting), (without / without), and microseconds per step without."""
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(0, 1, workers),
        batch_size=batch_size,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    counted: list[float] = []
    control: list[float] = []
    plain: list[int] = []
    with Stream.of(dataset) as stream:
        cpu_ns(stream, Stream, 20 * steps)
        for pair in range(pairs):
            kinds = (Stream, Uncounted, Uncounted) if pair % 2 else (Uncounted, Uncounted, Stream)
            spent = [cpu_ns(stream, kind, steps) for kind in kinds]
            measured, baseline, other = spent if pair % 2 else spent[::-1]
            counted.append(measured / baseline)
            control.append(other / baseline)
            plain.append(baseline)
    return statistics.median(counted), statistics.median(control), statistics.median(plain) / steps / 1e3


def main(pairs: int = 300, steps: int = 1000) -> None:
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = make_text_dataset(Path(folder) / "texts", n=20_000, shards=4)
        for workers in (0, 1):
            for batch_size in (None, 1, 16):
                found, control, step_us = ratio(path, batch_size, workers, pairs, steps)
                what = "single samples" if batch_size is None else f"batches of {batch_size}"
                print(
                    f"{what}, {workers} workers: {found:.4f}, control {control:.4f} ({step_us:.2f} µs per step)",
                    flush=True,
                )
                worst = max(worst, found)
    sys.exit(worst > TARGET)


if __name__ == "__main__":
    program(main)
