"""Tars that nobody prepared: what names them, how they are split, and what becomes of their index."""

from __future__ import annotations

import gzip
import json
import logging
import os
import pickle
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run
from hypothesis import example, given, strategies as st
from metadatasets import v2, write_v2
from object_server import Bucket
from web_server import running_web_server

from energon_grain import (
    Cooker,
    DefaultTaskEncoder,
    SavableDataset,
    StandardWebdatasetFactory,
    StorageSettings,
    Stream,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
    use_storage,
)
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    EnergonGrainError,
    SplitError,
    StaleIndexError,
    StateError,
    TarError,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.samplers.split_ratio import SplitRatio
from energon_grain.testing import write_tars

COUNT, SHARDS = 60, 5
ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)
KEYS = [f"{number:03d}" for number in range(COUNT)]


def samples(*numbers: int) -> list[dict[str, Any]]:
    return [{"__key__": f"{number:03d}", "json": {"n": number}, "txt": f"text {number}"} for number in numbers]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    root = tmp_path / "tars"
    write_tars(root, samples(*range(COUNT)), shards=SHARDS, name="part/shard_{:03d}.tar")
    return root


def keys(path: Any, split_part: str = "train", **options: Any) -> list[str]:
    """In the order of the tars."""
    dataset = get_val_dataset(path, split_part=split_part, worker_config=ONE, batch_size=7, **options)
    with get_savable_loader(dataset) as loader:
        return [key for batch in loader for key in batch["__key__"]]


