"""Arrays in object stores as leaves and as columns of joins: the batches of local ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import numbered, write_array, write_group
from metadatasets import write_v2
from object_server import Bucket

from energon_grain import (
    DatasetNotFoundError,
    Stream,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_grain.testing import make_crude_dataset

ROWS = 60


def dataset(path: Any, **options: Any) -> Any:
    config = WorkerConfig(rank=0, world_size=1, **options)
    return get_train_dataset(
        path, worker_config=config, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=5
    )


def trained(path: Any, steps: int = 10) -> list[list[int]]:
    with Stream.of(dataset(path, num_workers=0)) as stream:
        return [next(stream)["n"].tolist() for _ in range(steps)]


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    return write_group(tmp_path / "frames.zarr", "zarr3", n=np.arange(ROWS), image=numbered(ROWS, 3, 2))


def test_the_batches_of_a_local_one(frames: Path, tmp_path: Path, bucket: Bucket) -> None:
    url = bucket.upload(frames, "frames.zarr")
    assert trained(url) == trained(frames)
    text = "{{path: {}, name: same, subset: {{range: [10, 50]}}}}"
    here = trained(write_v2(tmp_path, train=text.format("frames.zarr")))
    assert trained(write_v2(tmp_path, train=text.format(url))) == here
    with pytest.raises(DatasetNotFoundError):
        trained(f"{bucket.url}/none.zarr")


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers(frames: Path, bucket: Bucket, worker_type: Any) -> None:
    url = bucket.upload(frames, "frames.zarr")
    with get_savable_loader(dataset(url, num_workers=2, worker_type=worker_type)) as loader:
        batches = iter(loader)
        assert [next(batches)["n"].tolist() for _ in range(5)] == trained(frames, 5)


def test_columns_of_joins(tmp_path: Path, bucket: Bucket) -> None:
    make_crude_dataset(tmp_path / "crude", n=20, shards=2)
    keys = [sample["__key__"] for sample in samples(tmp_path / "crude")]
    vectors = bucket.upload(write_array(tmp_path / "vectors", numbered(20, 2), chunk=(7, 2)), "vectors.zarr")
    scores = bucket.upload(write_array(tmp_path / "scores", numbered(3)), "scores.zarr")
    bucket.put("scored.txt", "".join(f"{keys[number]}\n" for number in (5, 0, 7)).encode())
    text = "{{join: [{{path: crude}}, {{array: {}}}, {{array: {}, keys: {}, nonmatch: none}}]}}"
    path = write_v2(tmp_path, train=text.format(vectors, scores, f"{bucket.url}/scored.txt"))
    rows = samples(path)
    assert [row["vectors"].tolist() for row in rows] == numbered(len(rows), 2).tolist()
    found = {row["__key__"]: float(row["scores"]) for row in rows if row.get("scores") is not None}
    assert found == {keys[5]: 0.0, keys[0]: 1.0, keys[7]: 2.0}
    path = write_v2(tmp_path, train=text.format(vectors, scores, f"{bucket.url}/none.txt"))
    with pytest.raises(DatasetNotFoundError, match="one key a line: there is none"):
        samples(path)


def samples(path: Path) -> list[Any]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    return list(get_val_dataset(path, split_part="train", worker_config=config, batch_size=None))
