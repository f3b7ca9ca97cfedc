"""Metadata of media: in Energon's tables, in columns, in file stores and cookers; what is kept, and what is damaged."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from object_server import Bucket
from PIL import Image
from sqlite_rows import rows

from energon_grain import (
    AVMetadata,
    BaseWebdatasetFactory,
    Cooker,
    DatasetWriter,
    DefaultTaskEncoder,
    FileStore,
    ImageMetadata,
    ObjectFileStore,
    PrimaryFileStore,
    SystemFileStore,
    WebdatasetFileStore,
    WorkerConfig,
    cooker,
    get_val_dataset,
    open_columns,
    stateless,
)
from energon_grain.errors import ConfigError, DatasetNotFoundError, FatalSampleError, KeyNotFoundError, WorkerError
from energon_grain.formats.data_folder import look_again, open_folder
from energon_grain.formats.nv_meta import read_uuid
from energon_grain.prepare import MediaFilterConfig, PrepareProgress, prepare_dataset, prepare_media
from energon_grain.testing import write_tars
from energon_grain.testing.datasets import draw_picture, encode_picture

BY_EXTENSION = MediaFilterConfig.parse(None, False, True)
BY_HEADER = MediaFilterConfig.parse(None, True, False)
SIZES = [(10 + n, 20 + 2 * n) for n in range(8)]  # height and width
BROKEN = b"\xff\xd8\xff\xe0\0"


def wav(samples: int) -> bytes:
    form = (1).to_bytes(2, "little") + b"\1\0" + (8000).to_bytes(4, "little") + (16000).to_bytes(4, "little")
    form += b"\2\0\x10\0"
    data = bytes(2 * samples)
    body = b"WAVEfmt " + len(form).to_bytes(4, "little") + form + b"data" + len(data).to_bytes(4, "little") + data
    return b"RIFF" + len(body).to_bytes(4, "little") + body


def pictures(broken: int | None = None) -> list[dict[str, Any]]:
    """Eight samples: each with a picture, the odd ones with a sound, the first with a second picture before it."""
    rng = np.random.default_rng(0)
    samples: list[dict[str, Any]] = []
    for number, size in enumerate(SIZES):
        data = encode_picture(draw_picture(rng, 0, size), "JPEG")
        sample = {"__key__": f"d/{number:03d}", "txt": f"text {number}"}
        if number == 0:
            sample["mask.png"] = encode_picture(draw_picture(rng, 1, (5, 7)), "PNG")
        sample["jpg"] = BROKEN if number == broken else data
        if number % 2:
            sample["wav"] = wav(800 * number)
        samples.append(sample)
    return samples


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_tars(tmp_path / "data", pictures(), shards=3)
    return tmp_path / "data"


def metadata_of(root: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    found = rows(root / ".nv-meta/index.sqlite", "SELECT entry_key, metadata_type, metadata_json FROM media_metadata")
    return {key: (kind, json.loads(text)) for key, kind, text in found}


def check_columns(root: str | Path) -> None:
    columns = open_columns(root)
    widths = [7.0, *(width for _, width in SIZES[1:])]  # of several pictures the first in its tar
    assert columns["width"].tolist() == widths
    assert columns["width.jpg"].tolist() == [width for _, width in SIZES]
    assert np.isnan(columns["width.mask.png"]).tolist() == [False] + [True] * 7
    seconds = [n / 10 if n % 2 else np.nan for n in range(8)]
    assert np.array_equal(columns["duration"], seconds, equal_nan=True)
    assert np.array_equal(columns["sample_rate"], [8000 if n % 2 else np.nan for n in range(8)], equal_nan=True)
    assert "frames" not in columns
    assert columns["bytes.txt"].tolist() == [6] * 8
    assert columns["bytes"].dtype == np.int64


@pytest.mark.parametrize("by", [BY_EXTENSION, BY_HEADER, MediaFilterConfig.parse("d/*.jpg,*.PNG,*.wav", False, False)])
@pytest.mark.parametrize("at_once", [True, False])
def test_tables_and_columns_hold_what_headers_say(root: Path, by: MediaFilterConfig, at_once: bool) -> None:
    if at_once:
        report = prepare_dataset(root, split_ratio=(1,), media_filter=by)
    else:
        prepare_dataset(root, split_ratio=(1,))
        uuid = read_uuid(root)
        report = prepare_media(root, by)
        assert read_uuid(root) == uuid  # joins still fit
    assert report.media is not None
    assert (report.media.found, report.media.failures) == (13, 0)
    found = metadata_of(root)
    assert len(found) == 13
    assert found["d/002.jpg"] == ("image", {"width": 24, "height": 12, "format": "JPEG", "mode": "RGB"})
    assert found["d/000.mask.png"][1]["format"] == "PNG"
    sound = {"audio_duration": 0.3, "audio_channels": 1, "audio_sample_rate": 8000, "audio_num_samples": 2400}
    assert found["d/003.wav"] == ("av", sound)
    filters = rows(root / ".nv-meta/index.sqlite", "SELECT strategy, patterns FROM media_filters")
    assert filters == [(by.strategy.value, ",".join(by.patterns))]
    assert rows(root / ".nv-meta/index.sqlite", "SELECT COUNT(*) FROM samples") == [(8,)]
    check_columns(root)


def test_what_is_not_looked_at_stays(root: Path) -> None:
    prepare_dataset(root, split_ratio=(1,), media_filter=MediaFilterConfig.parse("*.jpg", False, False))
    assert open_columns(root)["width"].tolist() == [width for _, width in SIZES]
    prepare_media(root, MediaFilterConfig.parse("*.wav", False, False))
    assert len(metadata_of(root)) == 12
    columns = open_columns(root)
    assert columns["width"].tolist() == [width for _, width in SIZES]
    assert columns["duration"][1] == 0.1
    prepare_dataset(root, tar_index_only=True)  # nor does writing the indices anew lose anything
    assert len(metadata_of(root)) == 12
    assert open_columns(root)["duration"][1] == 0.1
    assert len([*(root / ".nv-meta/columnar/columns").iterdir()]) == len(open_columns(root).stored)


def test_what_is_known_of_other_samples_is_not_given_out(root: Path) -> None:
    prepare_dataset(root, split_ratio=(1,), media_filter=BY_EXTENSION)
    write_tars(root, pictures()[::-1], shards=3)
    prepare_dataset(root, split_ratio=(1,), force_overwrite=True)
    assert rows(root / ".nv-meta/index.sqlite", "SELECT name FROM sqlite_master WHERE name LIKE 'media%'") == []
    columns = open_columns(root)
    assert "width" not in columns
    with pytest.raises(KeyNotFoundError, match="belongs to other samples; create it again"):
        columns["width"]
    with pytest.raises(KeyNotFoundError, match=r"no column 'frames'; the columns are bytes, .*prepare-media"):
        columns["frames"]
    assert "Outdated columns, whose samples have changed: width" in run("info", root).stdout
    prepare_media(root, BY_EXTENSION)
    assert open_columns(root)["width.jpg"].tolist() == [width for _, width in SIZES[::-1]]


@pytest.mark.parametrize("by", [BY_EXTENSION, MediaFilterConfig.parse("d/*.jpg,*.PNG,*.wav", False, False)])
@pytest.mark.parametrize("writer", [True, False])
def test_appended_shards_are_looked_at_as_the_others_were(tmp_path: Path, by: MediaFilterConfig, writer: bool) -> None:
    """Tables and columns are those of all shards at once, and old tars are not opened again."""
    root, whole = tmp_path / "grown", tmp_path / "whole"
    first, more = pictures()[:5], pictures()[5:]
    for name, folder in (("a", root), ("a", whole), ("b", whole)):
        write_tars(folder, first if name == "a" else more, name=f"{name}.tar")
    prepare_dataset(root, split_ratio=(1,), crude=True, media_filter=by, num_workers=0)
    prepare_dataset(whole, split_ratio=(1,), crude=True, media_filter=by, num_workers=0)
    (root / "a.tar").write_bytes(bytes((root / "a.tar").stat().st_size))  # what cannot be read, but has its size
    if writer:
        with DatasetWriter(root, append=True, name="b") as write:
            for sample in more:
                write(sample)
        report = write.report
    else:
        write_tars(root, more, name="b.tar")
        report = prepare_dataset(root, append=True, num_workers=0)
    assert report is not None
    assert report.notes == ()
    assert report.media is not None
    assert report.media.found == 5  # of the new shard
    check_columns(root)
    assert metadata_of(root) == metadata_of(whole)
    filters = "SELECT strategy, patterns FROM media_filters"
    assert rows(root / ".nv-meta/index.sqlite", filters) == rows(whole / ".nv-meta/index.sqlite", filters)


def test_media_of_appended_shards_that_are_not_like_the_others(tmp_path: Path) -> None:
    """Of other filters, or with damaged columns, what is known stays in the table, and the way to columns is said."""
    root, (first, second, *_) = tmp_path / "grown", [[each] for each in pictures()]
    write_tars(root, first, name="a.tar")
    prepare_dataset(root, split_ratio=(1,), crude=True, num_workers=0)
    for pattern in ("*.jpg", "*.png"):
        prepare_media(root, MediaFilterConfig.parse(pattern, False, False))
    assert open_columns(root)["width"].tolist() == [7]
    write_tars(root, second, name="b.tar")
    report = prepare_dataset(root, append=True, num_workers=0)
    assert len(metadata_of(root)) == 2
    (note,) = report.notes
    assert note.startswith("the columns width, height lack values for the new samples")
    assert f"`energon-grain prepare-media {root} --media-metadata-by-extension` before you use them" in note
    prepare_media(root, BY_EXTENSION)
    assert open_columns(root)["width"].tolist() == [7, 22]


def test_damaged_headers_are_counted_and_named(tmp_path: Path) -> None:
    write_tars(tmp_path, pictures(broken=5), shards=2)
    done = run(
        "prepare", tmp_path, "--non-interactive", "--split-ratio", "1,0,0", "--crude", "--media-metadata-by-header"
    )
    assert done.exit_code == 0, done.output
    assert "metadata of 12 files" in done.stdout
    assert "no metadata of 1 file with a damaged header" in done.stdout
    assert "shard_001.tar: d/005.jpg has no readable header of an image" in done.stdout
    assert "d/005.jpg" not in metadata_of(tmp_path)
    width = open_columns(tmp_path)["width"]
    assert np.flatnonzero(np.isnan(width)).tolist() == [5]
    linted = run("lint", tmp_path)
    assert "1 file expected to be media, but without metadata: d/005.jpg" in linted.stdout
    with pytest.raises(KeyNotFoundError, match=r"'d/005.jpg' has no media metadata"):
        WebdatasetFileStore(tmp_path).get_media_metadata("d/005.jpg")


ENDS_WHILE_THREADS_ASK = """
import sys, time
from energon_grain import Stream, SystemFileStore, TaskEncoder, WorkerConfig, get_train_dataset

