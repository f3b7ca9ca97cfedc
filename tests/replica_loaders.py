"""Replicas of one data rank: in threads of one process, or in processes that a test drives."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
from patience import PATIENCE_S

import energon_grain
from energon_grain import DefaultTaskEncoder, SavableDataLoader, WorkerConfig, get_savable_loader, stateless
from energon_grain.replicas import ReplicaGroup

GLOBAL_BATCH = 8
LENGTH = 4096
Rows = list[tuple[str, int]]


class Tokens(DefaultTaskEncoder):
    """Arrays of 16 KB, and a count of what this encoder decoded."""

    thread_safe = True

    def __init__(self) -> None:
        super().__init__()
        self.decoded = 0

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.decoded += 1
        tokens = np.arange(LENGTH, dtype=np.int32) + 7 * int(sample.__key__)
        return {"__key__": sample.__key__, "__restore_key__": sample.__restore_key__, "tokens": self.array(tokens)}

    def array(self, values: Any) -> Any:
        """The array in the form of a framework."""
        return values


def dataset_of(
    path: Path, config: WorkerConfig, encoder: Any = None, *, library: Any = energon_grain, **options: Any
) -> Any:
    """A part of global batches of one size, whatever the number of data ranks."""
    options = {"shuffle_buffer_size": 20, "max_samples_per_sequence": 4, "seed": 3, **options}
    return library.get_train_dataset(
        path,
        worker_config=config,
        batch_size=GLOBAL_BATCH // config.world_size,
        task_encoder=encoder or Tokens(),
        **options,
    )


def rows(batch: Any) -> Rows:
    """Key and sum of each sample of a batch."""
    sums = np.asarray(batch["tokens"]).astype(np.int64).sum(1)
    return list(zip(batch["__key__"], sums.tolist(), strict=True))


def alone(path: Path, count: int, **options: Any) -> list[Rows]:
    """The first batches of a single process."""
    with get_savable_loader(dataset_of(path, WorkerConfig(rank=0, world_size=1), **options)) as loader:
        return [rows(next(loader)) for _ in range(count)]


class Gathering:
    """Gathers data of threads."""

    def __init__(self, count: int) -> None:
        self._barrier = Barrier(count)
        self._data: list[bytes] = []

    def __call__(self, data: bytes) -> list[bytes]:
        self._data.append(data)
        self._barrier.wait(PATIENCE_S)
        return self._data


def replica_group(rank: int, gathering: Any, count: int = 2, nodes: str = "") -> ReplicaGroup:
    """One of some replicas. `nodes`: a letter for each, its node; default: the same one."""
    return ReplicaGroup(
        ranks=tuple(range(count)),
        rank=rank,
        all_gather=gathering,
        coordinates={"cp": (rank, count)},
        node=nodes[rank : rank + 1] or None,
    )


@contextmanager
def in_threads(
    path: Path,
    count: int,
    *,
    num_workers: Any = 1,
    worker_type: Any = "thread",
    encoders: Callable[[], Any] = Tokens,
    cut: Any = None,
    nodes: str = "",
    across: Any = "broadcast",
    **options: Any,
) -> Generator[list[tuple[SavableDataLoader[Any], Any]]]:
    """Loaders of replicas, each with its task encoder."""
    gathering = Gathering(count)

    def make(rank: int) -> tuple[SavableDataLoader[Any], Any]:
        group = replica_group(rank, gathering, count, nodes)
        config = WorkerConfig(
            rank=0, world_size=1, num_workers=num_workers, worker_type=worker_type, replicas=group, across=across
        )
        encoder = encoders()
        return get_savable_loader(dataset_of(path, config, encoder, **options), sequence_slice=cut), encoder

    with ThreadPoolExecutor(count) as threads:
        made = list(threads.map(make, range(count)))
    try:
        yield made
    finally:
        for loader, _ in made:
            loader.close()


def on_replicas(function: Callable[[Any, Tokens], Any], kind: Any = WorkerConfig) -> tuple[list[Any], int]:
    """The results of the function on two replicas, and how many of them decoded."""
    gathering, encoders = Gathering(2), [Tokens(), Tokens()]
    with ThreadPoolExecutor(2) as threads:
        configs = [
            kind(rank=0, world_size=1, num_workers=1, worker_type="thread", replicas=replica_group(rank, gathering))
            for rank in range(2)
        ]
        found = list(threads.map(function, configs, encoders))
    return found, sum(encoder.decoded > 0 for encoder in encoders)


def of_torch(path: Path, config: Any, encoder: Any) -> Any:
    """The dataset in PyTorch's form, which this module does not import by itself."""
    return dataset_of(path, config, encoder, library=importlib.import_module("energon_grain_torch"))


class FolderGathering:
    """Gathers data of processes, in a folder."""

    def __init__(self, folder: Path, rank: int, count: int) -> None:
        self._folder, self._rank, self._count = folder, rank, count

    def __call__(self, data: bytes) -> list[bytes]:
        part = self._folder / f"{self._rank}.part"
        part.write_bytes(data)
        part.rename(self._folder / f"{self._rank}.json")
        until = time.monotonic() + PATIENCE_S
        while len(found := sorted(self._folder.glob("*.json"))) < self._count:
            assert time.monotonic() < until
            time.sleep(0.005)
        return [file.read_bytes() for file in found]


class Replica:
    """A replica in a process, which makes the steps that a test asks for."""

    def __init__(self, path: Path, folder: Path, rank: int, count: int, nodes: str) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, end = context.Pipe()
        self.process = context.Process(target=_serve, args=(end, path, folder, rank, count, nodes), daemon=True)
        self.process.start()
        end.close()

    def ask(self, what: str, *arguments: Any) -> None:
        self._pipe.send((what, *arguments))

    def answer(self) -> Any:
        assert self._pipe.poll(PATIENCE_S)
        return self._pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE_S)


@contextmanager
def in_processes(path: Path, folder: Path, count: int, nodes: str = "") -> Generator[list[Replica]]:
    """Replicas that have made their loaders."""
    folder.mkdir()
    replicas = [Replica(path, folder, rank, count, nodes) for rank in range(count)]
    try:
        for replica in replicas:
            assert replica.answer() == "ready"
        yield replicas
    finally:
        for replica in replicas:
            replica.kill()


def _serve(pipe: Connection, path: Path, folder: Path, rank: int, count: int, nodes: str) -> None:
    group = replica_group(rank, FolderGathering(folder, rank, count), count, nodes)
    config = WorkerConfig(rank=0, world_size=1, num_workers=1, replicas=group, across="broadcast")
    encoder = Tokens()
    loader = get_savable_loader(dataset_of(path, config, encoder))
    pipe.send("ready")
    while True:
        what, *arguments = pipe.recv()
        began = time.monotonic()
        try:
            found = [rows(next(loader)) for _ in range(*arguments)] if what == "steps" else None
            found = json.loads(json.dumps(loader.save_state_rank())) if what == "state" else found
            found = encoder.decoded if what == "decoded" else found
            found = _forked() if what == "fork" else found
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        pipe.send((found, time.monotonic() - began))


def _forked() -> int:
    """Fork a process that outlives this one."""
    child = os.fork()
    if not child:
        time.sleep(PATIENCE_S)
        os._exit(0)
    return child
