"""Measure one read for replicas against each replica reading for itself.

    python -m benchmarks.replicas [--data 2] [--replicas 4] [--steps 30] [--size 256] [--worker-type thread]

Starts a process for each replica of each data rank. They make batches of 32 images of size × size pixels in float32, in
these ways:

* alone: only one process of each data rank runs; the lower bound for memory and decoding
* each: every process reads for itself
* shared: one process of each data rank reads for its replicas
* broadcast: the same, but the replicas are on two nodes (of this machine), and one node sends to the other over TCP

Columns: samples per second of all data ranks together; images decoded, reading ahead included; proportional set size of
all processes above that before the loader was made, in the middle of the run; the time to hand on a batch, without
waiting for other replicas (median); and whether all replicas had the batches of "alone".
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.child import program
from energon_grain import WorkerConfig, get_savable_loader, get_train_dataset
from energon_grain.replicas import ReplicaGroup
from energon_grain.replicas.leader import Leader
from energon_grain.testing import make_image_dataset

BATCH, WARM_STEPS = 32, 4


class Run(NamedTuple):
    """A way of reading.

    Attributes:
        kind: "alone", "each", "shared" or "broadcast".
        data: Number of data ranks.
        replicas: Processes of each.
        worker_type: That of the two workers of each process that reads.
    """

    kind: str
    data: int
    replicas: int
    steps: int
    worker_type: Any = "thread"

    @property
    def shares(self) -> bool:
        """Whether one process reads for others."""
        return self.kind in ("shared", "broadcast")


class Result(NamedTuple):
    """The figures of one process."""

    decoded: int
    pss_mb: float
    digest: int
    handed_on_ms: float


def pss_mb() -> float:
    """Return the proportional set size of this process in MiB."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/smaps_rollup has no Pss line")


def _process(pipe: Connection, path: Path, run: Run, number: int) -> None:
    def together(data: Any = None) -> Any:
        pipe.send(data)
        return pipe.recv()

    before, times = pss_mb(), _timed()
    first = number // run.replicas * run.replicas
    node = str(2 * (number - first) // run.replicas) if run.kind == "broadcast" else None
    group = ReplicaGroup(ranks=tuple(range(first, first + run.replicas)), rank=number, all_gather=together, node=node)
    config = WorkerConfig(
        rank=number // run.replicas,
        world_size=run.data,
        num_workers=1 if run.worker_type == "thread" else 2,
        worker_type=run.worker_type,
        replicas=group if run.shares else None,
        across="broadcast",
    )
    dataset = get_train_dataset(
        path,
        worker_config=config,
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=50,
    )
    memory, digest, image = 0.0, 0, None
    with get_savable_loader(dataset) as loader:
        for _ in range(WARM_STEPS):
            next(loader)
        together()
        for step in range(run.steps):
            image = next(loader).image
            digest = zlib.crc32(image[:, :, ::16, ::16].tobytes(), digest)
            if step == run.steps // 2:
                memory = pss_mb() - before
        together()
        decoded = loader.stats().read_samples
    together(Result(decoded, memory, digest, 1000 * median(times[WARM_STEPS:] or [0.0])))


def _timed() -> list[float]:
    """Return where the seconds of each hand-over will be, without waiting for other replicas."""
    times: list[float] = []
    waited = [0.0]

    def timing(method: Callable[..., Any], took: Callable[[float], None]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            result = method(*arguments, **options)
            took(time.perf_counter() - began)
            return result

        return timed

    def waits(seconds: float) -> None:
        waited[0] = seconds

    Leader._wait = timing(Leader._wait, waits)
    Leader.hand_on = timing(Leader.hand_on, lambda seconds: times.append(seconds - waited[0]))
    return times


def measure(path: Path, run: Run) -> tuple[list[Result], float]:
    """Return the figures of each process, and the seconds of the steps."""
    context = multiprocessing.get_context("spawn")
    numbers = range(0, run.data * run.replicas, run.replicas if run.kind == "alone" else 1)
    pipes: list[Connection] = []
    processes: list[Any] = []
    for number in numbers:
        pipe, end = context.Pipe()
        pipes.append(pipe)
        processes.append(context.Process(target=_process, args=(end, path, run, number), daemon=True))
        processes[-1].start()
        end.close()

    def together() -> list[Any]:
        found = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(found)
        return found

    if run.shares:
        together()
    together()
    began = time.perf_counter()
    together()
    seconds = time.perf_counter() - began
    results: list[Result] = together()
    for process in processes:
        process.join()
    return results, seconds


def measured(
    kind: str, data: int = 2, replicas: int = 4, steps: int = 30, size: int = 256, worker_type: str = "thread"
) -> dict[str, Any]:
    """Return the figures of one way. "alone": `digests` of each data rank; otherwise of each process."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_image_dataset(Path(folder, "images"), n=400, image_size=(size, size))
        results, seconds = measure(path, Run(kind, data, replicas, steps, worker_type))
    return {
        "samples_per_s": BATCH * data * steps / seconds,
        "decoded": sum(result.decoded for result in results),
        "pss_mb": sum(result.pss_mb for result in results),
        "handed_on_ms": max(result.handed_on_ms for result in results),
        "digests": [result.digest for result in results],
    }


def main(data: int = 2, replicas: int = 4, steps: int = 30, size: int = 256, worker_type: str = "thread") -> None:
    """Print a row for each way."""
    print("way        samples/s  decoded  PSS in MB  handed on in ms  same batches")
    expected: list[int] = []
    for kind in ("alone", "each", "shared", "broadcast"):
        found = measured(kind, data, replicas, steps, size, worker_type)
        expected = expected or found["digests"]
        wanted = expected if kind == "alone" else [digest for digest in expected for _ in range(replicas)]
        print(
            f"{kind:9}  {found['samples_per_s']:9,.0f}  {found['decoded']:7,}  {found['pss_mb']:9,.0f}  "
            f"{found['handed_on_ms']:15.2f}  {found['digests'] == wanted}",
            flush=True,
        )


if __name__ == "__main__":
    program(main, measured=measured)
