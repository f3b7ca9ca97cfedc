"""Throughput of hooks that wait or take unequal time, as a share of the ideal: work divided by workers.

    python -m benchmarks.waiting_hooks [WORKLOAD …] [--seconds 6] [--workers 4] [--workers 16] [--only ours]
    python -m benchmarks.waiting_hooks rare --only "ours, threads" --workers 4 --steps 10000

The hook of a sample sleeps (or computes) as long as its key says, so every loader does the same work. The sleeps of a
quiet thread are measured first, because a sleep of 1 ms takes longer than that. Sleeping needs no processor: the
figures hold on a busy machine too, except for the time that a thread waits for a core after its sleep. Where hooks
compute, the ideal is divided by workers or cores, whichever are fewer. `out of order` loaders lose the order of
samples; all others keep it. `bare threads` have no loader, and read nothing: what threads of Python give at most.

With `--steps`, a consumer also takes 80 % of the measured rate: the share of its steps that wait over 10 ms, the
longest wait, and the steps where these waits began.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import statistics
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.child import ask, program

SAMPLES = 100_000
BATCH = 8
LONG_WAIT_S = 0.01
BARE_AHEAD = 4_096
"""Samples that a program without a loader has in flight: more than are done while one takes 500 ms, with 16 threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Times that hooks take.

    Attributes:
        usual_ms: Time of most samples.
        slow_ms: Time of the slow ones.
        slow: Share of the slow ones.
        computes: Whether hooks compute instead of sleeping, in code that releases Python's lock.
        holds_lock: Whether they compute in Python itself, so that threads take turns.
        kept: Share of the samples that hooks keep.
        packs: Whether samples are packed, so that batches are made in lanes.
    """

    usual_ms: float
    slow_ms: float
    slow: float
    computes: bool = False
    holds_lock: bool = False
    kept: float = 1.0
    packs: bool = False


WORKLOADS = {
    "slow": Workload(usual_ms=1, slow_ms=50, slow=0.05),
    "rare": Workload(usual_ms=1, slow_ms=500, slow=0.01),
    "drops": Workload(usual_ms=1, slow_ms=50, slow=0.05, kept=0.8),
    "packs": Workload(usual_ms=1, slow_ms=50, slow=0.05, packs=True),
    "computes": Workload(usual_ms=1, slow_ms=50, slow=0.05, computes=True),
    "python": Workload(usual_ms=1, slow_ms=50, slow=0.05, computes=True, holds_lock=True),
    "equal": Workload(usual_ms=4, slow_ms=4, slow=0.0),
}


def is_slow(load: Workload, key: str) -> bool:
    """Whether a sample takes long."""
    return zlib.crc32(key.encode()) % 10_000 < load.slow * 10_000


def work(load: Workload, key: str) -> bool:
    """Do the work of a sample; return whether it is kept."""
    seconds = (load.slow_ms if is_slow(load, key) else load.usual_ms) / 1e3
    if load.computes:
        compute(load, seconds)
    else:
        time.sleep(seconds)
    return zlib.crc32(b"kept" + key.encode()) % 10_000 < load.kept * 10_000


_BLOCK = bytes(1 << 16)
_pieces_per_s = 0.0


def compute(load: Workload, seconds: float) -> None:
    """Use a processor for about this long."""
    for _ in range(max(1, round(seconds * _pieces_per_s))):
        _piece(load)


def _piece(load: Workload) -> None:
    if load.holds_lock:
        sum(range(300))
    else:
        zlib.crc32(_BLOCK)


def calibrate(load: Workload, samples: int = 300) -> tuple[float, float]:
    """Return the time of a usual and of a slow sample in a quiet thread, in seconds.

    Medians, because other programs delay some sleeps by far. Work that computes is measured in processor time.
    """
    global _pieces_per_s
    clock = time.thread_time if load.computes else time.perf_counter
    began = clock()
    for _ in range(4_000):
        _piece(load)
    _pieces_per_s = 4_000 / (clock() - began)

    def median(milliseconds: float, times: int) -> float:
        taken: list[float] = []
        for _ in range(times):
            begun = clock()
            compute(load, milliseconds / 1e3) if load.computes else time.sleep(milliseconds / 1e3)
            taken.append(clock() - begun)
        return statistics.median(taken)

    return median(load.usual_ms, samples), median(load.slow_ms, 5)


def ours(folder: str, load: Workload, workers: int, *, worker_type: str, safe: bool) -> Any:
    """Return our loader."""
    from energon_grain import DefaultTaskEncoder, SkipSample, WorkerConfig, get_loader, get_train_dataset

    class Waits(DefaultTaskEncoder):
        thread_safe = safe
        decoder = None

        def encode_sample(self, sample: Any) -> Any:
            if not work(load, sample.__key__):
                raise SkipSample
            return sample

    class Packs(Waits):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples[at : at + 4] for at in range(0, len(samples), 4)]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            samples[0].text = "".join(str(sample.text) for sample in samples)
            return samples[0]

    config = WorkerConfig(0, 1, workers, worker_type=worker_type)  # pyright: ignore[reportArgumentType]
    options: dict[str, Any] = {"packing_buffer_size": 32} if load.packs else {}
    return iter(
        get_loader(
            get_train_dataset(
                folder,
                worker_config=config,
                batch_size=2 if load.packs else BATCH,
                shuffle_buffer_size=100,
                max_samples_per_sequence=100,
                task_encoder=Packs() if load.packs else Waits(),
                **options,
            )
        )
    )


def torch(folder: str, load: Workload, workers: int, *, in_order: bool) -> Any:
    """Return PyTorch's `DataLoader` over as many samples."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        _Numbers(load),  # pyright: ignore[reportArgumentType]
        batch_size=BATCH,
        num_workers=workers,
        in_order=in_order,
        collate_fn=list,
        shuffle=True,
        multiprocessing_context="fork",
    )
    return iter(loader)


