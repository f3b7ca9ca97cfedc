"""`convert` of loose media files: layouts, keys, classes, splits, metadata, sizes of shards, interruption, refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from object_server import Bucket
from patience import PATIENCE_S
from preview_data import picture, sound

from energon_grain import CaptioningSample, ImageClassificationSample, get_train_dataset, get_val_dataset
from energon_grain.conversion import convert_dataset
from energon_grain.errors import ConfigError, DecodingError, FormatError, ReadError, RefusedError, SplitError
from energon_grain.formats.dataset_config import read_dataset_config
from energon_grain.formats.nv_meta import is_prepared, read_info
from energon_grain.formats.splits import read_split_config
from energon_grain.prepare.containers import open_prepared
from energon_grain.prepare.media_folder import find_media, loose_parts

_SHUFFLE: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}


def write(root: Path, files: Mapping[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def served(root: Path) -> dict[str, dict[str, bytes]]:
    """The parts of each sample, in the order of the dataset."""
    source = open_prepared(root)
    return {raw.key: dict(raw.parts) for raw in source.read(np.arange(len(source)))}


def converted(source: Path, **arguments: Any) -> dict[str, dict[str, bytes]]:
    target = source.parent / f"{source.name}-new"
    shutil.rmtree(target, ignore_errors=True)
    convert_dataset(source, target, to="tar", num_workers=0, **arguments)
    return served(target)


def test_files_of_one_name_are_a_sample(tmp_path: Path) -> None:
    """Keys are sorted relative paths; extensions are in lower case; hidden files and files without media stay out."""
    loose = write(
        tmp_path / "loose",
        {
            "b/2.MP4": b"film",
            "b/2.txt": "two",
            "a.wav": b"tone",
            "a.json": '{"x": 1}',
            "a.jpg": b"picture",
            "a.seg.png": b"mask",
            "IMG.2024.01.jpg": b"dots",
            ".hidden.jpg": b"no",
            ".cache/x.jpg": b"no",
            "README.md": "no",
            "notes.txt": "no",
        },
    )
    found = converted(loose)
    assert list(found) == ["IMG_2024_01", "a", "b/2"]
    assert found["a"] == {"jpg": b"picture", "json": b'{"x": 1}', "seg.png": b"mask", "wav": b"tone"}
    assert found["b/2"] == {"mp4": b"film", "txt": b"two"}
    report = convert_dataset(loose, tmp_path / "again", to="tar", num_workers=0)
    assert "2 files belong to no sample and were left out, such as README.md" in report.notes
    assert "no sample type suits these parts, so samples are plain dicts (crude)" in report.notes
    assert read_dataset_config(tmp_path / "again", "dataset.yaml").kind == "crude"


def test_the_dataset_has_the_type_that_suits(tmp_path: Path) -> None:
    """`get_train_dataset` opens the result without anything else."""
    files = {f"{i:03d}.jpg": picture(seed=i) for i in range(12)}
    captions = {f"{i:03d}.txt": f"caption {i}" for i in range(12)}
    target = tmp_path / "captions"
    loose = write(tmp_path / "loose", {**files, **captions})
    convert_dataset(loose, target, to="tar", split_ratio="8,2,2", shard_samples=1)
    assert {name: len(part) for name, part in read_split_config(target, "split.yaml").split_parts.items()} == {
        "train": 8,
        "val": 2,
        "test": 2,
    }
    samples = list(get_train_dataset(target, batch_size=None, **_SHUFFLE))
    assert all(isinstance(sample, CaptioningSample) for sample in samples)
    assert len({sample.caption for sample in samples}) == 8


@pytest.mark.parametrize("container", ["tar", "array-record"])
def test_an_image_folder_keeps_its_classes(tmp_path: Path, container: Any) -> None:
    names = ("tabby cat", "dog", "élan")
    files = {f"{name}/{i}/x.{i}.jpg": picture(seed=i) for name in names for i in range(3)}
    root = write(tmp_path / "images", files)
    report = convert_dataset(root, tmp_path / "new", to=container, num_workers=0)
    assert any("folders are classes: 3 (dog, tabby cat, élan)" in note for note in report.notes)
    assert json.loads((tmp_path / "new/.nv-meta/classes.json").read_text()) == sorted(names)
    assert {key: parts["cls"] for key, parts in served(tmp_path / "new").items()} == {
        f"{name}/{i}/x_{i}": str(sorted(names).index(name)).encode() for name in names for i in range(3)
    }
    samples = list(get_val_dataset(tmp_path / "new", split_part="train", batch_size=None))
    assert all(isinstance(sample, ImageClassificationSample) for sample in samples)
    assert [sample.label for sample in samples] == [0] * 3 + [1] * 3 + [2] * 3
    # Classes go on with the dataset.
    other = "array-record" if container == "tar" else "tar"
    convert_dataset(tmp_path / "new", tmp_path / "other", to=other, num_workers=0)
    assert json.loads((tmp_path / "other/.nv-meta/classes.json").read_text()) == sorted(names)


@pytest.mark.parametrize(
    ("files", "has_classes"),
    [
        ({"a/1.jpg": b"", "b/2.png": b""}, True),
        ({"a/1.jpg": b"", "b/2.png": b"", "c.jpg": b""}, False),
        ({"a/1.jpg": b"", "a/2.png": b""}, False),
        ({"a/1.jpg": b"", "b/2.png": b"", "b/2.txt": b""}, False),
        ({"a/1.mp4": b"", "b/2.mp4": b""}, False),
    ],
    ids=["image folder", "a file at the top", "one folder", "with text", "videos"],
)
def test_only_an_image_folder_has_classes_by_default(
    tmp_path: Path, files: dict[str, bytes], has_classes: bool
) -> None:
    root = write(tmp_path / "x", files)
    assert any("cls" in parts for parts in converted(root).values()) == has_classes
    assert not any("cls" in parts for parts in converted(root, class_folders=False).values())
    if all("/" in name for name in files):
        assert all("cls" in parts for parts in converted(root, class_folders=True).values())
    else:
        with pytest.raises(ConfigError, match=r"c\.jpg is in no class folder"):
            converted(root, class_folders=True)


def test_folders_of_splits(tmp_path: Path) -> None:
    files = {
        f"{split}/{name}/{i}.jpg": picture(seed=i)
        for split in ("train", "validation", "test")
        for name in ("cat", "dog")
        for i in range(2 if split == "train" else 1)
    }
    root = write(tmp_path / "images", files)
    convert_dataset(root, tmp_path / "new", shard_samples=3, num_workers=0)
    counts = read_info(tmp_path / "new").shard_counts
    assert counts == {"test-000000.tar": 2, "train-000000.tar": 3, "train-000001.tar": 1, "val-000000.tar": 2}
    parts = {}
    for part in ("train", "val", "test"):
        dataset = get_val_dataset(tmp_path / "new", split_part=part, batch_size=None)
        parts[part] = [(sample.__key__, sample.label) for sample in dataset]
    assert parts["val"] == [("validation/cat/0", 0), ("validation/dog/0", 1)]
    assert [label for _, label in parts["train"]] == [0, 0, 1, 1]
    with pytest.raises(ConfigError, match="its folders are split parts; leave out split_ratio"):
        convert_dataset(root, tmp_path / "other", split_ratio="1,1")


def test_a_ratio_splits_samples_of_all_classes(tmp_path: Path) -> None:
    """Also if all fit in one shard; the parts do not change with the size of shards."""
    names = ("cat", "dog")
    root = write(tmp_path / "images", {f"{name}/{i:02d}.jpg": picture() for name in names for i in range(50)})
    found: list[dict[str, list[str]]] = []
    for number, arguments in enumerate(({}, {"shard_samples": 7})):
        target = tmp_path / f"new{number}"
        convert_dataset(root, target, split_ratio={"train": 8, "held-out": 1, "held": 1}, num_workers=0, **arguments)
        found.append({})
        for part in ("train", "held-out", "held"):
            dataset = get_val_dataset(target, split_part=part, batch_size=None)
            found[-1][part] = [sample.__key__ for sample in dataset]
            assert {key.partition("/")[0] for key in found[-1][part]} == set(names)
    assert found[0] == found[1]
    assert {part: len(keys) for part, keys in found[0].items()} == {"train": 80, "held-out": 10, "held": 10}
    assert len({key for keys in found[0].values() for key in keys}) == 100
    with pytest.raises(SplitError):
        convert_dataset(write(tmp_path / "one", {"a.jpg": b""}), tmp_path / "none", split_ratio="1,1")


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_rows_of_metadata_become_json(tmp_path: Path, form: str) -> None:
    rows = [{"file_name": f"{i}.png", "text": f"row “{i}”"} for i in range(3)]
    if form == "jsonl":
        text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n"
    else:
        text = "file_name,text\n" + "".join(f"{row['file_name']},{row['text']}\n" for row in rows)
    files = {f"images/{i}.png": picture(kind="PNG", seed=i) for i in range(4)}
    root = write(tmp_path / "folder", {**files, f"images/metadata.{form}": text})
    report = convert_dataset(root, tmp_path / "new", num_workers=0)
    assert "1 file belongs to no sample and was left out, such as images/3.png" in report.notes
    found = served(tmp_path / "new")
    assert {key: json.loads(parts["json"]) for key, parts in found.items()} == {
        f"images/{i}": row for i, row in enumerate(rows)
    }
    samples = list(get_val_dataset(tmp_path / "new", split_part="train", batch_size=None))
    assert [sample.caption for sample in samples] == [row["text"] for row in rows]


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"a.b.jpg": "", "a_b.jpg": ""}, ConfigError, r"a\.b\.jpg and a_b\.jpg would both become the sample 'a_b'"),
        ({"a.jpg": "", "a.JPG": ""}, ConfigError, r"a\.JPG and a\.jpg would both become the part 'jpg'"),
        ({"a.jpg": "", "metadata.jsonl": '{"file_name": "b.jpg"}'}, DecodingError, r"b\.jpg: there is no such file"),
        ({"a.jpg": "", "metadata.jsonl": '{"name": "a.jpg"}'}, DecodingError, "row 1: expected a field file_name"),
        ({"a.jpg": "", "metadata.jsonl": '\n{"file'}, DecodingError, "metadata.jsonl: line 2 contains no JSON object"),
        ({"a.jpg": "", "metadata.csv": "file_name\na.jpg,1"}, DecodingError, "more values than columns"),
        ({"a.jpg": "", "metadata.csv": "file_name\na.jpg\na.jpg"}, DecodingError, r"row 2: a\.jpg has a row already"),
        ({"a.jpg": "", "a.json": "{}", "metadata.csv": "file_name\na.jpg"}, ConfigError, "becomes the part json"),
        ({"a.jpg": "", "a.png": "", "metadata.csv": "file_name\na.jpg\na.png"}, DecodingError, "another file of its"),
        ({"a/1.jpg": "", "a/1.cls": "3"}, ConfigError, "its folder also defines a class"),
        ({"a\tb.jpg": ""}, FormatError, "control character"),
    ],
)
def test_what_is_refused(tmp_path: Path, files: dict[str, str], error: type[Exception], message: str) -> None:
    root = write(tmp_path / "x", files)
    if sum(path.is_file() for path in root.rglob("*")) < len(files):
        pytest.skip("this file system folds case")
    with pytest.raises(error, match=message):
        convert_dataset(
            root, tmp_path / "new", to="tar", num_workers=0, class_folders=True if "a/1.cls" in files else None
        )
    assert not is_prepared(tmp_path / "new")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    root = write(tmp_path / "x", {"a.jpg": picture()})
    for target in (root, root / "inside"):
        with pytest.raises(ConfigError):
            convert_dataset(root, target, to="tar")
    other = write(tmp_path / "other", {"file": "mine"})
    with pytest.raises(RefusedError, match="is not empty"):
        convert_dataset(root, other)
    convert_dataset(root, tmp_path / "new", num_workers=0)
    with pytest.raises(RefusedError, match="is not empty"):
        convert_dataset(root, tmp_path / "new")
    assert (other / "file").read_text() == "mine"
    assert sorted(path.name for path in root.iterdir()) == ["a.jpg"]


def test_shards_are_cut_by_samples_and_bytes(tmp_path: Path) -> None:
    root = write(tmp_path / "x", {f"{i:02d}.wav": bytes(1000) for i in range(10)})
    write(root, {"03.wav": bytes(5000)})
    cut: dict[str, list[int]] = {}
    for name, arguments in {
        "samples": {"shard_samples": 4},
        "bytes": {"shard_bytes": 2500},
        "both": {"shard_samples": 3, "shard_bytes": 6500},
    }.items():
        convert_dataset(root, tmp_path / name, num_workers=0, **arguments)  # pyright: ignore[reportArgumentType]
        cut[name] = list(read_info(tmp_path / name).shard_counts.values())
    assert cut == {"samples": [4, 4, 2], "bytes": [2, 1, 1, 2, 2, 2], "both": [3, 2, 3, 2]}
    with pytest.raises(ConfigError, match="shard_bytes=0: must be at least 1"):
        convert_dataset(root, tmp_path / "none", shard_bytes=0)


def test_options_for_media_are_refused_for_other_data(tmp_path: Path) -> None:
    convert_dataset(write(tmp_path / "x", {"a.jpg": picture()}), tmp_path / "tars", num_workers=0)
    (tmp_path / "lines.jsonl").write_text('{"a": 1}\n')
    for source, arguments in (
        ("tars", {"shard_bytes": 1}),
        ("tars", {"class_folders": True}),
        ("tars", {"split_ratio": "1,1"}),
        ("lines.jsonl", {"shard_bytes": 1}),
    ):
        with pytest.raises(ConfigError, match=f"leave out {next(iter(arguments))}="):
            convert_dataset(tmp_path / source, tmp_path / "new", to="array-record", **arguments)


def test_an_interrupted_conversion_goes_on_or_is_refused(tmp_path: Path) -> None:
    root, target = write(tmp_path / "x", {f"{i}.wav": bytes([i]) * 100 for i in range(9)}), tmp_path / "new"
    arguments: dict[str, Any] = {"shard_samples": 2, "num_workers": 0}
    with pytest.raises(ZeroDivisionError):
        convert_dataset(root, target, progress=lambda now: 1 / (now.shards_done - 2), **arguments)
    assert not is_prepared(target)
    with pytest.raises(RefusedError, match=r"unfinished write .*shard_samples differ"):
        convert_dataset(root, target, shard_samples=3)
    times = {name: (root / name).stat() for name in ("3.wav", "8.wav")}
    write(root, {"3.wav": bytes(101)})
    with pytest.raises(RefusedError, match=r"unfinished write .*other data \(content_id differ\)"):
        convert_dataset(root, target, **arguments)
    write(root, {"3.wav": bytes([3]) * 100})
    os.utime(root / "3.wav", ns=(times["3.wav"].st_atime_ns, times["3.wav"].st_mtime_ns))
    before = {path: path.stat().st_mtime_ns for path in target.glob("*.tar")}
    assert len(before) >= 2
    report = convert_dataset(root, target, **arguments)
    assert report.shards_reused >= 2
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert served(target) == {str(i): {"wav": bytes([i]) * 100} for i in range(9)}


def test_a_killed_conversion_goes_on(tmp_path: Path) -> None:
    root = write(tmp_path / "x", {f"{i:04d}.wav": bytes([i % 256]) * 100_000 for i in range(400)})
    target = tmp_path / "x-tars"
    command = [sys.executable, "-m", "energon_grain.cli", "convert", str(root), "--to", "tars"]
    command += ["--shard-samples", "40", "--num-workers", "2"]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not any(log.stat().st_size for log in target.rglob("*.open")) and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert 1 <= len(list(target.glob("*.tar"))) < 10
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert " had been written by an interrupted run" in done.stdout
    assert "400 samples in 10 tar files" in done.stdout
    assert served(target) == {f"{i:04d}": {"wav": bytes([i % 256]) * 100_000} for i in range(400)}


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    root = write(tmp_path / "x", {"a.wav": bytes(100)})
    found = find_media(str(root))
    assert found is not None
    write(root, {"a.wav": bytes(50)})
    with pytest.raises(ReadError, match=r"a\.wav: the sample has 50 bytes, but had 100"):
        list(loose_parts(str(root), found.samples))


def test_media_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    root = write(tmp_path / "x", {"a/1.jpg": picture(), "b/2.wav": sound(), "b/2.txt": "a tone"})
    url = bucket.upload(root)
    convert_dataset(url, tmp_path / "there", num_workers=0)
    assert served(tmp_path / "there") == converted(root)
    name = url.rpartition("/")[2]
    assert f"`energon-grain convert {url} {name}-tars --to tars`, and pass {name}-tars" in str(
        run("info", url).exception
    )


@pytest.mark.parametrize("arguments", [[], ["--to", "tars"], ["--to", "tar"], ["--to", "array-record"]])
def test_the_command(tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path, {"my photos/cat/1.jpg": picture(), "my photos/dog/1.jpg": picture()}))
    done = run("convert", "my photos", *arguments)
    if not arguments:
        assert isinstance(done.exception, ConfigError)
        assert "pass TARGET" in str(done.exception)
        return
    assert done.exit_code == 0, done.output
    target = tmp_path / ("my photos-records" if "array-record" in arguments else "my photos-tars")
    assert "note: samples are ImageClassificationSample (image from jpg, label from cls)" in done.output
    assert list(served(target)) == ["cat/1", "dog/1"]
    assert run("lint", target).exit_code == 0


@pytest.mark.parametrize("attempt", ["prepare", "info", "lint", "preview", "open"])
@pytest.mark.parametrize("extra", ["metadata.jsonl", "b/2.jpg"])
def test_errors_about_loose_media_name_the_command(tmp_path: Path, attempt: str, extra: str) -> None:
    root = write(tmp_path / "photos", {"a/1.jpg": picture(), extra: '{"file_name": "a/1.jpg"}\n'})
    open_it: Callable[[], Any] = lambda: get_train_dataset(root, batch_size=1, **_SHUFFLE)  # noqa: E731
    if attempt == "open":
        with pytest.raises(FileNotFoundError) as caught:
            open_it()
        message = str(caught.value)
    else:
        message = str(run(attempt, root).exception)
    assert f"`energon-grain convert {root} {root}-tars --to tars`" in message
    assert "energon-grain prepare" not in message
