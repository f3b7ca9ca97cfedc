"""What workers of a `DataLoader` have to do with files: cache pools, and logs."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from metadatasets import write_v2

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
    get_savable_loader,
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