class _Numbers:
    """A dataset that reads nothing."""

    def __init__(self, load: Workload) -> None:
        self._load = load

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> str:
        key = f"{number:07d}"
        work(self._load, key)
        return key


def bare(folder: str, load: Workload, workers: int, *, samples: int) -> Iterator[list[str]]:
    """Yield batches of a program without a loader: tasks of `samples` in a pool of threads, taken in order.

    As many tasks are in flight as we have when hooks are slow. Nothing is read, so this is the most that threads of
    Python give for such hooks.
    """
    numbers = [f"{number:07d}" for number in range(SAMPLES)]
    random.Random(0).shuffle(numbers)
    tasks = (numbers[first : first + samples] for first in itertools.count(0, samples) if first < SAMPLES)

    def done(keys: list[str]) -> list[str]:
        for key in keys:
            work(load, key)
        return keys

    with ThreadPoolExecutor(workers) as pool:
        flying: deque[Future[list[str]]] = deque()
        batch: list[str] = []
        while True:
            while len(flying) < BARE_AHEAD // samples:
                flying.append(pool.submit(done, next(tasks)))
            batch += flying.popleft().result()
            if len(batch) == BATCH:
                yield batch
                batch = []


LOADERS: dict[str, Callable[..., Iterator[Any]]] = {
    "bare threads, sample by sample": lambda *a: bare(*a, samples=1),
    "bare threads, batch by batch": lambda *a: bare(*a, samples=BATCH),
    "ours, threads": lambda *a: ours(*a, worker_type="thread", safe=True),
    "ours, processes": lambda *a: ours(*a, worker_type="process", safe=True),
    "ours, threads, default encoder": lambda *a: ours(*a, worker_type="thread", safe=False),
    "torch in order": lambda *a: torch(*a, in_order=True),
    "torch out of order": lambda *a: torch(*a, in_order=False),
}


