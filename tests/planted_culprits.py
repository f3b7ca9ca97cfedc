"""Runs with a culprit: the loss of each step follows from the samples that the run used in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from energon_grain import SkipSample, Stream, TaskEncoder, WorkerConfig, get_train_dataset
from energon_grain.history.suspects import Blame
from energon_grain.prepare import prepare_dataset
from energon_grain.stream.extensions import BLAME
from energon_grain.stream.run import SampleRecord
from energon_grain.testing import make_text_dataset

SAMPLES, SHARDS, BATCH = 600, 6, 8


def open_run(path: Path | str, *, batch_size: int = BATCH, hosts: int = 1, **options: Any) -> Stream:
    """The stream of one host, fully shuffled unless asked otherwise."""
    settings: dict[str, Any] = {
        "shuffle_buffer_size": None,
        "max_samples_per_sequence": None,
        "seed": 5,
        "lanes": 12,
        "worker_config": WorkerConfig(rank=0, world_size=hosts, num_workers=0, any_host=bool),
    }
    return Stream.of(get_train_dataset(path, batch_size=batch_size, **(settings | options)))


def blame_run(stream: Stream, losses: Any, **options: Any) -> Blame:
    """Blame the samples of a run, as `loader.blame`."""
    return stream.ask(BLAME, losses, **options)


def losses_of(
    steps: Iterable[int],
    used: Callable[[int], Iterable[SampleRecord]],
    added: Callable[[SampleRecord], float],
    *,
    noise: float = 1 / 3,
    seed: int = 0,
) -> dict[int, float]:
    """A falling curve with noise. Each sample adds to the loss of its step."""
    rng = np.random.default_rng(seed)
    return {
        step: 2 + 2 * float(np.exp(-step / 100)) + noise * float(rng.standard_normal()) + sum(map(added, used(step)))
        for step in steps
    }


def make_texts(folder: Path, n: int, shards: int) -> Path:
    """A dataset of texts, all in the split part `train`."""
    make_text_dataset(folder, n=n, shards=shards, prepared=False)
    prepare_dataset(
        folder, split_ratio={"train": 1}, sample_type="TextSample", field_map={"text": "txt"}, num_workers=0
    )
    return folder


class Dropping(TaskEncoder):
    """Drops a few samples."""

    __default_failure_tolerance__ = 0

    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__) % 20 == 3:
            raise SkipSample
        return sample


class Packing(TaskEncoder):
    """Packs of one to three samples."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        packs: list[list[Any]] = [[]]
        for sample in samples:
            packs[-1].append(sample)
            if int(sample.__key__) % 3 == 0 or len(packs[-1]) == 3:
                packs.append([])
        return [pack for pack in packs if pack]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


class Filtering(TaskEncoder):
    """Drops a few samples, which moves the later ones of their lanes up."""

    __default_failure_tolerance__ = 0

    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__) % 50 == 7:
            raise SkipSample
        return sample
