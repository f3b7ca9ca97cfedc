"""Lanes that read from a bucket: what they get is what they get here, and comes in large requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from object_server import Bucket
from stream_hosts import quiet

from energon_grain import (
    SkipSample,
    StorageSettings,
    Stream,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    get_train_dataset,
    use_storage,
)
from energon_grain.testing import make_text_dataset


class Packing(TaskEncoder):
    """Drops some texts, and packs the others by length."""

    def encode_sample(self, sample: TextSample) -> TextSample:
        if int(sample.__key__) % 7 == 0:
            raise SkipSample
        return sample

    def select_samples_to_pack(self, samples: list[TextSample]) -> list[list[TextSample]]:
        return [samples[i : i + 3] for i in range(0, len(samples), 3)]

    def pack_selected_samples(self, samples: list[TextSample]) -> list[str]:
        return [sample.__key__ for sample in samples]

    def batch(self, samples: list[list[str]]) -> list[list[str]]:
        return samples


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_text_dataset(tmp_path / "texts", n=600, shards=3, text_bytes=3000)
    return tmp_path / "texts"


def opened(path: Any, *, workers: int = 2, **more: Any) -> Stream:
    config = WorkerConfig(0, 1, workers, global_error_handler=quiet)
    options = {"batch_size": 2, "packing_buffer_size": 9, "shuffle_buffer_size": 20, "max_samples_per_sequence": 6}
    return Stream.of(get_train_dataset(path, worker_config=config, task_encoder=Packing(), **(options | more)))


@pytest.mark.parametrize("more", [{}, {"repeat": False}, {"lanes": 4}])
def test_packs_of_a_bucket_are_those_of_a_folder(bucket: Bucket, folder: Path, more: dict[str, Any]) -> None:
    url = bucket.upload(folder, "texts")
    if more:
        use_storage(StorageSettings(ahead_bytes=600_000))
    with opened(folder, **more) as here, opened(url, **more) as there:
        for _ in range(2):
            count = 150 if "repeat" not in more else 1000
            expected = [(batch, here.cursor()) for _, batch in zip(range(count), here, strict=False)]
            assert [(batch, there.cursor()) for _, batch in zip(range(count), there, strict=False)] == expected
        assert len(expected) > 50


def test_lanes_fetch_each_block_once_in_few_requests(bucket: Bucket, folder: Path) -> None:
    url = bucket.upload(folder, "texts")
    with opened(url, repeat=False) as there:
        bucket.server.reset()
        list(there)
    requests = [request for request in bucket.server.requests(".tar") if request.sent_bytes > 20_000]
    size = sum(shard.stat().st_size for shard in folder.glob("*.tar"))
    assert sum(request.sent_bytes for request in requests) <= size
    assert len(requests) <= 12, "blocks of 256 KiB would be as many"


def test_a_restored_stream_fetches_ahead_from_where_it_is(bucket: Bucket, folder: Path) -> None:
    url = bucket.upload(folder, "texts")
    with opened(folder) as here, opened(url) as there:
        for _ in range(40):
            next(here)
        there.restore(here.cursor())
        assert [next(there) for _ in range(60)] == [next(here) for _ in range(60)]
