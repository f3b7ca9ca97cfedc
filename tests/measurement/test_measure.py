"""What is measured, never how fast it was."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from metadatasets import v2
from object_server import Bucket

from energon_grain import DefaultTaskEncoder, SampleDecoder, StorageSettings, WorkerConfig, get_train_dataset
from energon_grain.conversion import convert_dataset
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.errors import ConfigError
from energon_grain.measurement import storage as page_cache
from energon_grain.measurement.advice import advise, advise_on_store, store_bound
from energon_grain.measurement.figures import Figures
from energon_grain.measurement.measure import measure_dataset, measure_stages
from energon_grain.measurement.planned_reads import plan_reads, settled_pace
from energon_grain.storage.settings import storage_settings, using_storage
from energon_grain.stream.stage import PureStage
from energon_grain.testing import make_captioning_dataset, make_text_dataset


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_captioning_dataset(tmp_path_factory.mktemp("bench") / "captions", n=60, shards=3, broken={7})


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_dataset(tmp_path_factory.mktemp("bench") / "texts", n=300, shards=3)


class Encoder(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="rgb8")

    def encode_sample(self, sample: Any) -> Any:
        return sample


class SlowEncoder(DefaultTaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        time.sleep(0.01)
        return sample


class Packer(DefaultTaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


def measured(
    path: Path | str | dict[str, Any],
    encoder: DefaultTaskEncoder,
    workers: tuple[int, ...] = (0, 1, 64_000),
    seconds: float = 0.02,
    **arguments: Any,
) -> Figures:
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1),
        task_encoder=encoder,
        **{"batch_size": 4, "shuffle_buffer_size": None, "max_samples_per_sequence": None, **arguments},
    )
    return measure_dataset(dataset, path="data", workers=workers, seconds=seconds)


def test_all_stages_of_a_dataset(captions: Path, caplog: pytest.LogCaptureFixture) -> None:
    figures = measured(captions, Encoder())
    assert [stage.name for stage in figures.stages] == ["storage", "decode", "encode_sample", "batch", "rest"]
    assert sum(stage.share for stage in figures.stages) == pytest.approx(1)
    assert [stage.name for stage in figures.stages if stage.serial] == ["encode_sample", "batch"]
    assert figures.bound in figures.stages
    assert [run.workers for run in figures.pipeline] == [0, 1]
    assert all(run.samples_per_s > 0 and run.first_batch_s > 0 for run in figures.pipeline)
    assert figures.best in figures.pipeline
    assert (figures.batch_size, figures.dataset_samples, figures.block) == (4, 40, None)
    assert figures.image_decode == "rgb8"
    assert figures.memcpy_bytes_per_s > 0
    assert set(figures.dropped) <= {"decode: DecodingError"}
    assert not caplog.records
    assert any("no more workers than that" in note for note in figures.notes)


@pytest.mark.skipif(not page_cache.CAN_DROP, reason="the system has no posix_fadvise")
def test_storage_is_compared_with_plain_reads(texts: Path) -> None:
    storage = measured(texts, DefaultTaskEncoder()).storage
    for rate in (storage.warm, storage.cold, storage.pread_warm, storage.pread_cold):
        assert rate is not None
        assert min(rate.samples_per_s, rate.bytes_per_s, rate.requests_per_s, rate.seconds) > 0
    assert storage.still_cached is None or 0 <= storage.still_cached <= 1
    assert storage.request_bytes > 0


def test_blends_and_blocks(captions: Path, texts: Path) -> None:
    mixture = v2(train={"blend": [{"weight": 1, "path": str(path)} for path in (captions, texts)]})
    figures = measured(mixture, DefaultTaskEncoder(), batch_size=None, max_samples_per_sequence=4)
    assert [stage.name for stage in figures.stages] == ["storage", "decode", "rest"]
    assert figures.block == 4  # of the larger one; the other has fewer blocks than lanes
    assert figures.dataset_samples == 40 + 200


def test_joins(captions: Path) -> None:
    """Ranges are those of all datasets of a row."""
    mixture = v2(train={"join": [{"path": str(captions)}, {"path": str(captions)}]})
    figures = measured(mixture, DefaultTaskEncoder())
    assert [stage.name for stage in figures.stages] == ["storage", "decode", "batch", "rest"]
    assert figures.image_decode == "torchrgb"
    assert figures.storage.pread_warm is not None


def test_lanes_with_a_program_show_in_the_pipeline_alone(texts: Path) -> None:
    figures = measured(texts, Packer(), packing_buffer_size=4)
    assert [stage.name for stage in figures.stages] == ["storage", "decode"]
    assert any("Lanes" in note for note in figures.notes)


def sent_bytes(bucket: Bucket) -> int:
    return sum(request.sent_bytes for request in bucket.server.requests(".tar"))


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_what_lies_in_a_store_is_read_past_the_cache_and_out_of_it(texts: Path, bucket: Bucket, kind: Any) -> None:
    dataset = get_train_dataset(
        bucket.upload(texts, "texts"),
        worker_config=WorkerConfig(rank=0, world_size=1, worker_type=kind),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    before = storage_settings()
    bucket.server.reset()
    figures = measure_dataset(dataset, path="data", workers=(0, 1), seconds=0.05)
    storage = figures.storage
    assert storage.cold is not None
    assert storage.pread_cold is not None
    assert storage.store is not None
    for rate in (storage.cold, storage.pread_cold, figures.pipeline[0].fetched):
        assert rate is not None
        assert min(rate.samples_per_s, rate.bytes_per_s, rate.requests_per_s, rate.seconds) > 0
    assert storage.warm.samples_per_s > 0
    assert 0 < storage.store.latency_s < 1
    assert storage.store.fetched_bytes >= figures.sample_bytes
    assert storage.store.requests_in_flight == before.requests_in_flight
    assert [stage.name for stage in figures.stages] == ["storage", "decode", "batch"]
    assert (figures.pipeline[1].fetched is None) == (kind == "process")
    assert any("past the cache" in note for note in figures.notes)
    assert storage_settings() == before
    # Several times the dataset has come: nothing of the pipeline was in the cache.
    assert sent_bytes(bucket) > 2 * sum(tar.stat().st_size for tar in texts.glob("*.tar"))


def test_a_store_that_is_waited_for_is_named_first(texts: Path, bucket: Bucket) -> None:
    url = bucket.upload(texts, "texts")
    bucket.server.delay(0.02)
    try:
        figures = measured(url, DefaultTaskEncoder())
    finally:
        bucket.server.reset()
    assert figures.storage.store is not None
    assert figures.storage.store.latency_s >= 0.02
    assert store_bound(figures) is not None
    assert advise(figures)[0] == advise_on_store(figures)


def test_a_store_that_is_not_waited_for_is_not_named(texts: Path, bucket: Bucket) -> None:
    figures = measured(bucket.upload(texts, "texts"), SlowEncoder(), workers=(0,), seconds=0.5)
    assert store_bound(figures) is None
    assert advise(figures)[0].startswith("Once the cache is warm, your encode_sample takes")


def test_a_pass_over_a_store_is_read_once(texts: Path, bucket: Bucket) -> None:
    """Samples that come again, in a larger chunk than the dataset, would count although they take nothing."""
    figures = measured(bucket.upload(texts, "texts"), DefaultTaskEncoder(), batch_size=64)
    storage = figures.storage
    assert storage.cold is not None
    assert storage.store is not None
    assert storage.cold.samples_per_s * figures.sample_bytes <= storage.cold.bytes_per_s
    assert storage.store.fetched_bytes >= figures.sample_bytes


def test_few_samples_are_shuffled_fully(texts: Path) -> None:
    figures = measured(texts, DefaultTaskEncoder(), max_samples_per_sequence=100)
    assert (figures.block, figures.refused_block, figures.largest_block) == (None, 100, 200 // 48)
    assert any("Blocks of 100 samples would be fewer than the 48 lanes" in note for note in figures.notes)
    figures = measured(texts, DefaultTaskEncoder(), max_samples_per_sequence=2)
    assert (figures.block, figures.refused_block) == (2, None)


def test_without_a_cache_there_is_no_second_epoch(texts: Path, bucket: Bucket) -> None:
    with using_storage(StorageSettings(cache_bytes=0)):
        figures = measured(bucket.upload(texts, "texts"), DefaultTaskEncoder())
    assert figures.storage.warm == figures.storage.cold
    assert any("keep no blocks" in note for note in figures.notes)


def test_joins_and_mixtures_of_both_kinds(captions: Path, texts: Path, bucket: Bucket) -> None:
    url = bucket.upload(captions, "captions")
    for node in ({"join": [{"path": url}, {"path": str(captions)}]}, {"concat": [{"path": str(texts)}, {"path": url}]}):
        document = v2(train=node)
        figures = measured(document, DefaultTaskEncoder(), batch_size=None)
        assert figures.storage.store is not None
        assert figures.storage.store.fetched_bytes > 0


@pytest.fixture
def stage(texts: Path) -> Iterator[tuple[PureStage, Any]]:
    dataset = get_train_dataset(texts, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None)
    spec = compile_dataset(dataset)
    stage = PureStage(spec)
    yield stage, spec
    stage.close()


def test_a_plan_ends_with_the_pass(texts: Path) -> None:
    """Where a batch has more samples than the dataset, which the stream reads again for it."""
    dataset = get_train_dataset(texts, batch_size=300, shuffle_buffer_size=None, max_samples_per_sequence=None)
    spec = compile_dataset(dataset)
    with closing(PureStage(spec)) as stage:
        planned = plan_reads(spec, stage, 300, settled_pace(spec, stage, 300, 0.0))
        assert sum(len(chunk.draws) for chunk in planned.chunks) == 200
        clock = measure_stages(spec, stage, planned.chunks, 10.0)
    assert clock.samples >= 300
    assert clock.batched == 300


def test_planned_reads_cover_what_the_reader_reads(stage: tuple[PureStage, Any]) -> None:
    """The text of every planned sample lies in the planned ranges."""
    reader, spec = stage
    planned = plan_reads(spec, reader, 4, settled_pace(spec, reader, 4, 0.0))
    assert planned.spans is not None
    assert sum(len(chunk.draws) for chunk in planned.chunks) >= 40
    for chunk, spans in zip(planned.chunks, planned.spans, strict=True):
        content: list[bytes] = []
        for path, start, size in spans:
            with open(path, "rb") as file:
                content.append(os.pread(file.fileno(), size, start))
        ((_, _, _, batch),) = reader.read(chunk.draws)
        for raw in batch:
            assert any(raw.parts["txt"] in read for read in content)


def test_dropping_leaves_files_as_they_are(texts: Path) -> None:
    if not page_cache.CAN_DROP:
        pytest.skip("the system has no posix_fadvise")
    tar = texts / "shard_000.tar"
    before = tar.read_bytes()
    assert page_cache.cached_share([(str(tar), 0)]) in (1.0, None)
    page_cache.drop([str(tar)])
    assert tar.read_bytes() == before
    assert page_cache.cached_share([]) is None


@pytest.mark.parametrize(("arguments", "said"), [({"workers": ()}, "workers="), ({"seconds": 0.0}, "seconds=")])
def test_wrong_arguments(texts: Path, arguments: dict[str, Any], said: str) -> None:
    dataset = get_train_dataset(texts, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None)
    with pytest.raises(ConfigError, match=said):
        measure_dataset(dataset, path="data", **arguments)


def test_records_are_no_ranges_that_are_known(texts: Path, tmp_path: Path) -> None:
    convert_dataset(texts, tmp_path / "records")
    figures = measured(tmp_path / "records", DefaultTaskEncoder())
    assert (figures.storage.pread_warm, figures.storage.cold, figures.storage.request_bytes) == (None, None, 0)
    assert figures.storage.warm.samples_per_s > 0
