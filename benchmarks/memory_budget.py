"""Measure memory and rate under a memory budget, for ten kinds of loaders.

    python -m benchmarks.memory_budget [--names leaves,videos] [--seconds 4] [--rounds 2] [--scale 0.3]

Each loader runs in a process of its own, first with a budget of 1 MiB, whose error names the minimum; then, in turns,
without a budget and with twice the minimum. While it runs, the PSS of its process tree is sampled every 50 ms from
outside (`psutil`). If the minimum of the running loader turns out to be larger than that of the error, the larger one
counts.

Columns: the minimum; the largest PSS without a budget; the budget; the largest PSS with it, and its share of the budget
(at most 1.05 wanted); the rate with the budget, relative to the best rate without (at least 0.9 wanted); and the CPU
time of a batch, relative to that without, which shows more than the rate on a busy machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.child import answer_in, program

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from tree_memory import most_bytes

RANKS, LEAVES = 8, 1000
Batches = Iterator[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A kind of loader.

    Attributes:
        make: Writes the data into a folder; the second argument scales their number.
        read: Yields batches without end.
    """

    make: Callable[[Path, float], object]
    read: Callable[[Path], Batches]


def _config(workers: int = 2, worker_type: Any = "thread") -> Any:
    from energon_grain import WorkerConfig

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return WorkerConfig(rank=rank, world_size=ranks, num_workers=workers, worker_type=worker_type)


def _loader(
    path: Path | str, *, workers: int = 2, worker_type: str = "thread", batch_size: int = 32, **options: Any
) -> Any:
    from energon_grain import TaskEncoder, get_savable_loader, get_train_dataset

    options = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 10, "task_encoder": TaskEncoder()} | options
    config: Any = _config(workers, worker_type)
    return get_savable_loader(get_train_dataset(path, worker_config=config, batch_size=batch_size, **options))


def _blobs(folder: Path, count: int, size: int, shards: int = 4) -> None:
    from energon_grain.testing import make_blob_dataset

    make_blob_dataset(folder / "data", n=count, shards=shards, sample_bytes=size)


def make_leaves(folder: Path, scale: float) -> None:
    from energon_grain.testing import make_text_dataset

    lines = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:", "  train:", "    blend:"]
    del scale  # the number of leaves is the point
    for leaf in range(LEAVES):
        make_text_dataset(folder / f"leaf{leaf:04d}", n=20, shards=1, text_bytes=2000, seed=leaf)
        lines += [f"      - path: leaf{leaf:04d}", "        weight: 1"]
    (folder / "data.yaml").write_text("\n".join(lines) + "\n")


def make_videos(folder: Path, scale: float) -> None:
    from benchmarks.media import film
    from energon_grain.prepare import prepare_dataset
    from energon_grain.testing import write_tars

    film(0, folder / "film.mp4")
    video = (folder / "film.mp4").read_bytes()
    samples = ({"__key__": f"{n:04d}", "mp4": video} for n in range(int(120 * scale)))
    write_tars(folder / "data", samples, shards=4)
    prepare_dataset(folder / "data", split_ratio={"train": 1}, crude=True, num_workers=0)


def read_videos(folder: Path) -> Batches:
    from energon_grain import (
        Cooker,
        SampleDecoder,
        TaskEncoder,
        basic_sample_keys,
        get_savable_loader,
        get_train_dataset,
        stateless,
    )

    @stateless
    def clip(sample: Any) -> Any:
        found = sample["mp4"].get_video_clips(video_clip_ranges=[(2.0, 4.0)])
        return {**basic_sample_keys(sample), "frames": np.asarray(found[0][0])}

    class Videos(TaskEncoder):
        decoder = SampleDecoder(av_decode="AVDecoder")
        cookers = (Cooker(clip),)

        def batch(self, samples: Any) -> Any:
            return [sample["frames"] for sample in samples]

    dataset = get_train_dataset(
        folder / "data",
        worker_config=_config(),
        batch_size=2,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Videos(),
    )
    return get_savable_loader(dataset)


def make_parquet(folder: Path, scale: float) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    (folder / "data").mkdir()
    for number in range(4):
        texts = [rng.bytes(2000).hex() for _ in range(int(8000 * scale))]
        table = pa.table({"text": texts, "label": np.arange(len(texts))})
        pq.write_table(table, folder / "data" / f"train-{number:05d}.parquet", row_group_size=1000)


def make_packs(folder: Path, scale: float) -> None:
    from energon_grain.testing import make_text_dataset

    make_text_dataset(folder / "data", n=int(40_000 * scale), shards=4, text_bytes=2000)


