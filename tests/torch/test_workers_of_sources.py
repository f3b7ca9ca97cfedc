"""DataLoader workers of datasets that do not outlive a fork: arrays, and what lies in a bucket; and remote lines."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import numbered, write_group
from object_server import Bucket

from energon_grain import ConfigError
from energon_grain.conversion import convert_dataset
from energon_grain_torch import WorkerConfig, get_loader, get_train_dataset

ROWS = 300


def loader_of(path: Any, workers: int, worker_type: Any = "dataloader", **options: Any) -> Any:
    config = WorkerConfig(0, 1, workers, worker_type=worker_type)
    dataset = get_train_dataset(
        path, worker_config=config, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=4
    )
    return get_loader(dataset, **options)


def batches(path: Any, workers: int, tell: Callable[[Any], Any], **options: Any) -> list[Any]:
    with loader_of(path, workers, **options) as loader:
        return [tell(batch) for batch in islice(loader, 40)]


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    return write_group(tmp_path / "frames.zarr", "zarr3", number=np.arange(ROWS), image=numbered(ROWS, 3, 2))


@pytest.mark.parametrize(
    "options", [{}, {"multiprocessing_context": "spawn"}, {"worker_type": "process"}], ids=["default", "spawn", "core"]
)
def test_workers_read_arrays(frames: Path, options: dict[str, Any]) -> None:
    """Although this process has read some before."""

    def tell(batch: Any) -> Any:
        return batch["number"].tolist(), batch["image"].tolist()

    here = batches(frames, 0, tell)
    assert all(images == numbered(ROWS, 3, 2)[numbers].tolist() for numbers, images in here)
    assert batches(frames, 2, tell, **options) == here


@pytest.mark.parametrize(("method", "container"), [(None, "tar"), ("spawn", "tar"), (None, "array_record")])
def test_workers_read_what_is_in_a_bucket(
    text_dataset: Callable[..., Path], bucket: Bucket, tmp_path: Path, method: str | None, container: str
) -> None:
    root = text_dataset(53)
    if container == "array_record":
        root = convert_dataset(root, tmp_path / "records", num_workers=0).target
    url = bucket.upload(root)
    found = batches(url, 2, lambda batch: tuple(batch.text), multiprocessing_context=method)
    sent_bytes = sum(request.sent_bytes for request in bucket.server.requests(f".{container}"))
    assert sent_bytes < 1.5 * sum(shard.stat().st_size for shard in root.glob(f"*.{container}"))  # and their ends
    assert found == batches(url, 0, lambda batch: tuple(batch.text))


def test_workers_read_lines_and_ask_for_no_index(bucket: Bucket) -> None:
    bucket.put("x.jsonl", b"".join(b'{"n": %d}\n' % number for number in range(53)))
    url = f"{bucket.url}/x.jsonl"
    found = batches(url, 2, lambda batch: list(batch["json"]["n"]), multiprocessing_context="forkserver")
    assert len(bucket.server.requests("x.jsonl.idx")) == 1
    assert found == batches(url, 0, lambda batch: list(batch["json"]["n"]))


def test_forks_are_refused_before_they_are_made(
    frames: Path, text_dataset: Callable[..., Path], bucket: Bucket
) -> None:
    for path, what in ((frames, "these data are arrays"), (bucket.upload(text_dataset(53)), "lie in an object store")):
        for context in ("fork", multiprocessing.get_context("fork")):
            with (
                loader_of(path, 2, multiprocessing_context=context) as loader,
                pytest.raises(ConfigError, match=rf"{what}, .* does not outlive a fork; use 'forkserver'"),
            ):
                next(loader)
