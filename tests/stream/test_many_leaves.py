"""Blends of many datasets: what a chunk has of each is read together, and few files stay open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_grain import (
    MetadatasetV2,
    ReadError,
    get_savable_loader,
    get_train_dataset,
)
from energon_grain.loader import EnergonDataSource
from energon_grain.testing import make_text_dataset

FEW_DESCRIPTORS = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from energon_grain import *
paths = sys.argv[1:]
blend = MetadatasetV2(splits={"train": {"blend": [{"path": path} for path in paths]}})
dataset = get_train_dataset(blend, batch_size=8, shuffle_buffer_size=None, max_samples_per_sequence=None)
stream = iter(get_savable_loader(dataset))
shards = set()
while len(shards) < 300:
    batch = next(stream)
    shards |= {(str(source.dataset_path), source.shard_name) for each in batch.__sources__ for source in each}
assert len(os.listdir("/proc/self/fd")) < 128
print("done")
"""


def test_descriptors_do_not_grow_with_datasets(tmp_path: Path) -> None:
    paths = [os.fspath(make_text_dataset(tmp_path / f"d{i}", n=60, shards=40)) for i in range(12)]
    command = [sys.executable, "-c", FEW_DESCRIPTORS, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "done\n", done.stderr


def sources_of(batch: Any) -> Iterator[tuple[str, str, str]]:
    """(dataset, shard, key) of each sample of a batch."""
    for key, sources in zip(batch.__key__, batch.__sources__, strict=True):
        for source in sources:
            yield str(source.dataset_path), source.shard_name, key


def test_samples_read_together_are_those_read_alone(tmp_path: Path) -> None:
    paths = [make_text_dataset(tmp_path / f"d{i}", n=7 + i, shards=1 + i % 3, seed=i) for i in range(20)]
    alone = {}
    for path in paths:
        source = EnergonDataSource(path)
        for sample in source.__getitems__(range(len(source))):
            alone[os.fspath(path), sample.__key__] = sample.text
    train: Any = {"blend": [{"path": str(path), "weight": 1} for path in paths]}
    blend = MetadatasetV2(splits={"train": train})
    dataset = get_train_dataset(blend, batch_size=16, shuffle_buffer_size=None, max_samples_per_sequence=None)
    seen = set()
    for batch in islice(get_savable_loader(dataset), 200):
        for (path, _, key), text in zip(sources_of(batch), batch.text, strict=True):
            assert alone[path, key] == text
            seen.add((path, key))
    assert seen == alone.keys()


def test_an_error_names_the_dataset_it_is_in(tmp_path: Path) -> None:
    paths = [make_text_dataset(tmp_path / f"d{i}", n=10, shards=1) for i in range(5)]
    (gone,) = paths[3].glob("*.tar")
    gone.unlink()
    train: Any = {"blend": [{"path": str(path), "weight": 1} for path in paths]}
    blend = MetadatasetV2(splits={"train": train})
    dataset = get_train_dataset(blend, batch_size=16, shuffle_buffer_size=None, max_samples_per_sequence=None)
    with pytest.raises(ReadError, match=rf"{gone}.*put it back.*prepare {paths[3]} --force-overwrite"):
        list(islice(get_savable_loader(dataset), 10))
