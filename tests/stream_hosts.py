"""Streams of one host or several, and an oracle that applies what lanes and items are, one sample at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from patience import PATIENCE_S

from energon_grain import SavableDataset, Stream, TaskEncoder, WorkerConfig, get_train_dataset

MakeDataset = Callable[..., Path]
LANES = 24


def quiet(error: Exception, sample: Any, sources: Any = None) -> None:
    """An error handler that lets samples go without a word."""


def config(rank: int = 0, world_size: int = 1, num_workers: int = 0, **options: Any) -> WorkerConfig:
    return WorkerConfig(rank, world_size, num_workers, **{"global_error_handler": quiet, **options})


class Tolerant(TaskEncoder):
    """Whose hooks may fail as often as they like."""

    __default_failure_tolerance__ = 0


def train_on(path: Any, **options: Any) -> SavableDataset[Any]:
    """A dataset in an order without blocks, unless asked otherwise."""
    return get_train_dataset(path, **{"shuffle_buffer_size": None, "max_samples_per_sequence": None, **options})


def open_stream(path: Any, **options: Any) -> Stream:
    """Batches of 4 in an order without blocks, on one host, unless asked otherwise."""
    return Stream.of(train_on(path, **{"batch_size": 4, "lanes": LANES, "worker_config": config(), **options}))


def open_share(
    path: Any, *, host: int = 0, hosts: int = 1, workers: int = 0, kind: Any = "thread", **options: Any
) -> Stream:
    """What one of several hosts gets of batches of 6, shuffled in blocks of 4."""
    given = {"batch_size": 6 // hosts, "shuffle_buffer_size": 20, "max_samples_per_sequence": 4, **options}
    return open_stream(path, worker_config=config(host, hosts, workers, worker_type=kind), **given)


def open_hosts(path: Path, hosts: int, batch_size: int, **options: Any) -> list[Stream]:
    given = {"batch_size": batch_size, "task_encoder": Tolerant(), **options}
    return [open_stream(path, worker_config=config(host, hosts), **given) for host in range(hosts)]


def text_batches(stream: Stream, count: int) -> list[Any]:
    """Keys, texts and the state behind each of the next batches."""
    found: list[Any] = []
    for _ in range(count):
        batch = next(stream)
        found.append((batch.__key__, batch.text, stream.cursor()))
    return found


def global_batch(streams: list[Stream]) -> list[str]:
    """Keys of the next batch of all hosts, sorted."""
    return sorted(sum((list(next(stream).__key__) for stream in streams), []))


class Agreement:
    """`WorkerConfig.any_host` for hosts that are threads of this process: says whether a flag is set on any of them."""

    def __init__(self, hosts: int) -> None:
        self._flags = [False] * hosts
        self._barrier = threading.Barrier(hosts, timeout=PATIENCE_S)

    def of(self, host: int) -> Callable[[bool], bool]:
        """The function of one host."""

        def any_host(flag: bool) -> bool:
            self._flags[host] = flag
            self._barrier.wait()
            said = any(self._flags)
            self._barrier.wait()
            return said

        return any_host

    def abort(self) -> None:
        """Wake the others up: one host failed."""
        self._barrier.abort()


@dataclass
class Oracle:
    """Items of an endless stream, by walking along every lane."""

    stream: Stream
    broken: frozenset[int]

    def items(self, stop: int) -> list[str]:
        spec = self.stream.spec
        items: list[str] = []
        rounds = [0] * spec.lanes
        for item in range(stop):
            lane = item % spec.lanes
            for _ in range(1000):
                position = rounds[lane] * spec.lanes + lane
                rounds[lane] += 1
                index = int(spec.order.draw(np.array([position]), 0).index[0])
                if index not in self.broken:
                    items.append(f"{index:06d}")
                    break
        return items


orders = st.sampled_from(
    [
        {"max_samples_per_sequence": None},
        {"max_samples_per_sequence": 4},
        {"max_samples_per_sequence": 5, "shuffle_buffer_size": 300},
        {"max_samples_per_sequence": 3, "shuffle_over_epochs_multiplier": 3},
        {"shuffle_over_epochs_multiplier": None},
        {"shuffle_over_epochs_multiplier": -1},
    ]
)
