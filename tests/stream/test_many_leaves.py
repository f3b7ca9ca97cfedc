"""Blends of many datasets: what a chunk has of each is read together, and few files stay open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_server import ObjectServer
from stream_hosts import train_on

from energon_grain import (
    BatchDataset,
    BlendDataset,
    Cooker,
    DefaultTaskEncoder,
    MapDataset,
    MetadatasetV2,
    ReadError,
    SampleDecoder,
    SkipSample,
    StorageSettings,
    WorkerConfig,
    current_draw,
    get_savable_loader,
    get_train_dataset,
    stateless,
    use_storage,
)
from energon_grain.loader import EnergonDataSource
from energon_grain.stream import index_map
from energon_grain.stream.chunks import Chunk, ChunkPace, Encoded
from energon_grain.stream.index_map import Draws
from energon_grain.testing import make_blob_dataset, make_crude_dataset, make_text_dataset

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


def test_sizes_of_many_leaves_are_those_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a leaf is small enough for the table or not, and asked before or not."""
    monkeypatch.setattr(index_map, "_SMALL", 8)
    monkeypatch.setattr(index_map, "_KEPT", 200)
    paths = [make_text_dataset(tmp_path / f"d{i}", n=5 + i % 5, shards=1, seed=i) for i in range(64)]
    alone = [EnergonDataSource(path)._stage.sources[0] for path in paths]
    sources = index_map.Sources(alone)
    rng = np.random.default_rng(0)
    for count in (3, 40, 2000):
        leaf = rng.integers(64, size=count).astype(np.int32)
        index = rng.integers(5, size=count)
        sizes = sources.sizes(Draws(leaf=leaf, child=index, index=index, epoch=index))
        expected = [int(alone[at].sizes(index[[place]])[0]) for place, at in enumerate(leaf.tolist())]
        assert sizes.tolist() == expected


def test_an_error_names_the_dataset_it_is_in(tmp_path: Path) -> None:
    paths = [make_text_dataset(tmp_path / f"d{i}", n=10, shards=1) for i in range(5)]
    (gone,) = paths[3].glob("*.tar")
    gone.unlink()
    train: Any = {"blend": [{"path": str(path), "weight": 1} for path in paths]}
    blend = MetadatasetV2(splits={"train": train})
    dataset = get_train_dataset(blend, batch_size=16, shuffle_buffer_size=None, max_samples_per_sequence=None)
    with pytest.raises(ReadError, match=rf"{gone}.*put it back.*prepare {paths[3]} --force-overwrite"):
        list(islice(get_savable_loader(dataset), 10))


class Counting(SampleDecoder):
    """Counts how often a column is decoded."""

    calls = 0

    def decode_column(self, part: str, column: list[bytes], groups: Sequence[range] = ()) -> list[Any]:
        Counting.calls += 1
        return super().decode_column(part, column, groups)


def test_leaves_that_are_alike_are_decoded_together(tmp_path: Path) -> None:
    paths = [make_text_dataset(tmp_path / f"d{i}", n=10, shards=1) for i in range(30)]
    encoder = DefaultTaskEncoder()
    encoder.decoder = Counting()
    train: Any = {"blend": [{"path": str(path), "weight": 1} for path in paths]}
    dataset = train_on(
        MetadatasetV2(splits={"train": train}), batch_size=60, task_encoder=encoder, worker_config=WorkerConfig(0, 1, 0)
    )
    Counting.calls = 0
    assert len(set(next(iter(get_savable_loader(dataset))).__sources__)) > 30
    assert Counting.calls == 1


@dataclass(frozen=True)
class Named:
    """Equal to others of its kind, whatever it does."""

    name: str = field(compare=False)

    def __call__(self, sample: Any) -> Any:
        (source,) = sample.__sources__
        return self.name, str(source.dataset_path)


def test_hooks_that_their_author_calls_equal_stay_apart(tmp_path: Path) -> None:
    paths = [make_text_dataset(tmp_path / f"d{i}", n=10, shards=1) for i in range(3)]
    given: Any = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    leaves = [MapDataset(get_train_dataset(path, **given), Named(str(path))) for path in paths]
    loader = get_savable_loader(BatchDataset(BlendDataset(*leaves), 30, list))
    assert {sample for batch in islice(loader, 3) for sample in batch} == {(str(path), str(path)) for path in paths}


