"""Converting datasets there and back: the same samples, resumption, and what is refused."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from full_disk import size_limit
from parquet_files import features, files, picture, write_parquet
from patience import PATIENCE_S
from records import encode_example, write_shards

from energon_grain import DefaultTaskEncoder, get_train_dataset
from energon_grain.conversion import convert_dataset
from energon_grain.errors import ConfigError, DatasetNotFoundError, DuplicateKeyError, FormatError, RefusedError
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.dataset_config import read_dataset_config
from energon_grain.formats.nv_meta import DatasetKind, dataset_kind, read_info
from energon_grain.formats.splits import read_split_config
from energon_grain.prepare import PrepareProgress, prepare_dataset
from energon_grain.prepare.lint import lint_dataset
from energon_grain.sources.prepared import open_prepared
from energon_grain.testing import make_blob_dataset, write_tars

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
    assert dataset_kind(there) is DatasetKind.ARRAY_RECORD
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
    assert dataset_kind(target) is DatasetKind.INVALID
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
    with pytest.raises(ConfigError, match=r"of other data \(content_id, shards differ"):
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
    with pytest.raises(ConfigError, match="compression='zstd': is for records"):
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
        ("b\udcff.txt", "its key or the name of a part is not UTF-8"),
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
        ({"__key__": [b"v1.5"], "txt": [b"x"]}, "'v1.5.txt', which is not read as that sample"),
        ({"__key__": [b"a"], "image/png": [b"x"]}, "parts no slash"),
        ({"__key__": [b"a"], "x\0y": [b"x"]}, "neither a zero byte"),
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
    assert " had been written by an earlier run that did not finish" in done.stdout
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
