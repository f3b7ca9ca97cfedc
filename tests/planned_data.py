"""A text dataset with a column `tokens`, and hooks that say what packs are made of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_hosts import config

from energon_grain import Batch, Sample, SavableDataset, SkipSample, Stream, TaskEncoder, get_train_dataset
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.columns import ColumnStage
from energon_grain.formats.commit_journal import commit_staged, new_staging_folder
from energon_grain.formats.data_folder import open_folder
from energon_grain.testing import make_text_dataset

SAMPLES, CAPACITY = 600, 64


@functools.cache
def tokens_of(largest: int, samples: int = SAMPLES) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Tokens of each sample: log-normal, up to a largest."""
    return np.clip(np.random.default_rng(7).lognormal(2.5, 1.0, samples), 1, largest).astype(np.int64)


def add_column(root: Path, **columns: Any) -> Path:
    """Columns of numbers beside the index of a dataset."""
    staging = new_staging_folder(root)
    stage = ColumnStage(open_folder(root), staging, function="m:f", version=1)
    for name, values in columns.items():
        stage.new(name).append(np.asarray(values, np.float64))
    put, remove = stage.finish(open_columnar(root).content_id)
    commit_staged(root, staging, put=put, remove=remove)
    return root


def make_tokens(root: Path, largest: int = CAPACITY, samples: int = SAMPLES) -> Path:
    """A prepared dataset of texts with the columns `tokens` and `images`."""
    make_text_dataset(root, n=samples, shards=3)
    every = sorted(path.name for path in root.glob("*.tar"))
    (root / ".nv-meta" / "split.yaml").write_text(f"split_parts:\n  train: {every}\n  val: {every}\nexclude: []\n")
    return add_column(root, tokens=tokens_of(largest, samples), images=np.arange(samples) % 3)


@dataclass(kw_only=True)
class Pack(Sample):
    """What became of a pack: keys, ranges and random numbers of its samples, and its own."""

    members: tuple[tuple[str, int], ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    number: int = 0


@dataclass(kw_only=True)
class PackBatch(Batch):
    packs: tuple[Any, ...] = ()


class Packing(TaskEncoder):
    """Packs that say what they are made of; of each sample the key, and a random number of its own."""

    __default_failure_tolerance__ = 0

    def __init__(
        self, skipped: frozenset[int] = frozenset(), fails: Callable[[Any], bool] = lambda pack: False
    ) -> None:
        self.skipped, self.fails = skipped or set(), fails

    def postencode_sample(self, sample: Any) -> tuple[str, int]:
        if int(sample.__key__) in self.skipped:
            raise SkipSample("not this one")
        return sample.__key__, int(self.rng.integers(1 << 30))

    def pack_selected_samples(self, samples: list[Any], ranges: list[tuple[int, int]]) -> Pack:
        pack = Pack(
            __key__=",".join(key for key, _ in samples),
            __restore_key__=(),
            members=tuple(samples),
            ranges=tuple(ranges),
            number=int(self.rng.integers(1 << 30)),
        )
        if self.fails(pack):
            raise SkipSample("not this pack")
        return pack

    def batch(self, samples: list[Any]) -> PackBatch:
        return PackBatch(__key__=[], __restore_key__=(), packs=tuple(samples))


def told(pack: Pack) -> Any:
    return pack.members, pack.ranges, pack.number


def packed(path: Path, *, host: int = 0, hosts: int = 1, **options: Any) -> SavableDataset:
    """Packs, endless and shuffled, four a step over all hosts unless asked otherwise."""
    arguments: dict[str, Any] = {
        "batch_size": None,
        "shuffle_buffer_size": None,
        "max_samples_per_sequence": None,
        "task_encoder": Packing(),
        "worker_config": config(host, hosts),
        **options,
    }
    return get_train_dataset(path, **arguments)


def stream_of(path: Path, **options: Any) -> Stream:
    return Stream.of(packed(path, **options))


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No sample is larger than a pack."""
    return make_tokens(tmp_path_factory.mktemp("tokens") / "data")


@pytest.fixture(scope="session")
def long_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some samples are as large as four packs."""
    return make_tokens(tmp_path_factory.mktemp("tokens") / "data", largest=4 * CAPACITY)