def share_of_ideal(
    folder: str, loader: str, workload: str, workers: int, warmup_s: float, seconds: float, steps: int = 0
) -> dict[str, Any]:
    """Measure a loader: its share of the ideal; with `steps`, the waits of a consumer that takes 80 % of its rate."""
    load = WORKLOADS[workload]
    usual_s, slow_s = calibrate(load)
    at_once = min(workers, len(os.sched_getaffinity(0))) if load.computes else workers

    def work_s(batch: Any) -> float:
        keys: list[str] = batch if isinstance(batch, list) else batch.__key__
        if load.packs or load.kept < 1:  # some samples are not named
            return BATCH / load.kept * (usual_s + load.slow * (slow_s - usual_s))
        return sum(slow_s if is_slow(load, key) else usual_s for key in keys)

    batches = LOADERS[loader](folder, load, workers)
    begun = time.perf_counter()
    next(batches)
    first_batch_s = time.perf_counter() - begun
    end = time.perf_counter() + warmup_s
    while time.perf_counter() < end:
        next(batches)
    waits: list[float] = []
    worked_s, cpu_s, begun = 0.0, _cpu_s(), time.perf_counter()
    now = begun
    while now < begun + seconds:
        before = now
        worked_s += work_s(next(batches))
        now = time.perf_counter()
        waits.append(now - before)
    rate = len(waits) / (now - begun)
    found = {
        "batches_per_s": rate,
        "of_ideal": worked_s / (now - begun) / at_once,
        "first_batch_s": first_batch_s,
        "cpu_us": 1e6 * (_cpu_s() - cpu_s) / len(waits) / BATCH,
        "wait_p99_ms": 1e3 * statistics.quantiles(waits, n=100)[-1],
    }
    return found | (_long_waits(folder, load, loader, workers, rate, steps) if steps else {})


def _cpu_s() -> float:
    """Processor time of this process and of its worker processes."""
    return time.process_time() + sum(children_cpu_s())


def children_cpu_s() -> Generator[float]:
    """Yield the processor time of each child process that has not ended."""
    ticks = os.sysconf("SC_CLK_TCK")
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (thread / "children").read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                yield (int(fields[11]) + int(fields[12])) / ticks


def _long_waits(
    folder: str, load: Workload, loader: str, workers: int, batches_per_s: float, steps: int
) -> dict[str, Any]:
    """Consume a new loader at 80 % of the rate, from its second batch on."""
    batches, step_s = LOADERS[loader](folder, load, workers), 1.25 / batches_per_s
    next(batches)
    waits: list[float] = []
    free = time.perf_counter()
    for _ in range(steps):
        free += step_s
        time.sleep(max(0.0, free - time.perf_counter()))
        begun = time.perf_counter()
        next(batches)
        waits.append(time.perf_counter() - begun)
        free = max(free, time.perf_counter() - waits[-1]) if waits[-1] < LONG_WAIT_S else time.perf_counter()
    return {
        "long_waits": sum(wait > LONG_WAIT_S for wait in waits) / steps,
        "longest_wait_ms": 1e3 * max(waits),
        "long_at": [step for step, wait in enumerate(waits) if wait > LONG_WAIT_S],
    }


@contextlib.contextmanager
def texts() -> Generator[str]:
    """Yield a small dataset."""
    from energon_grain.testing import make_text_dataset

    with tempfile.TemporaryDirectory() as temporary:
        make_text_dataset(Path(temporary) / "texts", n=SAMPLES, shards=8)
        yield str(Path(temporary) / "texts")


def main(
    workloads: Annotated[list[str] | None, typer.Argument()] = None,
    workers: list[int] = [4, 16],  # noqa: B006 (an option of typer)
    seconds: float = 6.0,
    warmup: float = 3.0,
    steps: int = 0,
    only: str = "",
) -> None:
    print(
        "| workload | loader | workers | of the ideal | CPU, µs a sample | first batch, s | p99 wait, ms "
        "| waits > 10 ms at 80 % |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with texts() as folder:
        for workload in workloads or WORKLOADS:
            for loader in filter(lambda name: only in name, LOADERS):
                for count in workers:
                    found = ask(
                        "waiting_hooks",
                        "share_of_ideal",
                        folder=folder,
                        loader=loader,
                        workload=workload,
                        workers=count,
                        warmup_s=warmup,
                        seconds=seconds,
                        steps=steps,
                    )
                    waits = f"{found['long_waits']:.2%}, most {found['longest_wait_ms']:.0f} ms" if steps else "–"
                    if steps and found["long_at"]:
                        waits += f"; steps {', '.join(map(str, found['long_at'][:20]))}"
                    print(
                        f"| {workload} | {loader} | {count} | {found['of_ideal']:.3f} | {found['cpu_us']:.0f} "
                        f"| {found['first_batch_s']:.2f} "
                        f"| {found['wait_p99_ms']:.0f} | {waits} |",
                        flush=True,
                    )


if __name__ == "__main__":
    program(main, share_of_ideal=share_of_ideal)
