"""Indices of joins, from the metadataset's side: found, taken over, built on use, refused, tidied up; in buckets."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import numbered, write_array
from cli_runs import run
from metadatasets import v2, write_v2
from object_server import Bucket
from stream_hosts import quiet
from web_server import running_web_server

from energon_grain import EPath, Stream, WorkerConfig, get_train_dataset, prepare_metadataset
from energon_grain.errors import ConfigError, DatasetNotFoundError, IndexFileError, StaleIndexError
from energon_grain.formats import data_folder
from energon_grain.formats.nv_meta import read_uuid
from energon_grain.formats.splits import SplitConfig, write_split_config
from energon_grain.kinds.joins.build import energon_name_of
from energon_grain.kinds.joins.leaf import JoinedLeafDataset
from energon_grain.kinds.joins.opening import open_join
from energon_grain.metadataset.documents import find_joins
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

PARTS = {"train": ("s0.tar", "s1.tar"), "val": ("s2.tar",)}


def make_dataset(root: Path, *shards: str, exclude: tuple[str, ...] = ()) -> None:
    for number, keys in enumerate(shards):
        write_tars(root, [{"__key__": key, "txt": key} for key in keys.split()], name=f"s{number}.tar")
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, force_overwrite=True)
    split(root, *exclude)


def split(root: Path, *exclude: str) -> None:
    write_split_config(root / ".nv-meta" / "split.yaml", SplitConfig(split_parts=PARTS, exclude=exclude))


def metadataset(path: Path, *members: dict[str, Any] | str, **splits: Any) -> Path:
    join = {"join": [member if isinstance(member, dict) else {"path": member} for member in members]}
    return write_v2(path.parent, path.name, **(splits or {"train": join, "val": join}))


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    make_dataset(tmp_path / "a", "a b", "c d", "e f")
    make_dataset(tmp_path / "b", "d c b a", "x", "f e")
    return metadataset(tmp_path / "meta.yaml", "a", "b")


def joins(path: Path) -> list[JoinedLeafDataset]:
    return list(find_joins(path))


def names(meta: Path, pattern: str = "*") -> set[str]:
    return {path.name for path in Path(f"{meta}.cache").glob(pattern)}


def test_splits_have_indices_of_their_own(meta: Path) -> None:
    report = prepare_metadataset(meta)
    assert [(join.rows, join.built) for join in report.joins] == [(4, True), (2, True)]
    train, val = (open_join(join) for join in joins(meta))
    assert train.rows.tolist() == [[0, 3], [1, 2], [2, 1], [3, 0]]
    assert val.rows.tolist() == [[4, 6], [5, 5]]
    assert len(names(meta, "*.bin")) == len(names(meta, ".join_*")) == 2
    assert len(report.notes) == 2  # Energon would look for both under one name
    assert all("same name for this join" in note for note in report.notes)
    again = prepare_metadataset(meta)
    assert [join.built for join in again.joins] == [False, False]
    assert again.removed == ()


def test_progress_ends_at_the_total(meta: Path) -> None:
    said: list[tuple[str, int, int]] = []
    prepare_metadataset(meta, progress=lambda *now: said.append(now))
    assert said[-1][1:] == (13, 13)
    assert {place.rpartition(": ")[2] for place, _, _ in said} == {"$.splits.train", "$.splits.val"}


def test_clear_names_are_given_to_energon_too(meta: Path, tmp_path: Path) -> None:
    metadataset(meta, train={"join": [{"path": "a"}, {"path": "b"}]})
    report = prepare_metadataset(meta)
    assert report.notes == ()
    samples = joins(meta)[0].inputs()
    theirs = energon_name_of(samples)
    assert theirs is not None
    cache = Path(f"{meta}.cache")
    (ours,) = names(meta, "*.bin") - {theirs}
    assert (cache / theirs).samefile(cache / ours)
    # Energon's `prepare` keeps its own name only; ours comes back.
    (cache / ours).unlink()
    assert prepare_metadataset(meta).joins[0].built is False
    assert names(meta, "*.bin") == {ours, theirs}
    (cache / theirs).write_bytes((cache / ours).read_bytes()[:-48])
    assert "other rows" in prepare_metadataset(meta).notes[0]
    assert (cache / theirs).stat().st_size == (cache / ours).stat().st_size - 48


def test_stale_indices_are_refused_and_removed(meta: Path, tmp_path: Path) -> None:
    metadataset(meta, train={"join": [{"path": "a"}, {"path": "b"}]})
    prepare_metadataset(meta)
    before = names(meta)
    (join,) = joins(meta)
    split(tmp_path / "a", "s0.tar/b")
    with pytest.raises(StaleIndexError, match=r"the split part 'train' of a changed; run .*prepare .*meta\.yaml"):
        open_join(join)
    split(tmp_path / "a")
    assert len(open_join(join)) == 4
    make_dataset(tmp_path / "b", "d c b a y", "x", "f e")
    with pytest.raises(StaleIndexError, match=r"b was prepared again with other samples \(7 before, 8 now\)"):
        open_join(join)
    # What others put there stays.
    (Path(f"{meta}.cache") / "join_index_0.bin").write_bytes(b"")
    report = prepare_metadataset(meta)
    assert len(report.removed) == 1
    assert names(meta) & before == set()
    assert len(names(meta, "*.bin")) == 3
    assert len(open_join(join)) == 4


def test_arrays_are_prepared_for_us_only(meta: Path, tmp_path: Path) -> None:
    write_array(tmp_path / "row.zarr", numbered(6, 2))
    write_array(tmp_path / "key.zarr", numbered(2, 2))
    (tmp_path / "keys.txt").write_text("d\nb\n")
    by_key = {"array": "key.zarr", "keys": "keys.txt", "nonmatch": "none"}
    metadataset(meta, train={"join": [{"path": "a"}, {"array": "row.zarr"}, by_key]})
    said: list[tuple[str, int, int]] = []
    report = prepare_metadataset(meta, progress=lambda *now: said.append(now))
    assert said[-1][1:] == (6, 6)  # the keys of four samples and of two rows
    assert (report.joins[0].rows, report.joins[0].missing) == (4, {"key.zarr": 2})
    assert len(report.notes) == 1
    assert "does not support arrays" in report.notes[0]
    assert names(meta, "*.bin") == set()
    (join,) = joins(meta)
    assert open_join(join, joined_on_use=0).rows.tolist() == [[0, 0, -1], [1, 1, 1], [2, 2, -1], [3, 3, 0]]
    assert prepare_metadataset(meta).joins[0].built is False
    write_array(tmp_path / "key.zarr", numbered(2, 2) + 1)
    with pytest.raises(StaleIndexError, match=r"key\.zarr or the keys of its rows changed .*; run"):
        open_join(join)
    write_array(tmp_path / "key.zarr", numbered(2, 2))
    assert len(open_join(join, joined_on_use=0)) == 4
    (tmp_path / "keys.txt").write_text("b\nd\n")
    with pytest.raises(StaleIndexError, match=r"keys of its rows changed \(2 rows before, 2 now\)"):
        open_join(join)
    report = prepare_metadataset(meta)
    assert (report.joins[0].built, len(report.removed)) == (True, 1)
    metadataset(meta, train={"join": [{"path": "a"}, {"array": "row.zarr"}]})
    assert open_join(joins(meta)[0]).rows.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_prepared_again_without_a_change(meta: Path, tmp_path: Path) -> None:
    """Another uuid alone makes nothing stale: keys and places are what counts."""
    prepare_metadataset(meta)
    uuid = read_uuid(tmp_path / "a")
    make_dataset(tmp_path / "a", "a b", "c d", "e f")
    assert read_uuid(tmp_path / "a") != uuid
    assert len(open_join(joins(meta)[0])) == 4


def test_nested_metadatasets_keep_their_own(meta: Path, tmp_path: Path) -> None:
    prepare_metadataset(meta)
    (tmp_path / "outer").mkdir()
    own = {"join": [{"path": "../b"}, {"path": "../a", "nonmatch": "none"}]}
    outer = metadataset(tmp_path / "outer" / "outer.yaml", train={"blend": [{"path": "../meta.yaml"}, own, own]})
    report = prepare_metadataset(outer)
    assert [(join.folder.name, join.built, len(join.places)) for join in report.joins] == [
        ("meta.yaml.cache", False, 1),
        ("outer.yaml.cache", True, 2),
    ]
    assert report.joins[1].missing == {"../a": 1}
    assert len(names(meta, ".join_*")) == 2
    assert len(open_join(joins(outer)[0])) == 4


def test_small_joins_are_made_on_use(meta: Path) -> None:
    train, val = joins(meta)
    assert open_join(train).folder is not None
    assert len(names(meta, ".join_*")) == 1
    with pytest.raises(DatasetNotFoundError, match=r"joining 2 samples of a .* up to 1 samples .*; run `energon"):
        open_join(val, joined_on_use=1)
    prepare_metadataset(meta)
    assert len(open_join(val, joined_on_use=1)) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folders(meta: Path) -> None:
    meta.parent.chmod(0o500)
    try:
        assert open_join(joins(meta)[0]).folder is None
    finally:
        meta.parent.chmod(0o700)


def test_a_file_in_the_way_of_the_cache(meta: Path) -> None:
    Path(f"{meta}.cache").touch()
    index = open_join(joins(meta)[0])
    assert index.folder is None
    assert index.rows.tolist() == [[0, 3], [1, 2], [2, 1], [3, 0]]


def test_damaged_indices_are_told_and_mended(meta: Path) -> None:
    prepare_metadataset(meta)
    for file in Path(f"{meta}.cache").glob(".join_*/rows.npy"):
        file.write_bytes(b"x")
    with pytest.raises(IndexFileError, match=r"has 1 bytes.*energon-grain prepare .*meta\.yaml"):
        open_join(joins(meta)[0])
    assert all(join.built for join in prepare_metadataset(meta).joins)
    assert len(open_join(joins(meta)[0])) == 4


def test_missing_keys_are_told_with_the_place_of_the_join(meta: Path, tmp_path: Path) -> None:
    metadataset(meta, "b", "a")
    with pytest.raises(ConfigError, match=r"meta\.yaml: \$\.splits\.train: 1 of 5 keys of .*'x'"):
        prepare_metadataset(meta)
    make_dataset(tmp_path / "b", "a", "b", "c")
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    with pytest.raises(DatasetNotFoundError, match="no such file or folder"):
        prepare_metadataset(meta)


def test_dataset_yaml_may_insist(meta: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "a" / ".nv-meta" / "other.yaml"
    dataset.write_text("__class__: CrudeWebdataset\n__module__: megatron.energon\nsplit_part: val\n")
    metadataset(meta, {"path": "a", "dataset_config": "other.yaml"}, {"path": "b", "split_part": "val"})
    assert open_join(joins(meta)[0]).rows.tolist() == [[4, 6], [5, 5]]


def test_what_energon_prepared_is_joined_on_use_however_large(meta: Path) -> None:
    metadataset(meta, train={"join": [{"path": "a"}, {"path": "b"}]})
    (join,) = joins(meta)
    prepare_metadataset(meta)
    rows = np.array(open_join(join).rows)
    cache, name = Path(f"{meta}.cache"), energon_name_of(join.inputs())
    for folder in cache.glob(".join_*"):
        shutil.rmtree(folder)
    assert name is not None
    assert np.array_equal(open_join(join, joined_on_use=0).rows, rows)
    shutil.rmtree(cache)
    with pytest.raises(DatasetNotFoundError, match=r"up to 0 samples .*; run .*prepare .*meta\.yaml"):
        open_join(join, joined_on_use=0)


def test_headers_say_what_was_joined(meta: Path, tmp_path: Path) -> None:
    split(tmp_path / "a", "s1.tar", "s0.tar/b")
    prepare_metadataset(meta)
    train = open_join(joins(meta)[0])
    assert train.folder is not None
    header = json.loads((train.folder / "header.json").read_text())
    first = header["members"][0]
    assert (first["path"], first["split_part"], first["nonmatch"]) == ("a", "train", "error")
    assert first["excludes"] == ["s0.tar/b", "s1.tar"]
    assert first["uuid"] == read_uuid(tmp_path / "a")
    assert header["rows"] == 1


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
        with pytest.raises(StaleIndexError, match=rf"labels was prepared again with other samples .*prepare {url}"):
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
        assert any("a web server is read-only" in note for note in report.notes)
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
