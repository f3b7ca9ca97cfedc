"""Files of records and of lines as datasets, without preparation and with it."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterable
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
    ConfigError,
    Cooker,
    CrudeJsonlDatasetFactory,
    DatasetNotFoundError,
    DecodingError,
    DefaultCrudeJsonlDatasetFactory,
    DefaultTaskEncoder,
    EPath,
    ReadError,
    StaleIndexError,
    StorageSettings,
    Stream,
    TaskEncoder,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_train_dataset,
    get_val_dataset,
    stateless,
    use_storage,
)
from energon_grain.formats.data_folder import look_again, open_folder
from energon_grain.kinds.array_record.source import ArrayRecordFileStore, ArrayRecordSource
from energon_grain.kinds.jsonl.lines import write_jsonl_index
from energon_grain.kinds.jsonl.prepare import prepare_jsonl
from energon_grain.kinds.jsonl.source import JsonlFileStore, JsonlRows
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.lint import lint_dataset
from energon_grain.prepare.summary import summarize_dataset
from energon_grain.sources import remote_runs
from energon_grain.sources.rows import rows_of, selected
from energon_grain.testing import make_crude_dataset, write_tars

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
    assert finding["what"].startswith("has 9 samples, but .info.json lists 10")
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
        (good[:-65536], "the object is shorter|ends before"),
        (good + bytes(100), rf"it has {len(good) + 100} bytes, not {len(good)}"),
        (
            bucket.get("texts/shard_001.array_record"),
            "bytes, not|the object is shorter|ends before|has the key|records, not",
        ),
    ]
    for content, what in changed:
        bucket.put(name, content)
        with pytest.raises(StaleIndexError, match=rf"shard_002\.array_record.*({what}).*--tar-index-only"):
            ArrayRecordSource(url).read(np.array([0, 32]))
    bucket.put(name, bytes(len(good)))
    with pytest.raises(ReadError, match=r"shard_002\.array_record: is not an ArrayRecord file"):
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
    assert "has 5 samples, but .info.json lists" in finding.what


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "notes.jsonl", ({"n": i} for i in range(60)))


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path


def validated(path: Path, **options: Any) -> list[Any]:
    return list(get_val_dataset(path, worker_config=ONE, batch_size=None, **options))


def test_samples_of_lines(notes: Path) -> None:
    samples = validated(notes, split_part="whatever")
    assert [sample["json"]["n"] for sample in samples] == list(range(60))
    third = samples[3]
    assert (third["__key__"], third["__shard__"], third["__subflavors__"]) == ("3", "notes.jsonl", {})
    (source,) = third["__sources__"]
    assert (source.dataset_path, source.index, source.file_names) == (EPath(notes), 3, ("3.json",))


def test_subset_and_subflavors(notes: Path, tmp_path: Path) -> None:
    path = write_v2(tmp_path, train="{path: notes.jsonl, subset: {range: [10%, 20]}, subflavors: {kind: note}}")
    with pytest.raises(ConfigError):
        validated(path, split_part="train")
    path = write_v2(tmp_path, train="{path: notes.jsonl, subset: {range: [10, 20]}, subflavors: {kind: note}}")
    samples = validated(path, split_part="train")
    assert [sample["json"]["n"] for sample in samples] == list(range(10, 20))
    assert samples[0]["__key__"] == "10"
    assert samples[0]["__subflavors__"] == {"kind": "note"}


@stateless
@cooker(need_primary=True)
def cook(sample: Any, primary: Any) -> Any:
    return {**sample, "own": primary.get(".json")}


class Primary(DefaultTaskEncoder):
    cookers = (Cooker(cook),)


def test_the_file_as_its_own_store(notes: Path) -> None:
    assert [sample["own"] for sample in validated(notes, task_encoder=Primary())] == [{"n": i} for i in range(60)]


class Undecoded(TaskEncoder[Any, Any, Any, Any]):
    decoder = None


def test_lines_are_always_decoded(notes: Path) -> None:
    assert validated(notes, task_encoder=Undecoded())[0]["json"] == {"n": 0}


def test_malformed_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('\n{"n": 0}\n\n{"n": }\n{"n": 2}\n')
    told: list[tuple[str, str]] = []
    config = WorkerConfig(
        rank=0,
        world_size=1,
        num_workers=0,
        global_error_handler=lambda error, sample, sources: told.append((type(error).__name__, str(error))),
    )
    samples = list(get_val_dataset(path, worker_config=config, batch_size=None))
    assert [sample["json"]["n"] for sample in samples] == [0, 2]
    ((kind, message),) = told
    assert kind == "DecodingError"
    assert message.startswith("x.jsonl:4: part 'json'")
    path.write_text('{"n": 0}\n["n"]\n')
    (tmp_path / "x.jsonl.idx").unlink()
    with pytest.raises(DecodingError, match=r"x.jsonl:2: b'\[\"n\"\]'"):
        validated(path)


def test_what_is_refused(notes: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a JSONL file has no split_config"):
        validated(notes, split_config="other.yaml")
    with pytest.raises(ConfigError, match="a JSONL file has no `dataset_config`"):
        validated(write_v2(tmp_path, train="{path: notes.jsonl, dataset_config: d.yaml}"), split_part="train")
    make_crude_dataset(tmp_path / "crude", n=20, shards=2)
    for first, second in (("crude", "notes.jsonl"), ("notes.jsonl", "crude")):
        path = write_v2(tmp_path, train={"join": [{"path": first}, {"path": second}]})
        with pytest.raises(ConfigError, match=r"\d+ of \d+ keys of .* are missing in"):
            validated(path, split_part="train")
    with pytest.raises(DatasetNotFoundError):
        validated(tmp_path / "none.jsonl")
    validated(notes)
    with notes.open("a") as file:
        file.write("{}\n")
    with pytest.raises(StaleIndexError, match="energon-grain prepare"):
        validated(notes)


CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\n{"n": 2}\n')
    return path


def test_bytes(path: Path) -> None:
    assert CrudeJsonlDatasetFactory.prepare_dataset(path) == 3
    factory = CrudeJsonlDatasetFactory(path, training=False, worker_config=CONFIG, subset=[1, 3])
    assert len(factory) == 2
    assert [(sample["__key__"], sample["json"]) for sample in Stream.of(factory.build())] == [
        ("1", b'{"n": 1}\n'),
        ("2", b'{"n": 2}\n'),
    ]
    assert factory.as_file_store().get("0.json") == b'{"n": 0}\n'


def test_values(path: Path) -> None:
    factory = DefaultCrudeJsonlDatasetFactory(
        path, training=False, worker_config=CONFIG, subflavors={"a": 1}, decoder=None
    )
    samples = list(Stream.of(factory.build()))
    assert [sample["json"] for sample in samples] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert samples[0]["__subflavors__"] == {"a": 1}


class Numbers(DefaultCrudeJsonlDatasetFactory):
    def load_sample(self, sample: Any) -> Any:
        sample["n"] = sample["json"]["n"] * 10
        return sample


def test_a_class_may_load_samples_itself(path: Path) -> None:
    built = Numbers(path, training=False, worker_config=CONFIG).build()
    assert [sample["n"] for sample in Stream.of(built)] == [0, 10, 20]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError):
        CrudeJsonlDatasetFactory.prepare_dataset(tmp_path / "x.jsonl")
    with pytest.raises(ConfigError, match=r"x\.parquet: is a Parquet file, which needs no index"):
        CrudeJsonlDatasetFactory.prepare_dataset(tmp_path / "x.parquet")


LINES = [json.dumps({"n": i, "text": "ä" * (i % 90)}, ensure_ascii=False) for i in range(200)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file with an index, one without, tars, and a metadataset that names them by relative paths."""
    root = tmp_path / "data"
    (root / "sub").mkdir(parents=True)
    (root / "one.jsonl").write_text("\n\n".join(LINES) + "\n")
    (root / "sub" / "two.jsonl").write_text("\n".join(LINES[:70]))
    write_jsonl_index(root / "one.jsonl")
    (root / "tars").mkdir()
    write_tars(root / "tars", ({"__key__": f"{i:03d}", "json": json.loads(LINES[i])} for i in range(40)), shards=3)
    prepare_dataset(root / "tars", split_ratio={"train": 1}, crude=True, num_workers=0)
    blend = [
        {"path": "./one.jsonl", "weight": 2, "subset": {"range": [10, 150]}, "subflavors": {"of": "one"}},
        {"path": "sub/two.jsonl", "weight": 1},
        {"path": "tars", "weight": 1},
    ]
    write_v2(root, "mix.yaml", train={"blend": blend})
    return root