def read_packs(folder: Path) -> Batches:
    from energon_grain import PackingPlan, TaskEncoder

    class Packs(TaskEncoder):
        def pack_selected_samples(self, samples: Any, ranges: Any) -> Any:
            pieces = zip(samples, ranges, strict=True)
            text = "".join(sample.text[start:stop] for sample, (start, stop) in pieces)
            return {"data": np.resize(np.frombuffer(text.encode(), np.uint8), 32768).astype(np.int64)}

        def batch(self, samples: Any) -> Any:
            return np.stack([sample["data"] for sample in samples])

    plan = PackingPlan("bytes.txt", capacity=32768, oversize="split")
    return _loader(folder / "data", batch_size=16, packing=plan, task_encoder=Packs())


def make_join(folder: Path, scale: float) -> None:
    from energon_grain.testing import make_blob_dataset

    for name in ("first", "second"):
        make_blob_dataset(folder / name, n=int(6000 * scale), shards=4, sample_bytes=30_000)
    joiner = {"__module__": "benchmarks.memory_budget", "__function__": "pair"}
    split = {"join": [{"path": "first"}, {"path": "second"}], "joiner": joiner}
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": split}}
    (folder / "data.yaml").write_text(json.dumps(document))


def pair(first: Any, second: Any) -> Any:
    return {"__key__": first["__key__"], "first": first["bin"], "second": second["bin"]}


def read_store(folder: Path) -> Batches:
    from benchmarks.object_store import BUCKET, own_cache

    del folder
    with own_cache(200):
        yield from _loader(f"s3://{BUCKET}/data")


def read_data_loader(folder: Path) -> Batches:
    import torch.utils.data

    from energon_grain_torch import TaskEncoder, WorkerConfig, get_train_dataset

    class Blobs(TaskEncoder):
        decoder = None

    dataset = get_train_dataset(
        folder / "data",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=32,
        shuffle_buffer_size=100,
        max_samples_per_sequence=10,
        task_encoder=Blobs(),
    )
    return iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=3, prefetch_factor=4))


def ranks(folder: Path) -> Batches:
    """Run eight processes, as a launcher does; each reads its own share. Yields the batches of all, as numbers."""
    command = [sys.executable, "-m", "benchmarks.memory_budget", json.dumps({"call": "rank", "folder": str(folder)})]
    names = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    started = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **names, "RANK": str(n)},
        )
        for n in range(RANKS)
    ]
    try:
        while True:
            for process in started:
                assert process.stdout is not None
                line = process.stdout.readline()
                if not line.strip().isdecimal():
                    raise RuntimeError(line)
                yield int(line)
    finally:
        for process in started:
            process.kill()
            process.wait()


def rank(folder: str) -> dict[str, Any]:
    """Read as one of several ranks, and print a line for each batch."""
    from energon_grain.errors import ConfigError

    try:
        for number, _ in enumerate(_loader(Path(folder) / "data", workers=1)):
            print(number, flush=True)
    except ConfigError as error:
        print(f"ConfigError: {error}", flush=True)
    return {}


WORKLOADS: dict[str, Workload] = {
    "leaves": Workload(make=make_leaves, read=lambda folder: _loader(folder / "data.yaml")),
    "videos": Workload(make=make_videos, read=read_videos),
    "30 MB": Workload(
        make=lambda folder, scale: _blobs(folder, int(24 * scale), 30_000_000),
        read=lambda folder: _loader(folder / "data", batch_size=2, max_samples_per_sequence=None),
    ),
    "ranks": Workload(make=lambda folder, scale: _blobs(folder, int(8000 * scale), 50_000), read=ranks),
    "packs": Workload(make=make_packs, read=read_packs),
    "parquet": Workload(make=make_parquet, read=lambda folder: _loader(folder / "data", max_samples_per_sequence=None)),
    "store": Workload(make=lambda folder, scale: _blobs(folder, int(4000 * scale), 50_000), read=read_store),
    "processes": Workload(
        make=lambda folder, scale: _blobs(folder, int(8000 * scale), 50_000),
        read=lambda folder: _loader(folder / "data", worker_type="process"),
    ),
    "DataLoader": Workload(make=lambda folder, scale: _blobs(folder, int(8000 * scale), 50_000), read=read_data_loader),
    "join": Workload(make=make_join, read=lambda folder: _loader(folder / "data.yaml", trusted_modules=["benchmarks"])),
}


