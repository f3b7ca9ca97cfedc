"""Converting datasets there and back, in stores and from the Hub: the same samples, resumption, and what is refused."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import numbered, write_group
from full_disk import size_limit
from hub_server import running_hub
from hypothesis import given, settings, strategies as st
from metadatasets import write_v2
from object_server import Bucket
from parquet_files import features, files, picture, write_numbers, write_parquet
from patience import PATIENCE_S
from records import encode_example, msgpack_record, write_records, write_shards

from energon_grain import DefaultTaskEncoder, get_train_dataset
from energon_grain.conversion import convert_dataset
from energon_grain.errors import ConfigError, DatasetNotFoundError, DuplicateKeyError, FormatError, RefusedError
from energon_grain.formats.dataset_config import read_dataset_config
from energon_grain.formats.nv_meta import holds_records, is_prepared, read_info
from energon_grain.formats.splits import read_split_config
from energon_grain.kinds.array_record.writer import read_written
from energon_grain.kinds.tar.writer import member_header
from energon_grain.prepare import PrepareProgress, prepare_dataset
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.prepare.containers import UnfitSampleError, open_prepared
from energon_grain.prepare.lint import lint_dataset
from energon_grain.prepare.shard_writer import ShardWriter
from energon_grain.prepare.write_shards import SampleDigest
from energon_grain.testing import make_blob_dataset, make_text_dataset, write_tars

ALL = {"train": 1}


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Parts that come and go in any order, shards in folders, excludes, a second split file, other files."""
    root, rng = tmp_path / "tars" / "data", np.random.default_rng(0)
    samples: list[dict[str, Any]] = []
    for i in range(50):
        parts: dict[str, Any] = {"txt": f"text {i}", "json": {"i": i}, "seg.png": rng.bytes(i * 100)}
        names = list(parts)[: 1 + i % 3]
        rng.shuffle(names)
        samples.append({"__key__": f"ключ/{i:03d}", **{name: parts[name] for name in names}})
    write_tars(root, samples, shards=5, name="parts/s-{}.tar")
    options: dict[str, Any] = {"sample_type": "TextSample", "field_map": {"text": "txt,json"}, "num_workers": 0}
    prepare_dataset(root, split_ratio={"train": 4, "val": 1}, **options)
    meta = root / ".nv-meta"
    excludes = "exclude: [parts/s-1.tar, 'parts/s-2.tar/ключ/021']"
    (meta / "split.yaml").write_text((meta / "split.yaml").read_text().replace("exclude: []", excludes))
    (meta / "other_split.yaml").write_text("split_parts: {all: ['parts/s-{0..4}.tar']}\n")
    (meta / "sample_loader.py").write_text("# split_parts: not really\n")
    (meta / "crude.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    return root


def told(root: Path) -> list[tuple[str, list[tuple[str, Any]]]]:
    source = open_prepared(root)
    batch = source.read(np.arange(len(source)))
    return [(raw.key, sorted(raw.parts.items())) for raw in batch]


def test_there_and_back(tars: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "records", tmp_path / "back"
    seen: list[PrepareProgress] = []
    report = convert_dataset(tars, there, progress=seen.append)
    assert (report.samples, report.container, report.verified, report.notes) == (50, "array-record", True, ())
    assert [now.shards_done for now in seen if now.stage == "convert"] == [0, 1, 2, 3, 4, 5]
    assert seen[-1].stage == "index"
    assert holds_records(there)
    assert read_info(there).shard_counts == {f"parts/s-{shard}.array_record": 10 for shard in range(5)}
    assert told(there) == told(tars)
    assert open_columnar(there).content_id == open_columnar(tars).content_id
    splits = read_split_config(there)
    assert splits.split_parts["train"] == tuple(f"parts/s-{shard}.array_record" for shard in range(4))
    assert splits.exclude == ("parts/s-1.array_record", "parts/s-2.array_record/ключ/021")
    assert len(read_split_config(there, "other_split.yaml").split_parts["all"]) == 5
    for name in ("dataset.yaml", "crude.yaml", "sample_loader.py"):
        assert (there / ".nv-meta" / name).read_bytes() == (tars / ".nv-meta" / name).read_bytes()
    assert read_dataset_config(there, "dataset.yaml") == read_dataset_config(tars, "dataset.yaml")
    assert lint_dataset(there).findings == ()
    assert not (there / ".nv-meta" / ".writing").exists()

    convert_dataset(there, back, sqlite=False)
    for shard in range(5):
        assert (back / f"parts/s-{shard}.tar").read_bytes() == (tars / f"parts/s-{shard}.tar").read_bytes()
    assert read_split_config(back) == read_split_config(tars)
    assert open_columnar(back).content_id == open_columnar(tars).content_id
    assert not (back / ".nv-meta" / "index.sqlite").exists()
    assert not (back / ".nv-meta" / "records.json").exists()


def test_compressed(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", [{"__key__": str(i), "txt": "x" * 10000} for i in range(50)], shards=1)
    prepare_dataset(tmp_path / "tars", split_ratio=ALL, crude=True, num_workers=0)
    plain = convert_dataset(tmp_path / "tars", tmp_path / "plain", verify=False)
    small = convert_dataset(tmp_path / "tars", tmp_path / "small", compression="zstd")
    assert small.target_bytes < plain.target_bytes / 2
    assert told(tmp_path / "small") == told(tmp_path / "plain") == told(tmp_path / "tars")
    assert not plain.verified


def test_shards_that_are_there_are_not_written_again(tars: Path, tmp_path: Path) -> None:
    target = tmp_path / "records"

    class EnoughError(Exception):
        pass

    def stop(now: PrepareProgress) -> None:
        if now.shards_done == 3:
            raise EnoughError

    with pytest.raises(EnoughError):
        convert_dataset(tars, target, progress=stop)
    done = sorted((target / "parts").glob("s-*.array_record"))
    assert len(done) >= 3
    assert not is_prepared(target)
    (target / "parts" / ".s-9.array_record.00.writing").touch()
    done[0].write_bytes(b"half a shard")
    before = {path: path.stat().st_mtime_ns for path in done[1:]}
    report = convert_dataset(tars, target)
    assert report.shards_reused == len(done) - 1
    assert {path: path.stat().st_mtime_ns for path in done[1:]} == before
    assert told(target) == told(tars)
    assert not list(target.rglob("*.writing"))


def test_other_conversions_do_not_go_on(tars: Path, tmp_path: Path) -> None:
    target = tmp_path / "records"
    shutil.copytree(tars, tmp_path / "other")
    (tmp_path / "other" / "parts" / "s-4.tar").unlink()
    prepare_dataset(tmp_path / "other", split_ratio=ALL, force_overwrite=True, num_workers=0)
    (target / ".nv-meta" / "columnar").mkdir(parents=True)
    with pytest.raises(RefusedError, match="is not empty"):
        convert_dataset(tars, target)
    shutil.rmtree(target)
    with pytest.raises(ZeroDivisionError):
        convert_dataset(tars, target, progress=lambda now: 1 / (now.shards_done - 1))
    with pytest.raises(ConfigError, match=r"other data \(content_id, shards differ"):
        convert_dataset(tmp_path / "other", target)
    with pytest.raises(ConfigError, match=r"with other settings .*compression differ"):
        convert_dataset(tars, target, compression="zstd")
    convert_dataset(tars, target)
    with pytest.raises(ConfigError, match="is not empty"):
        convert_dataset(tars, target)


def test_killed_before_the_plan_was_written(tars: Path, tmp_path: Path) -> None:
    notes = tmp_path / "records" / ".nv-meta" / ".writing"
    notes.mkdir(parents=True)
    (notes / ".plan.json.0a.tmp").touch()
    convert_dataset(tars, tmp_path / "records")
    assert told(tmp_path / "records") == told(tars)
    assert not notes.exists()


def test_arguments(tars: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its shards are tar files already"):
        convert_dataset(tars, tmp_path / "x", to="tar")
    with pytest.raises(ConfigError, match="num_workers is -1"):
        convert_dataset(tars, tmp_path / "x", num_workers=-1)
    convert_dataset(tars, tmp_path / "x")
    with pytest.raises(ConfigError, match="compression='zstd': only records can be compressed"):
        convert_dataset(tmp_path / "x", tmp_path / "y", compression="zstd")
    with pytest.raises(DatasetNotFoundError):
        convert_dataset(tmp_path / "none", tmp_path / "z")
    with pytest.raises(ConfigError, match="s3://bucket/x: a conversion writes to a file system"):
        convert_dataset(tars, "s3://bucket/x")
    assert not (tmp_path / "y").exists()
    assert not (tmp_path / "z").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.__key__", "sample 'a' has a part '__key__'"),
        ("b\udcff.txt", "its key or a part name is not UTF-8"),
    ],
)
def test_what_records_cannot_hold(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "x.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    prepare_dataset(tmp_path / "tars", split_ratio=ALL, crude=True, num_workers=0)
    with pytest.raises(FormatError, match=rf"x\.tar: .*{said}"):
        convert_dataset(tmp_path / "tars", tmp_path / "records")


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ({"__key__": [b"v1.5"], "txt": [b"x"]}, "'v1.5.txt' would not be read as this sample"),
        ({"__key__": [b"a"], "image/png": [b"x"]}, "slashes from the part name"),
        ({"__key__": [b"a"], "x\0y": [b"x"]}, "zero bytes from both"),
        ({"__key__": [b"a"], "n": [1]}, "the part 'n' holds numbers"),
        ({"__key__": [b"a"]}, "has no part"),
    ],
)
def test_what_tars_cannot_hold(tmp_path: Path, features: dict[str, Any], said: str) -> None:
    write_shards(tmp_path / "records", [encode_example(features)], 1)
    prepare_dataset(tmp_path / "records", records="tf_example", split_ratio=ALL, crude=True)
    with pytest.raises(FormatError, match=said):
        convert_dataset(tmp_path / "records", tmp_path / "tars")


def test_raw_records_become_parts(tmp_path: Path) -> None:
    write_shards(tmp_path / "records", [b"a", b"b", b"c"], 2)
    prepare_dataset(tmp_path / "records", records="raw", split_ratio=ALL, crude=True)
    convert_dataset(tmp_path / "records", tmp_path / "tars")
    assert told(tmp_path / "tars") == [("0", [("record", b"a")]), ("1", [("record", b"b")]), ("2", [("record", b"c")])]


def test_parts_that_come_twice(tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "x.tar", "w") as tar:
        for data in (b"one", b"two"):
            member = tarfile.TarInfo("a.txt")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    prepare_dataset(tmp_path / "tars", split_ratio=ALL, crude=True, num_workers=0)
    report = convert_dataset(tmp_path / "tars", tmp_path / "records")
    assert "samples have a part twice" in report.notes[0]
    assert told(tmp_path / "records") == [("a", [("txt", b"two")])]


def test_no_shard_replaces_another(tmp_path: Path) -> None:
    """Only the ending that all shards have is exchanged; where it is not there, names may come to be the same."""
    samples = [{"__key__": str(i), "txt": str(i)} for i in range(3)]
    for sample, name in zip(samples, ("x.tar", "x.array_record.tar", "x"), strict=True):
        write_tars(tmp_path / "tars", [sample], shards=1, name=name)
    shards = ["x.tar", "x.array_record.tar"]
    prepare_dataset(tmp_path / "tars", shards=shards, split_ratio=ALL, crude=True, num_workers=0)
    report = convert_dataset(tmp_path / "tars", tmp_path / "records")
    assert list(report.shard_counts) == ["x.array_record", "x.array_record.array_record"]
    assert told(tmp_path / "records") == told(tmp_path / "tars")
    options: dict[str, Any] = {"split_ratio": ALL, "num_workers": 0, "force_overwrite": True}
    prepare_dataset(tmp_path / "tars", shards=[*shards, "x"], **options)
    with pytest.raises(ConfigError, match=r"'x\.tar' and 'x' would both become 'x\.array_record'"):
        convert_dataset(tmp_path / "tars", tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_a_killed_conversion_goes_on(tmp_path: Path) -> None:
    """Large enough for processes; all of them are killed at once."""
    make_blob_dataset(tmp_path / "blobs", n=720, shards=9, sample_bytes=100_000)
    target = tmp_path / "records"
    command = [sys.executable, "-m", "energon_grain.cli", "convert", str(tmp_path / "blobs"), str(target)]
    with subprocess.Popen([*command, "--num-workers", "2"], start_new_session=True) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not any(log.stat().st_size for log in target.rglob("*.open")) and time.monotonic() < deadline:
                time.sleep(0.01)  # until one is noted as written
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert 1 <= len(list(target.glob("*.array_record"))) < 9
    done = subprocess.run([*command, "--num-workers", "2"], capture_output=True, text=True, check=True)
    assert " had been written by an interrupted run" in done.stdout
    assert "720 samples in 9 ArrayRecord files" in done.stdout
    assert done.stderr == ""
    assert told(target) == told(tmp_path / "blobs")


def test_a_full_disk(tmp_path: Path) -> None:
    """What is said is one line, nothing of the shard is left, and the next run goes on."""
    source = make_blob_dataset(tmp_path / "blobs", n=20, shards=2, sample_bytes=100_000)
    for old, new, name in (
        (source, "records", "shard_000.array_record"),
        (tmp_path / "records", "tars", "shard_000.tar"),
    ):
        target = tmp_path / new
        command = [sys.executable, "-m", "energon_grain.cli", "convert", str(old), str(target)]
        with size_limit(500_000):
            done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith(f"Error: {target / name}: cannot be written: ")
        assert done.stderr.count("\n") == 1
        assert [path.name for path in target.rglob("*") if path.is_file() and path.stat().st_size] == ["plan.json"]
        assert convert_dataset(old, target).samples == 20
        assert told(target) == told(source)


def served(path: Path) -> dict[str, dict[str, Any]]:
    """Decoded samples by key, their parts without what was put behind the names of columns."""
    options: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    samples = list(get_train_dataset(path, batch_size=None, task_encoder=DefaultTaskEncoder(), **options))
    return {
        sample["__key__"]: {name: value for name, value in sample.items() if not name.startswith("__")}
        for sample in samples
    }


@pytest.mark.parametrize("container", ["tar", "array-record"])
def test_parquet_is_decoded_alike_when_it_is_converted(tmp_path: Path, container: Any) -> None:
    columns: dict[str, Any] = {
        "image": files([picture(i) for i in range(20)]),
        "caption": [f"text {i}" if i % 3 else None for i in range(20)],
        "meta.json": ['{"a": 1}'] * 20,  # a text, whatever it is called
        "id": [f"id {i}" for i in range(20)],
        "tags": [["a", "b"]] * 20,
        "said": [{"a": i} for i in range(20)],
        "label": np.arange(20),
        "pages": [files([picture(i), picture(i + 1)]) for i in range(20)],
        "note.txt": ["BM" + "x" * 20] * 20,
        "raw": [b"\0\1"] * 20,
    }
    image = {"_type": "Image"}
    write_parquet(tmp_path / "rows", columns, files=2, metadata=features(image=image, pages=[image]), row_group_size=4)
    convert_dataset(tmp_path / "rows", tmp_path / "new", to=container, shard_samples=6, num_workers=0)
    before, after = served(tmp_path / "rows"), served(tmp_path / "new")
    assert before.keys() == after.keys()
    endings = {
        "image": ("png", "jpg"), "caption": ("txt",), "meta.json": ("txt",), "id": ("txt",), "tags": ("json",),
        "said": ("json",), "label": ("npy",), "pages.0": ("png", "jpg"), "pages.1": ("png", "jpg"),
    }  # fmt: skip
    for key, sample in after.items():
        renamed: dict[str, Any] = {}
        for name, value in before[key].items():
            [new] = {f"{name}.{ending}" for ending in endings.get(name, ())} & sample.keys() or {name}
            renamed[new] = value
        np.testing.assert_equal(sample, renamed)


def test_columns_that_become_the_same_part_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows", {"caption": ["a"], "caption.txt": ["b"]}, files=2)
    with pytest.raises(FormatError, match=r"'caption' and 'caption\.txt' would both become the part 'caption\.txt'"):
        convert_dataset(tmp_path / "rows", tmp_path / "new")


def test_bare_tars_with_common_keys_are_refused_before_they_are_written(tmp_path: Path) -> None:
    """They may be trained on; the way out that is named leads out."""
    root, target = tmp_path / "bare", tmp_path / "new"
    for name in ("a.tar", "b.tar"):
        write_tars(root, [{"__key__": str(i), "txt": f"{name} {i}"} for i in range(3)], name=name)
    with pytest.raises(DuplicateKeyError, match=r"3 samples have the key of another one, such as '0'.*fix-duplicates"):
        convert_dataset(root, target)
    assert not target.exists()
    prepare_dataset(root, fix_duplicates=True, crude=True, split_ratio=ALL, num_workers=0)
    assert convert_dataset(root, target).samples == 6


def test_tars_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    tars = make_text_dataset(tmp_path / "tars", n=30, shards=3)
    report = convert_dataset(bucket.upload(tars), tmp_path / "records", num_workers=2)
    assert (report.samples, report.verified, report.notes) == (30, True, ())
    assert report.source.startswith("s3://")
    there, here = open_prepared(tmp_path / "records"), open_prepared(tars)
    every = np.arange(30)
    assert there.read(every).columns == here.read(every).columns
    assert there.content_id == here.content_id


def test_records_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    tars = make_text_dataset(tmp_path / "tars", n=30, shards=3)
    convert_dataset(tars, tmp_path / "records", compression="zstd")
    report = convert_dataset(bucket.upload(tmp_path / "records"), tmp_path / "again")
    assert (report.samples, report.container, report.verified, report.notes) == (30, "tar", True, ())
    assert open_prepared(tmp_path / "again").content_id == open_prepared(tars).content_id
    for shard in tars.glob("*.tar"):
        assert (tmp_path / "again" / shard.name).exists()


def test_lines_and_arrays_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "lines.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n')
    write_group(tmp_path / "sets" / "rows", a=numbered(3))
    url = bucket.upload(tmp_path / "sets")
    for root in (url, str(tmp_path / "sets")):
        new = tmp_path / root.rpartition("/")[2]
        convert_dataset(f"{root}/lines.jsonl", new / "new lines")
        assert open_prepared(new / "new lines").read(np.arange(2)).columns == {"json": [b'{"a": 1}', b'{"a": 2}']}
        convert_dataset(f"{root}/rows", new / "new rows", to="array-record", shard_samples=2)
        batch = open_prepared(new / "new rows").read(np.arange(3))
        assert batch.keys == ["0", "1", "2"]
        assert [np.load(io.BytesIO(data)).tolist() for data in batch.columns["a.npy"]] == numbered(3).tolist()


def test_what_cannot_be_converted_is_named(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    write_v2(tmp_path / "sets", "mix.yaml", train={"path": "tars"})
    url = bucket.upload(tmp_path / "sets")
    for root in (url, str(tmp_path / "sets")):
        with pytest.raises(
            ConfigError, match=f"^{root}/mix.yaml: is a metadataset, .*: convert its datasets one by one"
        ):
            convert_dataset(f"{root}/mix.yaml", tmp_path / "new")
    with pytest.raises(DatasetNotFoundError, match=f"^{url}/nothing: there is nothing below that URL; check it$"):
        convert_dataset(f"{url}/nothing", tmp_path / "new")


KILLS = int(os.environ.get("KILLS", "4"))
"""In each form: 20 in `KILLS=20 python -m pytest tests/conversion/test_convert.py`."""
PROGRAM = """
import random, shutil, sys
from pathlib import Path
import energon_grain.conversion, pyarrow.parquet, urllib3
from killing import _files, _run
url, folder, to, kills = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
def convert(root):
    energon_grain.conversion.convert_dataset(
        url, root / "new", to=to, shard_samples=4 if sys.argv[5] == "cut" else None, num_workers=0, sqlite=False
    )
folder.mkdir()
(folder / "whole").mkdir()
status, told = _run(folder / "whole", convert)
assert status == 0, told
expected, root, done, finished = _files(folder / "whole"), folder / "killed", 0, 0
chosen = random.Random(url)
while done < kills or not finished:
    root.mkdir(exist_ok=True)
    status, told = _run(root, convert, kill_at=chosen.randrange(1, 60) if done < kills else None)
    assert status in (0, -9), (status, told)
    done += status == -9
    if status == 0:
        assert _files(root) == expected, sorted(expected.items() ^ _files(root).items())
        finished += 1
        shutil.rmtree(root)
print(done, finished)
"""


def _lines(root: Path) -> None:
    (root / "x.jsonl").write_text("".join(f'{{"text": "line {i}"}}\n' for i in range(24)))


def _records(root: Path) -> None:
    samples = [{"__key__": f"{i:04d}", "txt": f"text {i}".encode()} for i in range(24)]
    write_shards(root / "x", [msgpack_record(sample) for sample in samples], 6)
    prepare_dataset(root / "x", records="msgpack", crude=True, split_ratio=[1], num_workers=0)


FORMS: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "parquet": (lambda root: write_numbers(root / "x.parquet", 24), "x.parquet", "tar", "cut"),
    "lines": (_lines, "x.jsonl", "array-record", "cut"),
    "bare tars": (lambda root: make_text_dataset(root / "x", n=24, shards=3, prepared=False), "x", "tar", "cut"),
    "prepared tars": (lambda root: make_text_dataset(root / "x", n=24, shards=6), "x", "array-record", ""),
    "array records": (_records, "x", "tar", ""),
}


def keys(path: str, **more: Any) -> list[str]:
    shuffle: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    return sorted(sample["__key__"] for sample in get_train_dataset(path, batch_size=None, **shuffle, **more))


@pytest.mark.parametrize("form", FORMS)
def test_a_conversion_from_the_hub_goes_on_whenever_it_is_killed(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, name, to, cut = FORMS[form]
    (tmp_path / "data").mkdir()
    make(tmp_path / "data")
    with running_hub() as hub:
        hub.commit("team/x", tmp_path / "data")
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
        command = [sys.executable, "-c", PROGRAM, f"hf://datasets/team/x/{name}", tmp_path / "new", to, str(KILLS), cut]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert int(done.stdout.split()[0]) >= KILLS
    assert keys(str(tmp_path / "new/whole/new")) == keys(str(tmp_path / "data" / name))


@settings(deadline=None, max_examples=200)
@given(
    name=st.text(st.characters(codec=None), min_size=1, max_size=130)
    | st.sampled_from(["a" * 99, "a" * 100, "a" * 101]),
    size_bytes=st.integers(0, 1 << 40),
)
def test_headers_are_those_of_tarfile(name: str, size_bytes: int) -> None:
    member = tarfile.TarInfo(
        name.replace("\0", "0").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    )
    member.size = size_bytes
    assert member_header(member.name, size_bytes) == member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def test_a_part_that_is_too_large_for_a_record(tmp_path: Path) -> None:
    large = bytes(1 << 32)  # zeros that nobody touches take no memory
    shard = ShardWriter(tmp_path / "x.array_record", "array-record")
    with pytest.raises(UnfitSampleError, match=r"sample 'a': a part is too large.*2\*\*32"):
        shard.add("a", {"bin": large})
    shard.abandon()
    assert list(tmp_path.iterdir()) == []


def test_digests_tell_samples_apart(tmp_path: Path) -> None:
    def digest(*samples: tuple[str, dict[str, bytes]]) -> SampleDigest:
        found = SampleDigest()
        assert list(found.of(samples)) == list(samples)
        return found

    first = digest(("a", {"txt": b"x", "jpg": b"y"}), ("b", {"txt": b""}))
    assert first == digest(("a", {"txt": b"x", "jpg": b"y"}), ("b", {"txt": b""}))
    for other in (
        digest(("a", {"jpg": b"y", "txt": b"x"}), ("b", {"txt": b""})),
        digest(("a", {"txt": b"x", "jpg": b"y"})),
        digest(("a", {"txt": b"x", "jpg": b"z"}), ("b", {"txt": b""})),
        digest(("b", {"txt": b""}), ("a", {"txt": b"x", "jpg": b"y"})),
        digest(("atxt", {"": b"x", "jpg": b"y"}), ("b", {"txt": b""})),
    ):
        assert first != other
    path = write_records(tmp_path / "x.array_record", [msgpack_record({"__key__": "a", "txt": b"x", "jpg": b"y"})])
    assert digest(*read_written(path)) == digest(("a", {"txt": b"x", "jpg": b"y"}))  # type: ignore[arg-type]
