"""DataLoader workers that read a dataset in a bucket, after their parent has read from it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from object_server import Bucket

from energon_grain import ConfigError
from energon_grain.conversion import convert_dataset
from energon_grain_torch import WorkerConfig, get_loader, get_train_dataset


@pytest.mark.parametrize(("method", "container"), [(None, "tar"), ("spawn", "tar"), (None, "array_record")])
def test_workers_read_what_is_in_a_bucket(
    text_dataset: Callable[..., Path], bucket: Bucket, tmp_path: Path, method: str | None, container: str
) -> None:
    root = text_dataset(53)
    if container == "array_record":
        root = convert_dataset(root, tmp_path / "records", num_workers=0).target
    url = bucket.upload(root)

    def batches(workers: int, **options: Any) -> list[tuple[str, ...]]:
        config = WorkerConfig(0, 1, workers)
        dataset = get_train_dataset(
            url, worker_config=config, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=4
        )
        with get_loader(dataset, **options) as loader:
            return [tuple(batch.text) for batch in islice(loader, 40)]

    found = batches(2, multiprocessing_context=method)
    sent_bytes = sum(request.sent_bytes for request in bucket.server.requests(f".{container}"))
    assert sent_bytes < 1.5 * sum(shard.stat().st_size for shard in root.glob(f"*.{container}"))  # and their ends
    assert found == batches(0)


def test_workers_read_lines_and_ask_for_no_index(bucket: Bucket) -> None:
    bucket.put("x.jsonl", b"".join(b'{"n": %d}\n' % number for number in range(53)))

    def batches(workers: int, **options: Any) -> list[list[int]]:
        config = WorkerConfig(0, 1, workers)
        dataset = get_train_dataset(
            f"{bucket.url}/x.jsonl",
            worker_config=config,
            batch_size=4,
            shuffle_buffer_size=20,
            max_samples_per_sequence=4,
        )
        with get_loader(dataset, **options) as loader:
            return [[int(number) for number in batch["json"]["n"]] for batch in islice(loader, 40)]

    found = batches(2, multiprocessing_context="forkserver")
    assert len(bucket.server.requests("x.jsonl.idx")) == 1
    assert found == batches(0)


def test_a_fork_is_refused_with_the_reason(text_dataset: Callable[..., Path], bucket: Bucket) -> None:
    dataset = get_train_dataset(
        bucket.upload(text_dataset(53)),
        worker_config=WorkerConfig(0, 1, 2),
        batch_size=4,
        shuffle_buffer_size=20,
        max_samples_per_sequence=4,
    )
    with pytest.raises(ConfigError, match=r"lie in an object store, .* does not outlive a fork; use 'forkserver'"):
        next(iter(get_loader(dataset, multiprocessing_context="fork")))
