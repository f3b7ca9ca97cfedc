"""Joins of datasets and metadatasets in a bucket."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run
from metadatasets import v2, write_v2
from object_server import Bucket
from stream_hosts import quiet
from web_server import running_web_server

from energon_grain import EPath, Stream, WorkerConfig, get_train_dataset, prepare_metadataset
from energon_grain.errors import ConfigError, IndexFileError, StaleIndexError
from energon_grain.formats import data_folder
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
    write_v2(root, "joined.yaml", train=joined(""))
    return root


def joined(place: str) -> dict[str, Any]:
    return {"join": [{"path": f"{place}texts"}, {"path": f"{place}labels", "nonmatch": "skip"}]}


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
    local = write_v2(folder, "local.yaml", train=joined(f"{url}/"))
    pairs = [(sample["txt"], sample["cls"]) for sample, _ in samples(local, 50)]
    assert sorted(pairs) == [(str(i), i) for i in range(10, 60)]


def test_all_members_are_read_ahead(bucket: Bucket, folder: Path) -> None:
    count = 1500
    for name, part in (("texts", "txt"), ("labels", "bin")):
        content = b"x" * 8000
        write_tars(folder / name, ({"__key__": f"{i:05d}", part: content} for i in range(count)), shards=3)
        prepare_dataset(folder / name, split_ratio=[1, 0, 0], crude=True, force_overwrite=True)
    prepare_metadataset(folder / "joined.yaml")
    url = bucket.upload(folder)
    bucket.server.reset()
    samples(f"{url}/joined.yaml", count, shuffle_buffer_size=None, max_samples_per_sequence=None)
    requests = bucket.server.requests(".tar")
    size = sum(path.stat().st_size for name in ("texts", "labels") for path in (folder / name).glob("*.tar"))
    assert size <= sum(request.sent_bytes for request in requests) < 1.1 * size
    assert len(requests) < 30  # 24 MB; chunks alone would take some of 256 KiB each


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
    for host in (None, "another"):
        if host is not None:
            another_host(monkeypatch, tmp_path, host)
        with pytest.raises(StaleIndexError, match=rf"labels was prepared with other samples .*prepare {url}"):
            samples(url)
    report = prepare_metadataset(url)
    assert [join.rows for join in report.joins] == [30]
    assert len(report.removed) == 1
    assert len([*EPath(f"{url}.cache").glob("**/rows.npy")]) == 1
    assert len(samples(url, 30)) == 30


@pytest.mark.parametrize(("damage", "mended_by"), [("no rows", "second"), ("short rows", "first"), ("header", "first")])
def test_a_damaged_index_in_a_bucket_is_named_and_mended(
    bucket: Bucket, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, mended_by: str
) -> None:
    url = f"{bucket.upload(folder)}/joined.yaml"
    another_host(monkeypatch, tmp_path, "first")
    (join,) = prepare_metadataset(url).joins
    files = [f"joined.yaml.cache/.join_{join.name}/{name}" for name in ("header.json", "rows.npy")]
    whole = [bucket.get(file) for file in files]
    if damage == "no rows":
        bucket.delete(files[1])
    elif damage == "short rows":
        bucket.put(files[1], whole[1][:100])
    else:
        bucket.put(files[0], b"{")
    another_host(monkeypatch, tmp_path, "second")
    with pytest.raises(IndexFileError, match=rf"{bucket.url}/{files[0]}: .*: run `energon-grain prepare {url}`"):
        samples(url, 1)
    another_host(monkeypatch, tmp_path, mended_by)
    assert [each.built for each in prepare_metadataset(url).joins] == [mended_by == "second"]
    assert [bucket.get(file) for file in files] == whole


def test_a_join_on_a_web_server_is_prepared_for_this_machine(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another_host(monkeypatch, tmp_path, "host")
    with running_web_server(folder) as server:
        nesting = write_v2(tmp_path, "nesting.yaml", train={"path": f"{server.url}/joined.yaml"})
        report = prepare_metadataset(nesting)
        assert [(join.rows, join.built) for join in report.joins] == [(50, True)]
        assert any("a web server cannot be written" in note for note in report.notes)
        assert [join.built for join in prepare_metadataset(f"{server.url}/joined.yaml").joins] == [False]
        assert len(samples(nesting, 50)) == 50


def test_a_path_that_leads_out_of_a_bucket_is_named(bucket: Bucket) -> None:
    aux = {"path": "a.jsonl", "aux": {"files": "filesystem://../x"}}
    wrong = {"path": {"path": "../a"}, "join[0].path": joined("../"), "aux.files": aux}
    for place, node in wrong.items():
        bucket.put("meta.yaml", json.dumps(v2(train=node)).encode())
        bucket.put("a.jsonl", b"1\n")
        with pytest.raises(ConfigError, match=rf"meta\.yaml: \$\.splits\.train\.{re.escape(place)}: .* leads out of"):
            samples(f"{bucket.url}/meta.yaml", 1)
