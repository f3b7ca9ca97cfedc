"""Streams of several hosts, and an oracle that applies the definitions of lanes and items one sample at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from energon_grain import Stream, TaskEncoder, WorkerConfig, get_train_dataset

MakeDataset = Callable[..., Path]
LANES = 24


def quiet(error: Exception, sample: Any, sources: Any = None) -> None:
    """An error handler that lets samples go without a word."""


def worker_config(rank: int = 0, world_size: int = 1, num_workers: int = 0, **options: Any) -> WorkerConfig:
    return WorkerConfig(rank, world_size, num_workers, global_error_handler=quiet, **options)


class Tolerant(TaskEncoder):
    __default_failure_tolerance__ = 0


def open_hosts(path: Path, hosts: int, batch_size: int, **options: Any) -> list[Stream]:
    arguments = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "lanes": LANES, **options}
    return [
        Stream.of(
            get_train_dataset(
                path,
                worker_config=worker_config(host, hosts),
                batch_size=batch_size,
                task_encoder=Tolerant(),
                **arguments,
            )
        )
        for host in range(hosts)
    ]


def global_batch(streams: list[Stream]) -> list[str]:
    """Keys of the next batch of all hosts, sorted."""
    return sorted(sum((list(next(stream).__key__) for stream in streams), []))


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