@pytest.mark.parametrize(
    ("leaves", "sample_s", "chunk_s", "samples"),
    [
        (1, 0, 0.15, 32),  # a batch stays in one chunk,
        (1, 0.0124, 0, 32),
        (1, 0.0126, 0, 7),  # but where it takes four times as long as a chunk may
        (1, 0.003, 0, 33),
        (1000, 0, 0.15, 16_000),  # of many leaves there are more samples, and they may take longer
    ],
)
def test_how_many_samples_a_chunk_holds(leaves: int, sample_s: float, chunk_s: float, samples: int) -> None:
    pace = ChunkPace(first=32, leaves=leaves)
    for _ in range(40):
        empty = np.zeros(pace.samples, np.int64)
        draws = Draws(leaf=empty.astype(np.int32), child=empty, index=empty, epoch=empty)
        encoded = Encoded(outcomes=[], restore_keys=[], drops=0, size_bytes=1)
        pace.learn(Chunk(number=0, draws=draws, size_bytes=1), encoded, chunk_s + sample_s * pace.samples)
    assert pace.samples == samples


LEAVES = 12


@pytest.mark.parametrize(("ahead_bytes", "alike"), [(0, True), (0, False), (1 << 20, True)])
def test_leaves_in_an_object_store_are_asked_side_by_side(
    tmp_path: Path, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, ahead_bytes: int, alike: bool
) -> None:
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = object_server.make_bucket(f"leaves-{ahead_bytes}-{alike}".lower())
    for number in range(LEAVES):
        path = make_text_dataset(tmp_path / f"d{number}", n=3, shards=1)
        if not alike:
            config = path / ".nv-meta" / "dataset.yaml"
            config.write_text(config.read_text().replace("text: txt", f"text: txt,other{number}"))
    bucket.upload(tmp_path)
    use_storage(StorageSettings(cache_bytes=0, ahead_bytes=ahead_bytes))
    train: Any = {"blend": [{"path": f"{bucket.url}/d{number}", "weight": 1} for number in range(LEAVES)]}
    dataset = get_train_dataset(
        MetadatasetV2(splits={"train": train}), batch_size=LEAVES, shuffle_buffer_size=None, max_samples_per_sequence=1
    )
    bucket.server.reset()
    bucket.server.delay(0.2)
    try:
        next(iter(get_savable_loader(dataset)))
        # The first ones are looks at shards, of which each leaf has one.
        assert max(request.concurrent for request in bucket.server.requests(".tar")[: LEAVES // 2]) >= LEAVES // 3
    finally:
        bucket.server.reset()


class Telling(DefaultTaskEncoder):
    """Drops some samples; the others say what a hook was told of them."""

    decoder = None
    cookers = (
        Cooker(lambda sample: told(sample, "a"), has_subflavors={"cook": "a"}),
        Cooker(lambda sample: told(sample, "b"), has_subflavors={"cook": "b"}),
    )

    @stateless
    def batch(self, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return samples


def told(sample: dict[str, Any], cook: str) -> dict[str, Any]:
    draw = current_draw()
    (source,) = sample["__sources__"]
    if draw.index % 5 == 3:
        raise SkipSample
    told = cook, draw.index, draw.epoch, draw.position, float(draw.rng.random())
    return {**sample, "told": told, "source": (str(source.dataset_path), source.index, source.file_names)}


def test_each_sample_of_a_chunk_is_told_what_it_is_alone(tmp_path: Path) -> None:
    """Leaves of several kinds in one blend: with other parts, cookers, excludes and ranges."""
    blend: list[Any] = []
    for number in range(24):
        make = make_blob_dataset if number % 6 == 5 else make_crude_dataset
        path = make(tmp_path / f"d{number}", n=20 + number, shards=1 + number % 3, seed=number)
        if number % 4 == 1:
            split = path / ".nv-meta" / "split.yaml"
            split.write_text(split.read_text().replace("exclude: []", "exclude: [shard_000.tar/002]"))
        part: dict[str, Any] = {"path": str(path), "subflavors": {"cook": "ab"[number % 2], "number": number}}
        blend.append({**part, "subset": {"range": [2, 11]}} if number % 4 == 2 else part)
    splits: Any = {"train": {"blend": blend}}
    metadataset = MetadatasetV2(splits=splits)
    dataset = get_train_dataset(
        metadataset, batch_size=32, shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=Telling()
    )
    loader = get_savable_loader(dataset)
    leaves = set()
    for batch in islice(loader, 25):
        for sample in batch:
            leaves.add(sample["__subflavors__"]["number"])
            assert sample["source"][0].endswith(f"d{sample['__subflavors__']['number']}")
            assert sample["source"][1] == sample["told"][1]
            assert loader.restore_sample(sample["__restore_key__"]) == sample
    assert leaves == {*range(24)}
