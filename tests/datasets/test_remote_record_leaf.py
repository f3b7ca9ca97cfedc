"""ArrayRecord files in a bucket: the samples, stream and state of the same files on this machine, in few requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_server import Bucket
from records import encode_example, msgpack_record, write_records, write_shards
from stream_hosts import open_share, text_batches

from energon_grain import ReadError, StaleIndexError, StorageSettings, use_storage
from energon_grain.formats.data_folder import look_again, open_folder
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.lint import lint_dataset
from energon_grain.prepare.summary import summarize_dataset
from energon_grain.sources import remote_runs
from energon_grain.sources.array_record import ArrayRecordFileStore, ArrayRecordSource
from energon_grain.testing import write_tars

COUNT = 90
SAMPLES: list[dict[str, Any]] = [
    {"__key__": f"{number:03d}", "txt": b"text %d " % number * (number % 50), "bin": bytes([number]) * (number * 37)}
    for number in range(COUNT)
]
OPTIONS: dict[str, Any] = {
    "split_ratio": {"train": 5, "val": 1},
    "sample_type": "TextSample",
    "field_map": {"text": "txt"},
    "num_workers": 0,
}
WRITTEN = ("group_size:1,uncompressed", "group_size:1,zstd", "group_size:8,brotli")


@pytest.fixture(params=WRITTEN)
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "records" / "texts"
    write_shards(root, [msgpack_record(sample) for sample in SAMPLES], 6, request.param)
    prepare_dataset(root, records="msgpack", **OPTIONS)
    return root


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    root = tmp_path / "tars" / "texts"
    write_tars(root, SAMPLES, shards=6)
    prepare_dataset(root, **OPTIONS)
    return root


@pytest.mark.parametrize(("workers", "kind"), [(0, "thread"), (2, "thread"), (2, "process")])
def test_the_stream_is_that_of_the_same_files_here(bucket: Bucket, records: Path, workers: int, kind: str) -> None:
    url = bucket.upload(records, "data/texts")
    with open_share(records) as here, open_share(url, workers=workers, kind=kind) as there:
        assert text_batches(there, 40) == text_batches(here, 40)


def test_a_run_goes_on_in_another_container_on_other_hosts(bucket: Bucket, records: Path, tars: Path) -> None:
    first, second = bucket.upload(tars, "tars/texts"), bucket.upload(records, "records/texts")
    with open_share(tars) as stream:
        text_batches(stream, 7)
        state = stream.cursor()
        expected = [next(stream).__key__ for _ in range(20)]
    for url in (first, second):
        hosts = [open_share(url, host=host, hosts=2) for host in range(2)]
        for stream in hosts:
            stream.restore(state)
        found = [[next(stream).__key__ for stream in hosts] for _ in range(20)]
        assert [sorted([*one, *two]) for one, two in found] == [sorted(keys) for keys in expected]
        for stream in hosts:
            stream.close()


def test_reads_and_requests(bucket: Bucket, records: Path) -> None:
    url = bucket.upload(records)
    source, here = ArrayRecordSource(url), ArrayRecordSource(records)
    assert source.content_id == here.content_id
    assert source.path == url
    bucket.server.reset()
    for indices in (np.arange(COUNT), np.array([5, 88, 5, 0]), np.array([], np.int64)):
        there, expected = source.read(indices), here.read(indices)
        assert there.keys == expected.keys
        assert there.columns == expected.columns
    # A look at the end of each file, and one block of the cache: all of it.
    assert len(bucket.server.requests(".array_record")) == 12
    source.close()
    assert source.read(np.array([3])).keys == ["003"]
    (extents,) = source.extents(np.array([0, 89]))
    assert [extents.files] == list(source.remote_files)
    assert (extents.owner.tolist(), len(extents.paths)) == ([0, 1], 6)
    spans = extents.spans
    for place, sample in ((0, 0), (1, 89)):
        assert spans.stop[spans.span[place]] > spans.start[spans.span[place]]
        assert extents.paths[int(spans.file[spans.span[place]])].endswith(f"shard_{sample // 15:03d}.array_record")
    assert list(here.remote_files) == here.extents(np.array([0])) == []


def test_without_a_block_size_runs_of_a_store_are_read(
    bucket: Bucket, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ArrayRecordSource(bucket.upload(records))
    size = sum(path.stat().st_size for path in records.glob("*.array_record"))
    monkeypatch.setattr(remote_runs, "REMOTE_RUN_BYTES", size // 10)
    assert source.run_samples in (8, 9)
    assert ArrayRecordSource(records).run_samples is None


def test_without_a_cache_on_disk(bucket: Bucket, records: Path) -> None:
    url = bucket.upload(records, "data/texts")
    use_storage(StorageSettings(cache_bytes=0))
    with open_share(records) as here, open_share(url, workers=1) as there:
        assert text_batches(there, 30) == text_batches(here, 30)


def test_single_parts(bucket: Bucket, records: Path) -> None:
    store, here = ArrayRecordFileStore(bucket.upload(records)), ArrayRecordFileStore(records)
    keys = ["044.txt", "007.bin", "044.bin"]
    assert [value for value, _ in store.read(keys)] == [value for value, _ in here.read(keys)]
    assert "044.none" not in store


def test_files_that_changed(bucket: Bucket, records: Path) -> None:
    url = bucket.upload(records, "texts")
    name = "texts/shard_002.array_record"
    good = bucket.get(name)
    changed = [
        (good[:-65536], "ends before"),
        (good + bytes(100), rf"it has {len(good) + 100} bytes, not {len(good)}"),
        (bucket.get("texts/shard_001.array_record"), "bytes, not|ends before|has the key|records, not"),
    ]
    for content, what in changed:
        bucket.put(name, content)
        with pytest.raises(StaleIndexError, match=rf"shard_002\.array_record.*({what}).*--tar-index-only"):
            ArrayRecordSource(url).read(np.array([0, 32]))
    bucket.put(name, bytes(len(good)))
    with pytest.raises(ReadError, match=r"shard_002\.array_record: is no ArrayRecord file"):
        ArrayRecordSource(url).read(np.array([32]))
    bucket.delete(name)
    with pytest.raises(ReadError, match=r"shard_002\.array_record"):
        ArrayRecordSource(url).read(np.array([32]))
    bucket.put(name, good)
    source = ArrayRecordSource(url)
    assert source.read(np.array([32])).keys == ["032"]


@pytest.mark.parametrize("encoding", ["msgpack", "tf_example", "raw"])
def test_prepared_in_the_bucket(bucket: Bucket, tmp_path: Path, encoding: Any) -> None:
    content = {
        "msgpack": [msgpack_record(sample) for sample in SAMPLES],
        "tf_example": [encode_example({"txt": [sample["txt"]], "n": [7, 8]}) for sample in SAMPLES],
        "raw": [sample["txt"] for sample in SAMPLES],
    }[encoding]
    root = tmp_path / "records"
    write_shards(root, content, 4)
    url = bucket.upload(root, f"in {encoding}")
    options: dict[str, Any] = {"records": encoding, "split_ratio": {"train": 1}, "crude": True}
    report, here = prepare_dataset(url, **options), prepare_dataset(root, **options)
    assert (report.shard_counts, report.size_bytes, report.part_names) == (
        here.shard_counts,
        here.size_bytes,
        here.part_names,
    )
    assert ArrayRecordSource(url).content_id == ArrayRecordSource(root).content_id
    assert lint_dataset(url).findings == ()
    assert summarize_dataset(url).samples == COUNT
    write_records(root / "shard_003.array_record", content[:5])
    bucket.put(f"in {encoding}/shard_003.array_record", (root / "shard_003.array_record").read_bytes())
    look_again(open_folder(url))
    finding, _ = lint_dataset(url).findings
    assert "has 5 samples, .info.json says" in finding.what
