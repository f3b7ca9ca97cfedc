"""JSONL files as leaves, here and in a bucket: order, state, blends, hosts, workers, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metadatasets import write_v2
from object_server import Bucket
from stream_hosts import open_share

from energon_grain import (
    ConfigError,
    Cooker,
    CrudeJsonlDatasetFactory,
    DatasetNotFoundError,
    DecodingError,
    DefaultCrudeJsonlDatasetFactory,
    DefaultTaskEncoder,
    EPath,
    StaleIndexError,
    StorageSettings,
    Stream,
    TaskEncoder,
    WorkerConfig,
    cooker,
    get_train_dataset,
    get_val_dataset,
    stateless,
    use_storage,
)
from energon_grain.formats.jsonl import write_jsonl_index
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.preparation import prepare_jsonl
from energon_grain.sources.jsonl import JsonlFileStore, JsonlSource
from energon_grain.testing import make_crude_dataset, write_tars

ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "notes.jsonl", ({"n": i} for i in range(60)))


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path


def validated(path: Path, **options: Any) -> list[Any]:
    return list(get_val_dataset(path, worker_config=ONE, batch_size=None, **options))


def test_samples(notes: Path) -> None:
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
        with pytest.raises(ConfigError, match=r"\d+ of \d+ keys of .* are not in"):
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


def test_any_number_of_hosts(bucket: Bucket, folder: Path) -> None:
    url = f"{bucket.upload(folder)}/mix.yaml"
    one, three = open_share(url), [open_share(url, host=host, hosts=3) for host in range(3)]
    for _ in range(20):
        assert sorted(next(one)["__key__"]) == sorted(sum((list(next(host)["__key__"]) for host in three), []))
    for stream in (one, *three):
        stream.close()


def test_a_copy_in_another_process_asks_for_nothing_but_lines(bucket: Bucket, folder: Path) -> None:
    url = f"{bucket.upload(folder)}/one.jsonl"
    source, store = JsonlSource(url, start=20, stop=60), JsonlFileStore(url)
    use_storage(StorageSettings(cache_bytes=0))
    pickled = pickle.dumps((source, JsonlSource(url), store))
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
    assert cached.cut(3, 5).read(np.array([1])).keys == ["4"]
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
    opened, read, copy = JsonlSource(url), JsonlSource(url), pickle.dumps(JsonlSource(url))
    read.read(np.arange(3))
    bucket.put("one.jsonl", content.replace(b'"n"', b'"m"'))
    for source in (opened, read, pickle.loads(copy)):
        with pytest.raises(StaleIndexError, match=f"{url}: was replaced"):
            source.read(np.arange(100, 103))
    assert b'"m"' in JsonlSource(url).read(np.arange(1))[0].parts["json"]
    bucket.put("one.jsonl", content.replace(b"\n", b" ").replace(b"}", b"}\n", 199)[: len(content)])
    with pytest.raises(StaleIndexError, match="no line ends here"):
        JsonlSource(url).read(np.arange(1))


def test_there_must_be_an_object(bucket: Bucket) -> None:
    with pytest.raises(DatasetNotFoundError, match=rf"{bucket.url}/none\.jsonl"):
        open_share(f"{bucket.url}/none.jsonl")