def batches(stream: Stream, count: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(count):
        batch = next(stream)
        found.append((list(batch["__key__"]), list(batch["__shard__"]), repr(batch["json"]), stream.cursor()))
    return found


@pytest.mark.parametrize("name", ["one.jsonl", "sub/two.jsonl", "mix.yaml"])
@pytest.mark.parametrize(("workers", "kind"), [(0, "thread"), (2, "thread"), (2, "process")])
def test_what_a_bucket_has_is_what_is_here(bucket: Bucket, folder: Path, name: str, workers: int, kind: str) -> None:
    url = bucket.upload(folder, "data sets")
    with (
        open_share(folder / name) as here,
        open_share(f"{url}/{name}", workers=workers, kind=kind) as there,
    ):
        assert batches(there, 40) == batches(here, 40)
        assert there.stats()["dropped"] == here.stats()["dropped"]


def test_a_shuffled_pass_takes_few_requests(bucket: Bucket) -> None:
    count = 4000
    content = b"".join(b'{"n": %d, "text": "%s"}\n' % (number, b"x" * 4000) for number in range(count))
    bucket.put("x.jsonl", content)
    url = f"{bucket.url}/x.jsonl"
    prepare_jsonl(url)
    bucket.server.reset()
    dataset = get_train_dataset(
        url,
        worker_config=WorkerConfig(0, 1, 2),
        batch_size=20,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    with Stream.of(dataset) as stream:
        found = [int(number) for _ in range(count // 20) for number in next(stream)["json"]["n"]]
    assert sorted(found) == list(range(count))
    requests = bucket.server.requests("x.jsonl")
    assert len(requests) < 40
    assert sum(request.sent_bytes for request in requests) < 1.1 * len(content)


def test_states_go_from_here_to_there(bucket: Bucket, folder: Path) -> None:
    url = bucket.upload(folder)
    with open_share(folder / "mix.yaml") as here, open_share(f"{url}/mix.yaml") as there:
        batches(here, 17)
        there.restore(here.cursor())
        assert batches(there, 20) == batches(here, 20)


def test_a_copy_in_another_process_asks_for_nothing_but_lines(bucket: Bucket, folder: Path) -> None:
    url = f"{bucket.upload(folder)}/one.jsonl"
    source, store = selected(JsonlRows(url), start=20, stop=60), JsonlFileStore(url)
    use_storage(StorageSettings(cache_bytes=0))
    pickled = pickle.dumps((source, selected(JsonlRows(url)), store))
    bucket.server.reset()
    cached, uncached, stored = pickle.loads(pickled)
    assert len(cached) == 40
    assert len(uncached) == 200
    assert cached.content_id == source.content_id
    assert not bucket.server.requests()
    assert json.loads(uncached.read(np.array([7]))[0].parts["json"])["n"] == 7
    requests = bucket.server.requests()
    assert requests
    assert all(request.range and request.status == 206 for request in requests), "neither sizes nor indices"
    rows = rows_of(cached)
    assert rows is not None
    assert selected(rows, 3, 5).read(np.array([1])).keys == ["4"]
    assert json.loads(stored.get("9.json"))["n"] == 9
    assert stored == store


def test_what_samples_tell_of_where_they_are_from(bucket: Bucket, folder: Path) -> None:
    url = f"{bucket.upload(folder)}/one.jsonl"
    samples = list(get_val_dataset(url, worker_config=WorkerConfig(0, 1), batch_size=None))
    assert [sample["json"]["n"] for sample in samples] == list(range(200))
    assert (samples[3]["__key__"], samples[3]["__shard__"]) == ("3", "one.jsonl")
    (source,) = samples[3]["__sources__"]
    assert (source.dataset_path, source.index, source.file_names) == (EPath(url), 3, ("3.json",))


def test_malformed_lines_are_named_by_url_and_line(bucket: Bucket) -> None:
    bucket.put("x.jsonl", b'\n{"n": 0}\n\n{"n": }\n{"n": 2}\n')
    told: list[str] = []
    config = WorkerConfig(0, 1, global_error_handler=lambda error, sample, sources: told.append(str(error)))
    samples = list(get_val_dataset(f"{bucket.url}/x.jsonl", worker_config=config, batch_size=None))
    assert [sample["json"]["n"] for sample in samples] == [0, 2]
    (message,) = told
    assert message.startswith(f"{bucket.url}/x.jsonl:4: part 'json'")


def test_an_object_that_is_replaced_while_it_is_read(bucket: Bucket, folder: Path) -> None:
    use_storage(StorageSettings(cache_bytes=0))
    content = (folder / "one.jsonl").read_bytes()
    url = f"{bucket.upload(folder)}/one.jsonl"
    opened, read, copy = selected(JsonlRows(url)), selected(JsonlRows(url)), pickle.dumps(selected(JsonlRows(url)))
    read.read(np.arange(3))
    bucket.put("one.jsonl", content.replace(b'"n"', b'"m"'))
    for source in (opened, read, pickle.loads(copy)):
        with pytest.raises(StaleIndexError, match=f"{url}: was replaced"):
            source.read(np.arange(100, 103))
    assert b'"m"' in selected(JsonlRows(url)).read(np.arange(1))[0].parts["json"]
    bucket.put("one.jsonl", content.replace(b"\n", b" ").replace(b"}", b"}\n", 199)[: len(content)])
    with pytest.raises(StaleIndexError, match="expected a line end"):
        selected(JsonlRows(url)).read(np.arange(1))


def test_there_must_be_an_object(bucket: Bucket) -> None:
    with pytest.raises(DatasetNotFoundError, match=rf"{bucket.url}/none\.jsonl"):
        open_share(f"{bucket.url}/none.jsonl")