def read(name: str, folder: str, seconds: float) -> dict[str, Any]:
    """Read for some seconds after the first batches; batches per second, CPU seconds of each, and the minimum."""
    from energon_grain.errors import ConfigError
    from energon_grain.memory_budget.budget import join_budget

    try:
        batches = iter(WORKLOADS[name].read(Path(folder)))
        for _ in range(4):
            next(batches)
        began = last = time.perf_counter()
        count, cpu_s = 0, _tree_cpu_s()
        while last < began + seconds:
            next(batches)
            count, last = count + 1, time.perf_counter()
        cpu_s = _tree_cpu_s() - cpu_s
        budget = join_budget()
        use = None if budget is None else budget.use()
        minimum = 0 if use is None else use.minimum_bytes
        del batches
    except (ConfigError, RuntimeError) as error:
        return {"error": str(error)}
    return {"rate": count / (last - began), "cpu_s": cpu_s / count, "minimum": minimum}


def _sampled(name: str, folder: Path, seconds: float, budget_bytes: int | None) -> tuple[dict[str, Any], int]:
    """The answer of `read` in a process of its own, and the largest PSS of its tree."""
    call = json.dumps({"call": "read", "name": name, "folder": str(folder), "seconds": seconds})
    variables = dict(os.environ)
    if budget_bytes is not None:
        variables["ENERGON_GRAIN_MEMORY"] = str(budget_bytes)
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.memory_budget", call], stdout=output, stderr=errors, env=variables
        )
        most = most_bytes(started)
        output.seek(0)
        errors.seek(0)
        answer = answer_in(output.read())
        if answer is None:
            raise RuntimeError(f"{name} ended with {started.returncode}:\n{errors.read()[-2000:]}")
    return answer, most


def _tree_cpu_s() -> float:
    """CPU time of this process and all below it, in seconds."""
    total = 0.0
    own = psutil.Process()
    for each in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def main(names: str = "", seconds: float = 4.0, rounds: int = 2, scale: float = 0.3, cache: str = "") -> None:
    """Print a table of the workloads."""
    from benchmarks.object_store import bucket_of

    print("| loader | minimum, MiB | PSS without, MiB | budget, MiB | PSS with, MiB | of the budget | rate | CPU |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names.split(",") if names else WORKLOADS:
        with tempfile.TemporaryDirectory(prefix="memory-budget-", dir=cache or None) as temporary:
            folder = Path(temporary) / "data"
            folder.mkdir()
            WORKLOADS[name].make(folder, scale)
            if name == "store":
                with bucket_of(folder / "data"):
                    print(_row(name, folder, seconds, rounds), flush=True)
            else:
                print(_row(name, folder, seconds, rounds), flush=True)


def _named(answer: dict[str, Any], name: str) -> int:
    """The minimum that an error names; 0: no error. Raises RuntimeError for another error."""
    if "error" not in answer:
        return 0
    found = re.search(r"at least '(\d+)MiB'", answer["error"])
    if found is None:
        raise RuntimeError(f"{name}: {answer['error']}")
    return int(found[1]) << 20


_TRIES = 6


def _row(name: str, folder: Path, seconds: float, rounds: int) -> str:
    answer, _ = _sampled(name, folder, 1.0, 1 << 20)
    minimum = _named(answer, name)
    if not minimum:
        raise RuntimeError(f"{name}: a budget of 1 MiB did not name the minimum, but gave {answer}")
    for _ in range(_TRIES):  # the index does not show how much larger decoding and hooks make a sample
        answer, _ = _sampled(name, folder, min(seconds, 4.0), 2 * minimum)
        known = _named(answer, name) or answer["minimum"]
        if "error" not in answer and known <= 1.2 * minimum:
            break
        minimum = max(known, minimum * 11 // 10)
    free: list[float] = []
    limited: list[float] = []
    cpu_free: list[float] = []
    cpu_limited: list[float] = []
    most_free = most = 0
    for _ in range(rounds):
        answer, pss = _sampled(name, folder, seconds, None)
        free.append(answer["rate"])
        cpu_free.append(answer["cpu_s"])
        most_free = max(most_free, pss)
        answer, pss = _sampled(name, folder, seconds, 2 * minimum)
        if _named(answer, name):
            raise RuntimeError(f"{name}: {answer['error']}")
        limited.append(answer["rate"])
        cpu_limited.append(answer["cpu_s"])
        most = max(most, pss)
    mib = [f"{size >> 20:,}" for size in (minimum, most_free, 2 * minimum, most)]
    shares = most / (2 * minimum), max(limited) / max(free), min(cpu_limited) / min(cpu_free)
    return f"| {name} | {' | '.join(mib)} | {' | '.join(f'{share:.2f}' for share in shares)} |"


if __name__ == "__main__":
    program(main, read=read, rank=rank)
