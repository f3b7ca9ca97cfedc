"""ArrayRecord files as leaves, here and in a bucket: samples, stream, state and stores of the same samples in tars."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from metadatasets import write_v2
from object_server import Bucket
from records import encode_example, msgpack_record, write_records, write_shards
from stream_hosts import open_share, text_batches

from energon_grain import (
    Cooker,
    DatasetNotFoundError,
    DefaultTaskEncoder,
    EPath,
    ReadError,
    StaleIndexError,
    StorageSettings,
    Stream,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_train_dataset,
    get_val_dataset,
    stateless,
    use_storage,
)
from energon_grain.formats.data_folder import look_again, open_folder
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.lint import lint_dataset
from energon_grain.prepare.summary import summarize_dataset
from energon_grain.sources import remote_runs
from energon_grain.sources.array_record import ArrayRecordFileStore, ArrayRecordSource
from energon_grain.testing import write_tars

ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)
COUNT = 60
SAMPLES = [{"__key__": f"{number:03d}", "txt": b"text %d" % number} for number in range(COUNT)]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """The same samples under the same name in tars and in records."""
    options: dict[str, Any] = {
        "split_ratio": {"train": 5, "val": 1},
        "sample_type": "TextSample",
        "field_map": {"text": "txt"},
        "num_workers": 0,
    }
    tars, records = tmp_path / "tars" / "texts", tmp_path / "records" / "texts"
    write_tars(tars, SAMPLES, shards=6)
    prepare_dataset(tars, **options)
    write_shards(records, [msgpack_record(sample) for sample in SAMPLES], 6)
    prepare_dataset(records, records="msgpack", **options)
    return tars, records


def stream_of(path: Path, **options: Any) -> Stream:
    given = {"batch_size": 4, "shuffle_buffer_size": 20, "max_samples_per_sequence": 5, **options}
    return Stream.of(get_train_dataset(path, worker_config=ONE, **given))


def keys_of(stream: Stream, steps: int) -> list[list[str]]:
    return [list(next(stream).__key__) for _ in range(steps)]


@pytest.mark.parametrize("blocks", [5, None])
def test_a_cursor_goes_on_in_the_other_container(pair: tuple[Path, Path], blocks: int | None) -> None:
    options: dict[str, Any] = {"max_samples_per_sequence": blocks, "shuffle_buffer_size": 20 if blocks else None}
    for one, other in (pair, pair[::-1]):
        with stream_of(one, **options) as stream:
            keys_of(stream, 7)
            state = stream.cursor(with_manifest=True)
            expected = keys_of(stream, 20)
        with stream_of(other, **options) as stream:
            stream.restore(state)
            assert keys_of(stream, 20) == expected


def test_samples(pair: tuple[Path, Path]) -> None:
    (_, records) = pair
    samples = list(get_val_dataset(records, worker_config=ONE, batch_size=None))
    assert [sample.text for sample in samples] == [f"text {number}" for number in range(50, 60)]
    assert samples[0].__key__ == "050"
    (source,) = samples[0].__sources__
    assert (source.dataset_path, source.shard_name) == (EPath(records), "shard_005.array_record")
    assert source.file_names == ("050.txt",)


def asked(command: str, root: Path) -> Any:
    return json.loads(run(command, root, "--json").stdout)


def test_splits_excludes_and_subsets(pair: tuple[Path, Path]) -> None:
    kept: list[list[str]] = []
    for root in pair:
        ending = "tar" if root is pair[0] else "array_record"
        split = root / ".nv-meta" / "split.yaml"
        excludes = f"exclude: [shard_001.{ending}, shard_002.{ending}/021]"
        split.write_text(split.read_text().replace("exclude: []", excludes))
        path = write_v2(root.parent, train="{path: texts, subset: {range: [5, 30]}}")
        samples = get_val_dataset(path, worker_config=ONE, batch_size=None, split_part="train")
        kept.append([sample.__key__ for sample in samples])
        assert asked("lint", root) == []
        assert asked("info", root)["splits"]["train"]["excluded_samples"] == 1
    assert kept[0] == kept[1]
    assert kept[0][:7] == ["005", "006", "007", "008", "009", "020", "022"]


def test_mixed_with_tars_and_told_by_which(pair: tuple[Path, Path], tmp_path: Path) -> None:
    children = "{weight: 2, path: records/texts}, {weight: 1, path: tars/texts}"
    with stream_of(write_v2(tmp_path, train=f"{{blend: [{children}]}}")) as stream:
        keys_of(stream, 3)
        records, batch = stream.which(3), next(stream)
    assert [record.key for record in records] == list(batch.__key__)
    assert {Path(record.shard).suffix for record in records} == {".tar", ".array_record"}


def test_joined_with_tars(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for number, paths in enumerate((("tars", "records"), ("records", "tars"), ("records", "records"))):
        one, other = (f"{{path: {path}/texts, dataset_config: {number}.yaml}}" for path in paths)
        for root in pair:
            (root / ".nv-meta" / f"{number}.yaml").write_text((root / ".nv-meta" / "dataset.yaml").read_text())
        joiner = "joiner: {__module__: megatron.energon, __class__: TextSample}"
        path = write_v2(tmp_path, train=f"{{join: [{one}, {other}], {joiner}}}")
        samples = get_val_dataset(path, worker_config=ONE, batch_size=None, split_part="train")
        assert [sample.__key__ for sample in samples] == [sample["__key__"] for sample in SAMPLES[:50]]


class Cooking(DefaultTaskEncoder):
    decoder = DefaultTaskEncoder.decoder_type(image_decode="rgb8")
    cookers = (Cooker(lambda sample: sample),)


def test_numbers_pass_decoders(tmp_path: Path) -> None:
    """A feature is called as a file may be, and is decoded where it holds bytes and only there."""
    examples = [
        encode_example({"a.json": [number], "b.json": [b'{"x": 1}'], "c.txt": [0.5] if number % 2 else [b"text"]})
        for number in range(8)
    ]
    write_shards(tmp_path, examples, 2)
    prepare_dataset(tmp_path, records="tf_example", split_ratio={"val": 1}, crude=True, num_workers=0)
    samples = list(get_val_dataset(tmp_path, worker_config=ONE, batch_size=None, task_encoder=Cooking()))
    assert [sample["__key__"] for sample in samples] == [*"01234567"]
    assert [sample["a.json"].tolist() for sample in samples] == [[number] for number in range(8)]
    assert samples[0]["b.json"] == {"x": 1}
    assert samples[0]["c.txt"] == "text"
    assert samples[1]["c.txt"].dtype == np.float32
    assert asked("lint", tmp_path) == []


@stateless
@cooker(need_primary=True)
def with_others(sample: dict[str, Any], primary: Any, notes: Any) -> dict[str, Any]:
    return {
        **basic_sample_keys(sample),
        "again": primary.get(".txt", sample),
        "note": notes.get(f"{sample['__key__']}.txt", sample),
    }


class Looking(DefaultTaskEncoder):
    decoder = DefaultTaskEncoder.decoder_type()
    cookers = (Cooker(with_others),)


def test_stores(pair: tuple[Path, Path], tmp_path: Path) -> None:
    crude = tmp_path / "records" / "crude"
    shutil.copytree(pair[1], crude)
    (crude / ".nv-meta" / "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\n", encoding="utf-8"
    )
    path = write_v2(crude.parent, train="{path: crude, aux: {notes: texts}}")
    samples = list(
        get_val_dataset(path, worker_config=ONE, batch_size=None, split_part="train", task_encoder=Looking())
    )
    assert [(sample["again"], sample["note"]) for sample in samples[:2]] == [("text 0", "text 0"), ("text 1", "text 1")]


def test_what_is_wrong_is_told(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (_, records) = pair
    write_records(records / "shard_002.array_record", [msgpack_record(sample) for sample in SAMPLES[:9]])
    finding, _ = asked("lint", records)
    assert finding["what"].startswith("has 9 samples, .info.json says 10")
    write_records(tmp_path / "bare" / "x.array_record", [b"x"])
    with pytest.raises(DatasetNotFoundError, match=r"prepare .*bare --records msgpack\|tf_example\|raw"):
        stream_of(tmp_path / "bare")
    with pytest.raises(DatasetNotFoundError, match=r"prepare .*bare --records msgpack\|tf_example\|raw"):
        stream_of(write_v2(tmp_path, train="{path: bare}"))


REMOTE_COUNT = 90
REMOTE_SAMPLES: list[dict[str, Any]] = [
    {"__key__": f"{number:03d}", "txt": b"text %d " % number * (number % 50), "bin": bytes([number]) * (number * 37)}
    for number in range(REMOTE_COUNT)
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
    write_shards(root, [msgpack_record(sample) for sample in REMOTE_SAMPLES], 6, request.param)
    prepare_dataset(root, records="msgpack", **OPTIONS)
    return root


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    root = tmp_path / "tars" / "texts"
    write_tars(root, REMOTE_SAMPLES, shards=6)
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
    for indices in (np.arange(REMOTE_COUNT), np.array([5, 88, 5, 0]), np.array([], np.int64)):
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
        "msgpack": [msgpack_record(sample) for sample in REMOTE_SAMPLES],
        "tf_example": [encode_example({"txt": [sample["txt"]], "n": [7, 8]}) for sample in REMOTE_SAMPLES],
        "raw": [sample["txt"] for sample in REMOTE_SAMPLES],
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
    assert summarize_dataset(url).samples == REMOTE_COUNT
    write_records(root / "shard_003.array_record", content[:5])
    bucket.put(f"in {encoding}/shard_003.array_record", (root / "shard_003.array_record").read_bytes())
    look_again(open_folder(url))
    finding, _ = lint_dataset(url).findings
    assert "has 5 samples, .info.json says" in finding.what
