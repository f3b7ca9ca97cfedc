"""JSONL files in a bucket as leaves: the same batches and states as from the same files on this machine."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metadatasets import write_v2
from object_server import Bucket
from stream_hosts import open_share

from energon_grain import (
    DatasetNotFoundError,
    EPath,
    StaleIndexError,
    StorageSettings,
    Stream,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    use_storage,
)
from energon_grain.formats.jsonl import write_jsonl_index
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.preparation import prepare_jsonl
from energon_grain.sources.jsonl import JsonlFileStore, JsonlSource
from energon_grain.testing import write_tars

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