store = SystemFileStore(sys.argv[1])

class Encoder(TaskEncoder):
    def encode_sample(self, sample):
        store.get_media_metadata("1.jpg")
        time.sleep(0.0003)
        return sample

config = WorkerConfig(0, 1, 4, global_error_handler=lambda error, *_: print(error, file=sys.stderr))
stream = Stream.of(get_train_dataset(
    sys.argv[2], batch_size=64, shuffle_buffer_size=None, max_samples_per_sequence=None,
    task_encoder=Encoder(), worker_config=config,
))
next(stream)
next(stream)
"""


def test_a_program_may_end_while_threads_ask(
    tmp_path: Path, text_dataset: Callable[[int], Path], run_script: Callable[..., Any]
) -> None:
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (22, 11)).save(tmp_path / "pictures/1.jpg")
    prepare_media(tmp_path / "pictures", BY_EXTENSION)
    done = run_script(ENDS_WHILE_THREADS_ASK, tmp_path / "pictures", text_dataset(500))
    assert (done.returncode, done.stderr) == (0, "")


def test_file_stores_know_media(root: Path) -> None:
    prepare_dataset(root, split_ratio=(1,))
    store = WebdatasetFileStore(root)
    with pytest.raises(RuntimeError, match=r"has no media metadata; run .*prepare-media") as caught:
        store.get_media_metadata("d/001.jpg")
    assert isinstance(caught.value, FatalSampleError)
    prepare_media(root, BY_EXTENSION)
    store = WebdatasetFileStore(root)
    expected = ImageMetadata(width=22, height=11, format="JPEG", mode="RGB")
    assert store.get_media_metadata("d/001.jpg") == expected
    assert PrimaryFileStore(store, "d/001").get_media_metadata(".jpg") == expected
    assert isinstance(store.get_media_metadata("d/001.wav"), AVMetadata)
    with pytest.raises(KeyNotFoundError, match=r"'d/001\.txt' has no media metadata"):
        store.get_media_metadata("d/001.txt")
    with pytest.raises(KeyNotFoundError, match=r"no file 'd/009\.jpg'"):
        store.get_media_metadata("d/009.jpg")
    with ThreadPoolExecutor(4) as pool:
        assert set(map(repr, pool.map(store.get_media_metadata, ["d/001.jpg"] * 50))) == {repr(expected)}


@stateless
@cooker(need_primary=True)
def cook(sample: dict[str, Any], primary: FileStore[Any], pictures: FileStore[Any]) -> dict[str, Any]:
    wide = primary.get_media_metadata(".jpg").width
    return {"__key__": sample["__key__"], "width": wide, "other": pictures.get_media_metadata("x.jpg").width}


class WithMetadata(DefaultTaskEncoder):
    cookers = [Cooker(cook)]  # noqa: RUF012


@pytest.mark.parametrize("num_workers", [0, 2])
def test_cookers_know_media(root: Path, num_workers: int) -> None:
    prepare_dataset(root, split_ratio=(1,), crude=True, media_filter=BY_EXTENSION)
    folder = root.parent / "pictures"
    folder.mkdir()
    (folder / "x.jpg").write_bytes(pictures()[3]["jpg"])
    prepare_media(folder, BY_EXTENSION)
    mixture = root.parent / "m.yaml"
    leaf = {"path": "data", "split_part": "train", "aux": {"pictures": "filesystem://pictures"}}
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"val": leaf}}
    mixture.write_text(json.dumps(document))
    dataset = get_val_dataset(
        mixture,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        batch_size=None,
        task_encoder=WithMetadata(),
    )
    found = [(sample["width"], sample["other"]) for sample in dataset]
    assert found == [(width, 26) for _, width in SIZES]


def test_plain_folders_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for sample in pictures():
        name = sample["__key__"].removeprefix("d/")
        (tmp_path / "a" / f"{name}.jpg").write_bytes(sample["jpg"])
        (tmp_path / f"{name}.txt").write_text("x")
    (tmp_path / "a/broken.jpg").write_bytes(BROKEN)
    done = run("prepare-media", tmp_path, "--media-metadata-by-extension", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["files"], report["media"]["found"], report["media"]["failures"]) == (9, 8, 1)
    assert report["media"]["failed"][0].startswith("a/broken.jpg has no readable header")
    assert not (tmp_path / ".nv-meta/.prepare").exists()
    store = SystemFileStore(tmp_path)
    assert store.get_media_metadata("a/003.jpg") == ImageMetadata(width=26, height=13, format="JPEG", mode="RGB")
    with pytest.raises(KeyNotFoundError, match=r"no file 'a/9\.jpg'"):
        store.get_media_metadata("a/9.jpg")
    # What is gone by now is forgotten by who looks at its kind, and nothing else.
    (tmp_path / "a/003.jpg").unlink()
    (tmp_path / "b.wav").write_bytes(wav(80))
    prepare_media(tmp_path, MediaFilterConfig.parse("*.wav", False, False))
    assert {"a/003.jpg", "b.wav"} <= metadata_of(tmp_path).keys()
    prepare_media(tmp_path, MediaFilterConfig.parse("*.jpg", False, False))
    found = metadata_of(tmp_path)
    assert "a/003.jpg" not in found
    assert "b.wav" in found
    with pytest.raises(DatasetNotFoundError, match="no file in the folder or its subfolders passes the media filter"):
        prepare_media(tmp_path, MediaFilterConfig.parse("*.mkv", False, False))


class Failing(ThreadPoolExecutor):
    """Does as many calls as it is told, and fails then."""

    def __init__(self, calls: int) -> None:
        super().__init__(1)
        self.calls = calls

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls -= 1
        return super().submit(fn if self.calls >= 0 else _fail, *args, **kwargs)


def _fail(*_: Any) -> None:
    raise RuntimeError("killed")


@pytest.mark.parametrize("plain", [False, True])
def test_a_run_that_was_cut_short_goes_on_where_it_was(
    root: Path, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plain:
        monkeypatch.setattr("energon_grain.prepare.add_media._FILES_AT_ONCE", 3)
        for tar in root.glob("*.tar"):
            tar.unlink()
        for sample in pictures():
            (root / f"{sample['__key__'][2:]}.jpg").write_bytes(sample["jpg"])
    else:
        prepare_dataset(root, split_ratio=(1,))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with Failing(2) as executor, pytest.raises(WorkerError):
        prepare_media(root, BY_EXTENSION, executor=executor)
    assert {path: data for path, data in before.items() if path.read_bytes() != data} == {}
    seen: list[PrepareProgress] = []
    prepare_media(root, BY_EXTENSION, progress=seen.append)
    assert [now.shards_done for now in seen if now.stage == "scan"] == [0, 1, 2, 3]
    assert len(metadata_of(root)) == (8 if plain else 13)


@pytest.mark.parametrize("at_once", [True, False])
def test_datasets_in_buckets(root: Path, bucket: Bucket, at_once: bool) -> None:
    url = bucket.upload(root, "one")
    prepare_dataset(url, split_ratio=(1,), media_filter=BY_EXTENSION if at_once else None)
    if not at_once:
        prepare_media(url, BY_EXTENSION)
    for _ in range(2):
        check_columns(url)
        store = WebdatasetFileStore(url)
        assert store.get_media_metadata("d/001.jpg").width == 22
        shutil.rmtree(open_folder(url).local)  # the copy: what another machine has not
        look_again(open_folder(url))
    shutil.rmtree(open_folder(url).local)
    look_again(open_folder(url))
    prepare_media(url, MediaFilterConfig.parse("d/003.jpg", False, False))  # what others have stays, without a copy
    prepare_dataset(url, tar_index_only=True)
    check_columns(url)
    assert WebdatasetFileStore(url).get_media_metadata("d/001.jpg").width == 22


def test_folders_in_buckets(bucket: Bucket, tmp_path: Path) -> None:
    for sample in pictures():
        (tmp_path / f"{sample['__key__'][2:]}.jpg").write_bytes(sample["jpg"])
    (tmp_path / "large.png").write_bytes(encode_picture(draw_picture(np.random.default_rng(1), 1, (90, 100)), "PNG"))
    url = bucket.upload(tmp_path, "pictures")
    report = prepare_media(url, BY_HEADER)
    assert report.media is not None
    assert report.media.found == 9
    store = ObjectFileStore(url)
    assert store.get_media_metadata("large.png").width == 100
    with pytest.raises(KeyNotFoundError, match="has no media metadata"):
        store.get_media_metadata("x.jpg")
    bucket.delete("pictures/.nv-meta/index.sqlite")
    with pytest.raises(FatalSampleError, match="no media metadata"):
        ObjectFileStore(url).get_media_metadata("large.png")


def test_arguments_are_checked(root: Path) -> None:
    done = run("prepare-media", root)
    assert (done.exit_code, "exactly one of extension, header and glob" in str(done.exception)) == (1, True)
    prepare_dataset(root, split_ratio=(1,))
    done = run("prepare", root, "--tar-index-only", "--media-metadata-by-header")
    assert (done.exit_code, "use `energon-grain prepare-media`" in str(done.exception)) == (1, True)
    with pytest.raises(ConfigError, match="not from ArrayRecord files"):
        prepare_dataset(root, records="raw", force_overwrite=True, media_filter=BY_HEADER)


def test_energons_arguments_do_the_same(root: Path) -> None:
    names = sorted(path.name for path in root.glob("*.tar"))
    BaseWebdatasetFactory.prepare_dataset(
        root, names, split_parts_ratio=[("train", 1)], media_filter=MediaFilterConfig.parse("*.jpg", False, False)
    )
    assert len(metadata_of(root)) == 8
    assert BaseWebdatasetFactory.add_media_metadata(root, media_filter=BY_EXTENSION, workers=0) == 13
    check_columns(root)


def test_info_draws_columns(root: Path) -> None:
    prepare_dataset(root, split_ratio=(1,), media_filter=BY_EXTENSION)
    shown = run("info", root).stdout
    line = next(line for line in shown.splitlines() if line.startswith("  width.jpg"))
    assert "8 values" in line
    assert "mean 27 (20 to 34)" in line
    assert "█" in line
    assert "4 missing" in next(line for line in shown.splitlines() if line.startswith("  duration"))
    document = json.loads(run("info", root, "--json").stdout)
    assert document["columns"]["width.jpg"]["function"] == "energon_grain.media.headers:read_header"
    assert sum(document["columns"]["width.jpg"]["bins"]) == 8
    assert sum(bin["samples"] for bin in document["parts"]["jpg"]["sizes"]) == 8


def test_parts_with_names_that_are_not_utf8_have_no_columns_of_their_own(tmp_path: Path) -> None:
    [first, second, *_] = pictures()
    odd = os.fsdecode(b"caf\xe9")
    write_tars(tmp_path, [{"__key__": "a", odd: first["jpg"]}, {"__key__": "b", "jpg": second["jpg"], "wav": wav(8)}])
    report = prepare_dataset(tmp_path, split_ratio=(1,), media_filter=BY_HEADER)
    assert report.media is not None
    assert (report.media.found, report.media.failures) == (3, 0)
    columns = open_columns(tmp_path)
    assert columns["width"].tolist() == [20, 22]
    assert [name for name in columns.stored if name.startswith("width.")] == ["width.jpg"]
    assert WebdatasetFileStore(tmp_path).get_media_metadata(f"a.{odd}").width == 20


@pytest.mark.parametrize("column", ["samples RENAME byte_offset", "media_metadata RENAME metadata_json"])
def test_a_database_of_another_kind_is_replaced(root: Path, column: str) -> None:
    prepare_dataset(root, split_ratio=(1,), media_filter=BY_EXTENSION)
    with contextlib.closing(sqlite3.connect(root / ".nv-meta/index.sqlite")) as database:
        database.execute(f"ALTER TABLE {column} TO another")
        database.execute("INSERT INTO media_filters (strategy, patterns) VALUES ('MAGIC', '')")
        database.commit()
    assert run("lint", root).exit_code == 0
    prepare_media(root, BY_EXTENSION)
    assert len(metadata_of(root)) == 13


def test_names_that_are_not_utf8_are_left_out(tmp_path: Path) -> None:
    for name in (os.fsdecode(b"caf\xe9"), "café"):
        (tmp_path / f"{name}.jpg").write_bytes(pictures()[3]["jpg"])
    report = prepare_media(tmp_path, BY_EXTENSION)
    assert report.media is not None
    assert (report.media.found, report.media.failures) == (1, 1)
    assert report.media.failed == ("caf\\xe9.jpg has a name that is not UTF-8",)
    assert SystemFileStore(tmp_path).get_media_metadata("café.jpg").width == 26
