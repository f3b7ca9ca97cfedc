"""Measure one read for replicas against each replica reading for itself.

`python -m benchmarks.replicas [--data 2] [--replicas 4] [--steps 30] [--size 256]` starts a process for each replica of
each data rank. They make batches of 32 images of size × size pixels in float32, in three ways:

* alone: only one process of each data rank runs; the lower bound for memory and decoding
* each: every process reads for itself
* shared: one process of each data rank reads for its replicas

Columns: samples per second of all data ranks together; images decoded, reading ahead included; proportional set size of
all processes above that before the loader was made, in the middle of the run; and whether all replicas had the batches
of "alone".
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
import zlib
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from energon_grain import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, stateless
from energon_grain.replicas import ReplicaGroup
from energon_grain.testing import make_image_dataset

BATCH, WARM_STEPS = 32, 4


class Images(DefaultTaskEncoder):
    """Counts what this process decodes."""

    thread_safe = True

    def __init__(self) -> None:
        super().__init__()
        self.decoded = 0

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.decoded += 1
        return sample


class Run(NamedTuple):
    """A way of reading.

    Attributes:
        kind: "alone", "each" or "shared".
        data: Number of data ranks.
        replicas: Processes of each.
    """

    kind: str
    data: int
    replicas: int
    steps: int


class Result(NamedTuple):
    """The figures of one process."""

    decoded: int
    pss_mb: float
    digest: int


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

    before = pss_mb()
    first = number // run.replicas * run.replicas
    group = ReplicaGroup(ranks=tuple(range(first, first + run.replicas)), rank=number, all_gather=together)
    config = WorkerConfig(
        rank=number // run.replicas,
        world_size=run.data,
        num_workers=1,
        replicas=group if run.kind == "shared" else None,
    )
    encoder = Images()
    dataset = get_train_dataset(
        path,
        worker_config=config,
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=50,
        task_encoder=encoder,
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
    together(Result(encoder.decoded, memory, digest))


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

    if run.kind == "shared":
        together()
    together()
    began = time.perf_counter()
    together()
    seconds = time.perf_counter() - began
    results: list[Result] = together()
    for process in processes:
        process.join()
    return results, seconds


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--size", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = make_image_dataset(Path(folder, "images"), n=400, image_size=(options.size, options.size))
        print("way     samples/s  decoded  PSS in MB  same batches")
        expected: list[int] = []
        for kind in ("alone", "each", "shared"):
            run = Run(kind, options.data, options.replicas, options.steps)
            results, seconds = measure(path, run)
            expected = expected or [result.digest for result in results]
            each = [result.digest for result in results]
            wanted = expected if kind == "alone" else [digest for digest in expected for _ in range(options.replicas)]
            decoded, memory = sum(r.decoded for r in results), sum(r.pss_mb for r in results)
            rate = BATCH * options.data * options.steps / seconds
            print(f"{kind:7} {rate:9,.0f}  {decoded:7,}  {memory:9,.0f}  {each == wanted}", flush=True)


if __name__ == "__main__":
    main()
