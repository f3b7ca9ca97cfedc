"""What workers of a `DataLoader` have to do with files: pools, logs, what does not outlive a fork."""

from __future__ import annotations

import gc
import json
import multiprocessing
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arrays import numbered, write_group
from metadatasets import write_v2
from object_server import Bucket

from energon_grain import ConfigError
from energon_grain.conversion import convert_dataset
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars
from energon_grain_torch import (
    BatchDataset,
    Cooker,
    FileStoreCachePool,
    LogSampleDataset,
    TaskEncoder,
    WorkerConfig,
    cooker,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)


@pytest.fixture(scope="module")
def metadataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_tars(folder / "main", [{"__key__": f"{i:03d}", "txt": f"{i % 3}.txt"} for i in range(24)], shards=2)
    prepare_dataset(folder / "main", split_ratio={"val": 1}, crude=True, num_workers=0, sqlite=False)
    (folder / "files").mkdir()
    for number in range(3):
        (folder / "files" / f"{number}.txt").write_text(f"file {number}")
    return write_v2(folder, val={"path": "main", "aux": {"files": "filesystem://files"}})


@stateless
@cooker(need_cache=True)
def cook(sample: Any, cache: Any, files: Any) -> Any:
    return {
        "__key__": sample["__key__"],
        "lazy": cache.get_lazy(files, sample["txt"]),
        "away": cache.to_cache(torch.tensor([int(sample["__key__"])]), "number"),
    }


class Late(TaskEncoder):
    """Reads when batches are made."""

    cookers = (Cooker(cook),)

    def batch(self, samples: list[Any]) -> Any:
        pool = type(self.cache).__name__
        return [(sample["__key__"], sample["lazy"].get(), sample["away"].get(), pool) for sample in samples]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_values_read_later(metadataset: Path, tmp_path: Path, start: str) -> None:
    pool = FileStoreCachePool(parent_cache_dir=tmp_path)
    config = WorkerConfig(0, 1, num_workers=2)
    dataset = get_val_dataset(metadataset, batch_size=4, worker_config=config, task_encoder=Late())
    with get_savable_loader(dataset, cache_pool=pool, multiprocessing_context=start) as loader:
        batches = list(loader)
    assert [(key, value, number.item(), used) for batch in batches for key, value, number, used in batch] == [
        (f"{i:03d}", f"file {i % 3}", i, "FileStoreCachePool") for i in range(24)
    ]
    gc.collect()
    assert pool.current_cache_count == 0
    pool.close()
    assert list(tmp_path.iterdir()) == []


def test_each_worker_has_a_log(metadataset: Path, tmp_path: Path) -> None:
    config = WorkerConfig(0, 1, num_workers=2, worker_log_level=2, worker_debug_path=f"{tmp_path}/{{worker_id}}.jsonl")
    samples = get_val_dataset(metadataset, batch_size=None, worker_config=WorkerConfig(0, 1))
    batches = BatchDataset(LogSampleDataset(samples, "val", config), 4, len, worker_config=config)
    with get_savable_loader(LogSampleDataset(batches, "val", config), multiprocessing_context="fork") as loader:
        assert list(loader) == [4] * 6
    files = {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in tmp_path.iterdir()}
    assert files.keys() <= {"0", "1", "2"}
    assert all(line["w"] == int(name) for name, lines in files.items() for line in lines)
    lines = [line for each in files.values() for line in each]
    assert {line["idx"] for line in lines if "keys" not in line} == set(range(6))
    assert sorted(line["keys"] for line in lines if "keys" in line) == [[f"{i:03d}"] for i in range(24)]


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
    for path, what in ((frames, "these data are arrays"), (bucket.upload(text_dataset(53)), "are in an object store")):
        for context in ("fork", multiprocessing.get_context("fork")):
            with (
                loader_of(path, 2, multiprocessing_context=context) as loader,
                pytest.raises(ConfigError, match=rf"{what},.* whose readers do not survive a fork: use 'forkserver'"),
            ):
                next(loader)
