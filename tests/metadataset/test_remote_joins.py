"""Joins of datasets and metadatasets in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_runs import run
from object_server import Bucket
from stream_hosts import quiet

from energon_grain import Stream, WorkerConfig, get_train_dataset
from energon_grain.errors import StaleIndexError
from energon_grain.formats import data_folder
from energon_grain.metadataset.prepare_joins import prepare_metadataset
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Texts and labels of the same keys, in another order, and a metadataset that joins them."""
    root = tmp_path / "data"
    for name, part, order in (("texts", "txt", range(60)), ("labels", "cls", reversed(range(10, 60)))):
        samples = ({"__key__": f"{i:03d}", part: str(i).encode()} for i in order)
        write_tars(root / name, samples, shards=3)
        prepare_dataset(root / name, split_ratio=[1, 0, 0], crude=True)
    join = {"join": [{"path": "texts"}, {"path": "labels", "nonmatch": "skip"}]}
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": join}}
    (root / "joined.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return root


def samples(path: Any, count: int = 70, **more: Any) -> list[Any]:
    config = WorkerConfig(0, 1, 0, global_error_handler=quiet)
    options = {"batch_size": None, "shuffle_buffer_size": 10, "max_samples_per_sequence": 5, **more}
    with Stream.of(get_train_dataset(path, worker_config=config, **options)) as stream:
        return [(dict(next(stream)), stream.cursor()) for _ in range(count)]


def plain(found: list[Any]) -> list[Any]:
    """Without what names the place of the data."""
    return [({k: v for k, v in sample.items() if k != "__sources__"}, cursor) for sample, cursor in found]


def another_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    data_folder._up_to_date.clear()


def test_a_join_in_a_bucket_gives_what_it_gives_here(bucket: Bucket, folder: Path) -> None:
    url = bucket.upload(folder)
    assert plain(samples(f"{url}/joined.yaml")) == plain(samples(folder / "joined.yaml"))
    local = folder / "local.yaml"
    local.write_text((folder / "joined.yaml").read_text().replace("path: ", f"path: {url}/"))
    pairs = [(sample["txt"], sample["cls"]) for sample, _ in samples(local, 50)]
    assert sorted(pairs) == [(str(i), i) for i in range(10, 60)]


def test_what_is_prepared_in_a_bucket_serves_all_hosts(
    bucket: Bucket, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket.upload(folder)}/joined.yaml"
    done = run("prepare", url)
    assert done.exit_code == 0, done.output
    assert "50 rows joined" in done.output
    again = prepare_metadataset(url)
    assert [join.built for join in again.joins] == [False]
    stored = {request.path.rsplit("/", 1)[1] for request in bucket.server.requests("joined.yaml.cache", "PUT")}
    assert {"rows.npy", "header.json"} < stored

    expected = plain(samples(folder / "joined.yaml"))
    another_host(monkeypatch, tmp_path, "other")
    bucket.server.reset()
    assert plain(samples(url)) == expected
    assert any("rows.npy" in request.path for request in bucket.server.requests("joined.yaml.cache"))

    another_host(monkeypatch, tmp_path, "third")
    assert [join.built for join in prepare_metadataset(url).joins] == [False]


def test_a_join_of_datasets_that_changed_is_refused(
    bucket: Bucket, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket.upload(folder)}/joined.yaml"
    prepare_metadataset(url)
    write_tars(folder / "labels", ({"__key__": f"{i:03d}", "cls": b"1"} for i in range(30)), shards=3)
    prepare_dataset(folder / "labels", split_ratio=[1, 0, 0], crude=True, force_overwrite=True)
    bucket.upload(folder)
    data_folder._up_to_date.clear()
    with pytest.raises(StaleIndexError, match=rf"labels was prepared with other samples .*prepare {url}"):
        samples(url)
    report = prepare_metadataset(url)
    assert [join.rows for join in report.joins] == [30]
    assert len(report.removed) == 1
    gone = {request.path.rsplit("/", 1)[1] for request in bucket.server.requests("joined.yaml.cache", "DELETE")}
    assert "rows.npy" in gone
    assert len(samples(url, 30)) == 30