def training(path: Any, **options: Any) -> SavableDataset:
    asked = {"worker_config": ONE, "batch_size": 4, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    return get_train_dataset(path, **(asked | options))


FORMS: dict[str, Any] = {
    "folder": "{}",
    "glob": "{}/part/*.tar",
    "any depth": "{}/**/*.tar",
    "braces": "{}/part/shard_{{000..004}}.tar",
    "joined": "{}/part/shard_{{000..002}}.tar::{}/part/shard_00[34].tar",
    "list": [f"{{}}/part/shard_00{number}.tar" for number in range(SHARDS)],
}


def written(form: Any, root: Any) -> Any:
    return [each.format(root) for each in form] if isinstance(form, list) else form.format(root, root)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_what_names_tars(tars: Path, form: Any) -> None:
    path = written(form, tars)
    assert keys(path) == KEYS
    assert keys(v2(train={"path": path})) == KEYS
    relative = written(form, "tars")
    meta = write_v2(tars.parent, train={"path": relative}, val={"concat": [{"path": relative, "split_part": "train"}]})
    assert keys(meta) == keys(meta, "val") == KEYS


def test_the_order_of_a_list_counts(tars: Path) -> None:
    several = [tars / "part/shard_003.tar", str(tars / "part/shard_001.tar")]
    assert keys(several) == KEYS[36:48] + KEYS[12:24]
    assert keys("::".join(map(str, several))) == keys(several)


def test_one_tar_and_names_with_signs(tars: Path) -> None:
    assert keys(tars / "part/shard_001.tar") == KEYS[12:24]
    odd = tars / "part/shard[12].tar"
    shutil.copy(tars / "part/shard_002.tar", odd)
    assert keys(odd) == KEYS[24:36]
    assert keys([odd, tars / "part/shard_000.tar"]) == KEYS[24:36] + KEYS[:12]


def test_keys_may_come_again_in_other_tars(tars: Path) -> None:
    (tars / "more").mkdir()
    shutil.copy(tars / "part/shard_000.tar", tars / "more")
    assert keys(tars) == KEYS[:12] + KEYS


def test_in_blends_and_joins_with_what_is_prepared(tars: Path) -> None:
    prepared = tars.parent / "prepared"
    write_tars(prepared, reversed(samples(*range(COUNT))), shards=2)
    prepare_dataset(prepared, crude=True, split_ratio={"train": 1}, num_workers=0)
    blend = write_v2(tars.parent, train={"blend_epochized": [{"path": "tars"}, {"path": "prepared"}]})
    assert sorted(keys(blend)) == sorted(KEYS * 2)
    join = {"join": {"a": {"path": "tars/**/*.tar"}, "b": {"path": "prepared"}}, "joiner": "both:Both"}
    (tars.parent / "both.py").write_text(
        "from dataclasses import dataclass\nfrom energon_grain import Sample, basic_sample_keys\n"
        "@dataclass\nclass Both(Sample):\n    a: object\n    b: object\n"
        "    @classmethod\n    def from_joined(cls, a, b):\n"
        "        return cls(**basic_sample_keys(a), a=a['json']['n'], b=b['json']['n'])\n"
    )
    join["joiner"] = {"__module__": "both", "__class__": "Both"}
    meta = write_v2(tars.parent, "join.yaml", train=join)
    sys.path.insert(0, str(tars.parent))
    try:
        with Stream.of(training(meta, trusted_modules=["both"])) as stream:
            batches = [next(stream) for _ in range(15)]
    finally:
        sys.path.remove(str(tars.parent))
    assert sorted(batch.a[row] for batch in batches for row in range(4)) == list(range(COUNT))
    assert all(list(batch.a) == list(batch.b) for batch in batches)


def test_samples_are_crude_or_of_a_type_that_the_program_says(tars: Path) -> None:
    @stateless
    def cook(sample: Any) -> TextSample:
        return TextSample(**basic_sample_keys(sample), text=sample["txt"])

    class Cooking(DefaultTaskEncoder):
        cookers = (Cooker(cook),)

    with Stream.of(training(tars, task_encoder=Cooking())) as stream:
        assert next(stream).text[0].startswith("text ")
    factory = StandardWebdatasetFactory(
        str(tars),
        sample_type=TextSample,
        field_map={"text": "txt"},
        split_part="train",
        training=False,
        worker_config=ONE,
    )
    assert len(factory) == COUNT
    with pytest.raises(ConfigError, match=r"dataset_config='other\.yaml', but a folder or list of unprepared tars"):
        training(tars, dataset_config="other.yaml")


# Split parts


@given(
    ratio=st.dictionaries(st.sampled_from("abcd"), st.decimals(0, 9, places=2), min_size=1).filter(
        lambda ratio: any(ratio.values())
    ),
    shards=st.dictionaries(st.text(max_size=9), st.integers(0, 1 << 40)),
)
@example({"a": 1, "b": 2}, {"x": 0, "y": 1, "z": 3})
def test_runs_of_a_ratio_share_every_shard_exactly(ratio: Any, shards: dict[str, int]) -> None:
    split = SplitRatio({name: float(number) for name, number in ratio.items()})
    total = sum(ratio.values())
    runs = {name: split.runs(name, shards) for name in split.bounds}
    for place, (shard, count) in enumerate(shards.items()):
        ends = [run[place] for run in runs.values()]
        assert [0, *(end for _, end in ends)] == [*(begin for begin, _ in ends), count]
        for name, (begin, end) in zip(runs, ends, strict=True):
            share = count * int(ratio[name] * 100)
            assert abs((end - begin) * int(total * 100) - share) < int(total * 100)
            assert split.runs(name, {f"moved/{shard}": count, "other": 3})[0] == (begin, end) or "/" in shard


def test_small_shards_have_their_share_of_a_small_part() -> None:
    runs = SplitRatio("train:99,val:1").runs("val", {f"{number:05d}.tar": 10 for number in range(10_000)})
    assert abs(sum(end - begin for begin, end in runs) - 1_000) < 150


def test_a_ratio_splits_and_no_sample_moves(tars: Path) -> None:
    ratio = "train:0.7,val:0.2,test:0.1"
    before = {part: keys(tars, part, split_ratio=ratio) for part in ("train", "val", "test")}
    assert sorted(sum(before.values(), [])) == KEYS
    assert [len(each) for each in before.values()] == pytest.approx([42, 12, 6], abs=5)
    write_tars(tars / "a", samples(*range(100, 130)), shards=3, name="new_{}.tar")
    (tars / "part/shard_001.tar").unlink()
    gone = set(KEYS[12:24])
    after = {part: keys(tars, part, split_ratio=ratio) for part in ("train", "val", "test")}
    assert {part: [key for key in each if key < "100"] for part, each in after.items()} == {
        part: [key for key in each if key not in gone] for part, each in before.items()
    }
    shuffled = get_val_dataset(tars, split_part="val", split_ratio={"train": 7, "val": 2, "test": 1}, batch_size=1)
    assert len(shuffled) == len(after["val"])
    meta = write_v2(tars.parent, val={"path": "tars", "split_ratio": {"train": 0.7, "val": 0.2, "test": 0.1}})
    assert keys(meta, "val") == after["val"]
    half = keys(tars, "train", split_ratio=ratio, subset=["50%", "100%"])
    assert half == after["train"][len(after["train"]) // 2 :]


def test_split_parts_that_are_not_there(tars: Path) -> None:
    with pytest.raises(SplitError, match=r"have a single split part, 'train'.*split_ratio='train:0.9,val:0.1'"):
        get_val_dataset(tars, batch_size=1)
    with pytest.raises(SplitError, match=r"has no split part 'vall'\. Did you mean 'val'"):
        get_val_dataset(tars, split_part="vall", batch_size=1, split_ratio="train:9,val:1")
    with pytest.raises(ConfigError, match="split ratio 'train'"):
        training(tars, split_ratio="train")
    prepare_dataset(tars, crude=True, num_workers=0)
    with pytest.raises(ConfigError, match=r"is prepared, so its split file .*; remove split_ratio"):
        training(tars, split_ratio="train:9,val:1")
    joined = write_v2(tars.parent, train="{join: [{path: tars, split_ratio: [1]}, {path: tars}]}")
    with pytest.raises(ConfigError, match="split_ratio"):
        training(joined)


# The index


def index_folders(root: Path) -> list[Path]:
    return sorted(root.glob(".nv-meta/bare/all/g*"))


def opened(path: Any) -> str:
    answer = run("info", path, "--json")
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)["content_id"]


def test_a_folder_that_changes_is_indexed_anew(tars: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of what did not change nothing is read: it could not be."""
    with Stream.of(training(tars)) as stream:
        next(stream)
        state = stream.cursor()
    (old,) = index_folders(tars)
    write_tars(tars / "a", [{"__key__": "900", "txt": "y", "json": {"n": 900}}], name="new.tar")
    (tars / "part/shard_002.tar").unlink()
    write_tars(tars, samples(700, 701), name="part/shard_003.tar")
    kept = tars / "part/shard_004.tar"
    content, times = kept.read_bytes(), kept.stat()
    kept.write_bytes(bytes(len(content)))
    os.utime(kept, ns=(times.st_atime_ns, times.st_mtime_ns))
    caplog.set_level(logging.WARNING, "energon_grain")
    dataset = training(tars)
    with Stream.of(dataset) as stream:
        said = "1 tars added, 1 removed and 1 replaced since the last indexing; scanning 2 of 5"
        assert [said in record.getMessage() for record in caplog.records] == [True]
        with pytest.raises(StateError, match="belongs to another stream"):
            stream.restore(state)
    kept.write_bytes(content)
    os.utime(kept, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert keys(tars) == ["900", *KEYS[:24], "700", "701", *KEYS[48:]]
    assert len(index_folders(tars)) == 2, "who reads by the old one goes on"
    anew = opened(tars)
    shutil.rmtree(tars / ".nv-meta")
    assert opened(tars) == anew
    assert not old.exists()


def test_what_is_written_again_with_the_same_samples_goes_on(tars: Path) -> None:
    with Stream.of(training(tars)) as stream:
        next(stream)
        state, expected = stream.cursor(), next(stream)["__key__"]
    for tar in tars.rglob("*.tar"):
        shutil.copy(tar, tar.with_suffix(".new"))
        os.replace(tar.with_suffix(".new"), tar)
    with Stream.of(training(tars)) as stream:
        stream.restore(state)
        assert next(stream)["__key__"] == expected


def test_readers_of_an_index_that_was_replaced_go_on(tars: Path) -> None:
    """Also worker processes that start then."""
    dataset = training(tars)
    sent = pickle.dumps(compile_dataset(dataset))
    with Stream.of(dataset) as stream:
        first = next(stream)
        write_tars(tars / "a", samples(900), name="new.tar")
        assert len(keys(tars)) == COUNT + 1
        following = next(stream)
    with Stream(pickle.loads(sent), ONE) as stream:
        for expected in (first, following):
            assert next(stream)["__key__"] == expected["__key__"]


def test_a_shard_that_changes_while_it_is_used(tars: Path) -> None:
    dataset = training(tars)
    with Stream.of(dataset) as stream:
        for tar in tars.rglob("*.tar"):
            write_tars(tars, samples(*range(800, 805)), name=str(tar.relative_to(tars)))
        with pytest.raises(StaleIndexError, match=rf"run `energon-grain info {tars}`"):
            next(stream)


def test_one_process_indexes_and_the_others_wait(tars: Path) -> None:
    program = (
        "import logging, sys; logging.basicConfig(level='INFO')\n"
        "from energon_grain.prepare.containers import open_data\n"
        "open_data(sys.argv[1])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, tars]
    several = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    told = [each.communicate()[1] for each in several]
    assert [each.returncode for each in several] == [0] * 4, told
    assert sum(text.count("indexed 60 samples in 5 tars") for text in told) == 1
    assert len(index_folders(tars)) == 1


def test_the_index_lies_in_the_cache_where_the_data_cannot_be_written(tars: Path, tmp_path: Path) -> None:
    (tars / ".nv-meta").touch()  # also for root no folder can be made there
    assert keys(tars) == KEYS
    assert list((tmp_path / "cache").rglob("state.json"))
    far = [tars / "part/shard_001.tar", tmp_path / "far/new.tar"]
    write_tars(tmp_path / "far", samples(900), name="new.tar")
    assert keys(far) == [*KEYS[12:24], "900"]
    assert not (tmp_path / ".nv-meta").exists(), "the folder above both is not beside the data"


def test_a_damaged_index_is_made_anew(tars: Path) -> None:
    assert keys(tars) == KEYS
    state = tars / ".nv-meta/bare/all/state.json"
    state.write_bytes(state.read_bytes()[:-9])
    assert keys(tars) == KEYS
    (header,) = tars.glob(".nv-meta/bare/all/g*/.nv-meta/columnar/header.json")
    header.write_bytes(header.read_bytes().replace(b"jso", b"jsn"))
    with pytest.raises(EnergonGrainError, match="checksum"):
        keys(tars)
    write_tars(tars / "a", samples(900), name="new.tar")  # nothing is taken over from it
    assert keys(tars) == ["900", *KEYS]


# What is wrong with tars


def test_errors(tars: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    part = tars / "part"

    def wrong(path: Any, kind: type[Exception], match: str) -> None:
        with pytest.raises(kind, match=match):
            Stream.of(training(path))

    wrong(tmp_path / "empty", DatasetNotFoundError, "not a prepared dataset")
    wrong(f"{part}/x*.tar", DatasetNotFoundError, r"x\*.tar: the pattern matches no \*.tar file")
    wrong(f"{part}/shard_{{000..007}}.tar", DatasetNotFoundError, "shard_005.tar: no such file .2 more are missing")
    wrong(f"{part}/shard_{{000..0.tar", ConfigError, "nbalanced")
    wrong(f"{part}/shard_{{0..99999999}}.tar", ConfigError, "expands to 100,000,000 names")
    wrong([part / "shard_000.tar"] * 2, ConfigError, "names shard_000.tar twice")
    wrong([part / "shard_000.tar", "s3://bucket/x.tar"], ConfigError, "be in one store; these are in s3://bucket and")
    wrong([], ConfigError, "a list of paths must contain one or more texts")
    wrong([3], ConfigError, "one or more texts, not")
    wrong(f"{part}/shard_000.tar::", ConfigError, "one side of a `::` is empty")
    with tarfile.open(part / "zero.tar", "w"):
        pass
    wrong(tars, TarError, "zero.tar: holds no sample")
    (part / "zero.tar").write_bytes(b"no tar at all, but as long as it needs to be" * 100)
    wrong(tars, TarError, "zero.tar")
    (part / "zero.tar").unlink()
    (part / "x.tar.gz").write_bytes(gzip.compress((part / "shard_000.tar").read_bytes()))
    wrong(tars, TarError, "x.tar.gz: compressed")
    (part / "x.tar.gz").unlink()
    assert keys(tars) == KEYS
    prepare_dataset(tars, crude=True, num_workers=0, sqlite=False)
    with pytest.raises(DatasetNotFoundError, match="not a prepared dataset"):
        training(tmp_path)  # the folder above
    (tars / ".nv-meta/.info.json").unlink()
    wrong(tars, DatasetNotFoundError, "not a prepared dataset")


def test_damaged_tars_give_named_errors_or_what_is_whole(tmp_path: Path) -> None:
    chance = random.Random(0)
    (whole,) = write_tars(tmp_path / "whole", samples(*range(6)))
    content = whole.read_bytes()
    target = tmp_path / "damaged" / "x.tar"
    target.parent.mkdir()
    refused = 0
    for _ in range(120):
        damaged = bytearray(content[: chance.choice([len(content), chance.randrange(len(content))])])
        for _ in range(chance.randrange(1, 4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        target.write_bytes(damaged)
        said = ""
        try:
            assert keys(target.parent, task_encoder=Raw())
        except EnergonGrainError as error:
            refused, said = refused + 1, str(error)
        assert not said or "x.tar" in said
    assert 10 < refused < 120


class Raw(DefaultTaskEncoder):
    decoder = None


# Elsewhere


def test_in_a_bucket(tars: Path, bucket: Bucket) -> None:
    url = bucket.upload(tars, "data")
    for form in FORMS.values():
        assert keys(written(form, url)) == KEYS
    assert not any("nv-meta" in each.path and each.method != "GET" for each in bucket.server.requests(method="PUT"))
    write_tars(tars / "a", samples(900), name="new.tar")
    bucket.put("data/a/new.tar", (tars / "a/new.tar").read_bytes())
    use_storage(None)
    assert keys(f"{url}/**/*.tar") == ["900", *KEYS]
    assert keys(url, "val", split_ratio="train:1,val:1") == keys(tars, "val", split_ratio="train:1,val:1")
    with pytest.raises(DatasetNotFoundError, match="there is nothing below that URL"):
        keys(f"{url}/not")


def test_on_a_web_server_without_lists(tars: Path, tmp_path: Path) -> None:
    use_storage(StorageSettings(cache_dir=str(tmp_path / "cache")))
    shutil.copy(tars / "part/shard_000.tar", tars / "part/with a blank.tar")
    with running_web_server(tars) as server:
        assert keys(f"{server.url}/part/shard_{{000..004}}.tar") == KEYS
        assert keys([f"{server.url}/part/with%20a%20blank.tar"]) == KEYS[:12]
        with pytest.raises(ConfigError, match="a web server has no list"):
            keys(f"{server.url}/part/*.tar")
        with pytest.raises(EnergonGrainError, match=r"shard_009\.tar"):
            keys(f"{server.url}/part/shard_{{000..009}}.tar")


# Commands


def test_commands(tars: Path) -> None:
    pattern = f"{tars}/part/shard_{{000..004}}.tar"
    for path in (tars, pattern):
        answer = run("info", path)
        assert answer.exit_code == 0, answer.output
        assert "60 samples in 5 shards" in answer.output
        answer = run("lint", path)
        assert answer.exit_code == 0, answer.output
        assert "No problems in 60 samples and 5 shards." in answer.output
        answer = run("preview", path, "--samples=2")
        assert answer.exit_code == 0, answer.output
        assert "2 of 60 samples" in answer.output
        answer = run("which", path, "--step=2", "--batch-size=4", "--split-ratio=train:9,val:1", "--json")
        assert answer.exit_code == 0, answer.output
        assert len(json.loads(answer.stdout)) == 4
    answer = run("bench", pattern, "--seconds=0.01", "--workers=0", "--no-progress")
    assert answer.exit_code == 0, answer.output
    answer = run("lint", write_v2(tars.parent, train={"path": pattern}))
    assert answer.exit_code == 0, answer.output
    answer = run("convert", tars, tars.parent / "records")
    assert answer.exit_code == 0, answer.output
    assert sorted(keys(tars.parent / "records")) == KEYS
