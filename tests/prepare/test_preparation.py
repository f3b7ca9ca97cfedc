"""Preparing folders of tars and of records: what is written, sample types, and the summary."""

from __future__ import annotations

import fcntl
import io
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from records import encode_example, msgpack_record, write_records, write_shards
from sqlite_rows import rows

import energon_grain
from energon_grain import Sample
from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    DuplicateKeyError,
    FieldMapError,
    FormatError,
    ReadError,
    SplitError,
    StaleIndexError,
    TarError,
)
from energon_grain.formats.dataset_config import read_dataset_config
from energon_grain.formats.nv_meta import holds_records, read_info, read_uuid
from energon_grain.formats.records import read_records_file
from energon_grain.formats.splits import read_split_config
from energon_grain.kinds.array_record.source import ArrayRecordSource
from energon_grain.kinds.tar.index import read_tar_index, tar_index_path
from energon_grain.kinds.tar.scan import scan_tar
from energon_grain.kinds.tar.source import WebDatasetSource
from energon_grain.prepare import PrepareProgress, prepare_dataset
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.prepare.dataset_definition import (
    SAMPLE_TYPES,
    class_reference,
    data_fields,
    find_sample_type,
    preview_samples,
    propose_expression,
)
from energon_grain.prepare.lint import lint_dataset
from energon_grain.prepare.summary import PartSummary, SplitSummary, summarize_dataset
from energon_grain.testing import make_captioning_dataset, make_crude_dataset, write_tars

SHARDS = tuple(f"parts/s-{number}.tar" for number in range(10))


def write(root: Path, count: int = 40, shards: int = 10, key: str = "{:05d}") -> Path:
    samples = ({"__key__": key.format(i), "txt": f"text {i}", "json": {"i": i}} for i in range(count))
    write_tars(root, list(samples), shards=shards, name="parts/s-{}.tar")
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


def snapshot(root: Path) -> dict[str, bytes]:
    """All files but the tars and what an interrupted run keeps."""
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in files.items()
        if "/.prepare/" not in name and not name.endswith(".tar")
    }


def test_everything_is_written(root: Path) -> None:
    report = prepare_dataset(
        root, split_ratio=(7, 2, 1), num_workers=0, sample_type="TextSample", field_map={"text": "txt"}
    )
    info = read_info(root)
    assert info.shard_counts == dict.fromkeys(SHARDS, 4) == report.shard_counts
    assert json.loads((root / ".nv-meta/.info.json").read_text())["energon_version"] == "7.4.0"
    splits = read_split_config(root)
    assert splits.split_parts == {"train": SHARDS[:7], "val": SHARDS[7:9], "test": SHARDS[9:]}
    assert splits.split_parts == report.split_parts
    assert "- parts/s-{0..6}.tar" in (root / ".nv-meta/split.yaml").read_text()
    config = read_dataset_config(root)
    assert (str(config.sample_type), config.field_map) == ("megatron.energon.TextSample", {"text": "txt"})
    for shard in SHARDS:
        assert np.array_equal(read_tar_index(tar_index_path(root / shard)), scan_tar(root / shard).sample_start)
    index = open_columnar(root)
    assert (index.shards, len(index)) == (SHARDS, 40)
    found = "SELECT tar_file_id, sample_index FROM samples WHERE sample_key = '00005'"
    assert rows(root / ".nv-meta/index.sqlite", found) == [(1, 1)]
    assert len(read_uuid(root) or "") == 36
    assert (report.samples, report.samples_of("val"), report.part_names) == (40, 8, ("txt", "json"))
    assert report.size_bytes == sum((root / shard).stat().st_size for shard in SHARDS)
    assert (report.shards_reused, report.notes) == (0, ())
    assert set(report.written) == set(snapshot(root)) - {name for name in snapshot(root) if "columnar" in name}
    assert not (root / ".nv-meta/.prepare").exists()


def test_without_sample_type_dataset_yaml_is_left_alone(root: Path) -> None:
    prepare_dataset(root, num_workers=0)
    assert not (root / ".nv-meta/dataset.yaml").exists()
    (root / ".nv-meta/dataset.yaml").write_text("mine")
    prepare_dataset(root, num_workers=0, force_overwrite=True)
    assert (root / ".nv-meta/dataset.yaml").read_text() == "mine"
    prepare_dataset(root, num_workers=0, force_overwrite=True, crude=True, dataset_yaml_name="crude.yaml")
    assert (root / ".nv-meta/dataset.yaml").read_text() == "mine"
    assert read_dataset_config(root, "crude.yaml").kind == "crude"


def test_the_way_of_scanning_changes_nothing(root: Path, tmp_path: Path) -> None:
    def outputs(copy: Path) -> dict[str, bytes]:
        files = snapshot(copy)
        return {name: data for name, data in files.items() if "columnar" not in name and "uuid" not in name}

    prepare_dataset(root, num_workers=0)
    expected = outputs(root)
    for name, how in {"two": {"num_workers": 2}, "threads": {"executor": ThreadPoolExecutor(2)}}.items():
        shutil.copytree(root, tmp_path / name, ignore=shutil.ignore_patterns("*.idx", ".nv-meta"))
        prepare_dataset(tmp_path / name, **how)  # type: ignore[arg-type]
        assert outputs(tmp_path / name) == expected
        assert open_columnar(tmp_path / name).content_id == open_columnar(root).content_id


def test_prepared_already(root: Path) -> None:
    prepare_dataset(root, num_workers=0)
    before = snapshot(root)
    with pytest.raises(ConfigError, match="--force-overwrite"):
        prepare_dataset(root, num_workers=0)
    assert snapshot(root) == before
    prepare_dataset(root, num_workers=0, force_overwrite=True, split_ratio={"all": 1})
    assert read_split_config(root).split_parts == {"all": SHARDS}
    generations = [path for path in (root / ".nv-meta/columnar").iterdir() if path.is_dir()]
    assert len(generations) == 1


def test_shuffle_is_energons(root: Path) -> None:
    prepare_dataset(root, num_workers=0, split_ratio=(1, 0, 0), shuffle_tars=True)
    shuffled = list(SHARDS)
    random.Random(42).shuffle(shuffled)
    assert read_split_config(root).split_parts == {"train": tuple(shuffled)}
    assert tuple(read_info(root).shard_counts) == SHARDS


def test_patterns_and_notes(root: Path) -> None:
    report = prepare_dataset(
        root, num_workers=0, split_patterns={"train": "glob:parts/s-{0..7}.tar", "val": r"re:[78]\.tar$"}
    )
    assert read_split_config(root).split_parts == {"train": SHARDS[:8], "val": SHARDS[7:9]}
    assert report.notes == (
        "1 shard in more than one split part, such as parts/s-7.tar.",
        "1 shard in no split part, such as parts/s-9.tar.",
    )


def test_shards_in_the_order_given(root: Path) -> None:
    prepare_dataset(root, shards=SHARDS[::-1], num_workers=0, exclude="s-5", split_ratio=[1])
    assert tuple(read_info(root).shard_counts) == tuple(shard for shard in SHARDS[::-1] if "5" not in shard)
    assert open_columnar(root).shards[0] == SHARDS[-1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"split_ratio": (1, 1, 1), "split_patterns": {"a": "x"}}, ConfigError, "not both"),
        ({"split_patterns": {"a": "glob:nothing"}}, ConfigError, "matches none"),
        ({"split_ratio": {str(part): 1 for part in range(11)}}, ConfigError, "cannot be split"),
        ({"exclude": "tar"}, ConfigError, "removes all"),
        ({"shards": []}, DatasetNotFoundError, "empty"),
        ({"shards": ["a.tar"]}, DatasetNotFoundError, "the file does not exist"),
        ({"shards": [SHARDS[0]] * 2, "split_ratio": [1]}, ConfigError, "has a duplicate"),
        ({"tar_index_only": True}, DatasetNotFoundError, "not a prepared dataset"),
        ({"sample_type": "CaptionSample"}, ConfigError, "Did you mean CaptioningSample"),
        ({"sample_type": "CaptioningSample"}, ConfigError, "needs a field map"),
        ({"sample_type": "TextSample", "field_map": {"txt": "txt"}}, FieldMapError, "no field 'txt'"),
        ({"sample_type": "CaptioningSample", "field_map": {"image": "jpg"}}, FieldMapError, "requires caption"),
        ({"field_map": {"text": "txt"}}, ConfigError, "needs a sample type"),
        ({"crude": True, "sample_type": "TextSample"}, ConfigError, "remove the sample type"),
        ({"num_workers": -1}, ConfigError, "num_workers"),
    ],
)
def test_wrong_arguments_write_nothing(
    root: Path, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prepare_dataset(root, **{"num_workers": 0, **arguments})  # type: ignore[arg-type]
    assert snapshot(root) == {}


def test_field_map_of_parts_that_are_not_there(root: Path) -> None:
    with pytest.raises(FieldMapError, match=r"'text\.txt'"):
        prepare_dataset(root, num_workers=0, sample_type="TextSample", field_map={"text": "text.txt"})
    assert snapshot(root) == {}
    prepare_dataset(root, num_workers=0, sample_type="TextSample", field_map={"text": "text.txt,json[i]"})


def test_duplicate_keys(tmp_path: Path) -> None:
    root = write(tmp_path, key="same")
    with pytest.raises(DuplicateKeyError, match=r"'same' in parts/s-0\.tar and in parts/s-1\.tar"):
        prepare_dataset(root, num_workers=0)
    assert snapshot(root) == {}
    with pytest.raises(DuplicateKeyError, match=r"'same' in parts/s-0\.tar and in parts/s-1\.tar"):
        prepare_dataset(root, num_workers=0, sqlite=False)


def test_damaged_shards_are_all_listed(root: Path) -> None:
    for shard in SHARDS[2:4]:
        (root / shard).write_bytes((root / shard).read_bytes()[:700])
    with pytest.raises(TarError, match=r"(?s)2 of 10 shards cannot be indexed.*s-2\.tar.*s-3\.tar"):
        prepare_dataset(root, num_workers=0)
    report = prepare_dataset(root, num_workers=0, exclude="s-[23]")
    assert report.shards_reused == 8


def test_without_sqlite(root: Path) -> None:
    prepare_dataset(root, num_workers=0)
    prepare_dataset(root, num_workers=0, sqlite=False, force_overwrite=True)
    assert not (root / ".nv-meta/index.sqlite").exists()
    assert not (root / ".nv-meta/index.uuid").exists()


def test_info_yaml_is_kept_in_step(root: Path) -> None:
    prepare_dataset(root, num_workers=0)
    (root / ".nv-meta/.info.yaml").write_text("shard_counts: {}\n")
    prepare_dataset(root, num_workers=0, force_overwrite=True, exclude="s-9")
    (root / ".nv-meta/.info.json").unlink()
    assert read_info(root).shard_counts == dict.fromkeys(SHARDS[:9], 4)


def test_tar_index_only(root: Path) -> None:
    prepare_dataset(root, num_workers=0, split_ratio={"mine": 1})
    before = snapshot(root)
    for name in before:
        if name.endswith(".idx"):
            (root / name).unlink()
    shutil.rmtree(root / ".nv-meta/columnar")
    (root / ".nv-meta/index.sqlite").unlink()
    report = prepare_dataset(root, num_workers=0, tar_index_only=True)
    after = snapshot(root)
    unlike = {name for name in before if before[name] != after.get(name)}
    assert all("columnar" in name or name == ".nv-meta/index.uuid" for name in unlike)
    assert report.split_parts == {}
    with pytest.raises(ConfigError, match="no shards and no exclude"):
        prepare_dataset(root, num_workers=0, tar_index_only=True, exclude="x")


def test_tar_index_only_writes_json_for_an_old_dataset(root: Path) -> None:
    prepare_dataset(root, num_workers=0)
    counts = dict(read_info(root).shard_counts)
    (root / ".nv-meta/.info.json").rename(root / ".nv-meta/.info.yaml")  # JSON is YAML
    prepare_dataset(root, num_workers=0, tar_index_only=True)
    assert json.loads((root / ".nv-meta/.info.json").read_text())["shard_counts"] == counts


def test_tar_index_only_refuses_other_counts(root: Path) -> None:
    prepare_dataset(root, num_workers=0)
    before = snapshot(root)
    shutil.copy(root / SHARDS[0], root / SHARDS[1])
    write_tars(root, [{"__key__": "new", "txt": "x"}], name=SHARDS[2])
    with pytest.raises(StaleIndexError, match=r"s-2\.tar: has 1 samples, but \.info\.json lists 4"):
        prepare_dataset(root, num_workers=0, tar_index_only=True)
    assert snapshot(root) == before


def test_permissions_follow_the_data(root: Path) -> None:
    root.chmod(0o750)
    (root / SHARDS[0]).chmod(0o640)
    prepare_dataset(root, num_workers=0)
    assert stat.S_IMODE((root / ".nv-meta").stat().st_mode) == 0o750
    assert stat.S_IMODE((root / ".nv-meta/index.sqlite").stat().st_mode) == 0o640
    assert stat.S_IMODE(tar_index_path(root / SHARDS[3]).stat().st_mode) == 0o640


def test_progress(root: Path) -> None:
    seen: list[PrepareProgress] = []
    prepare_dataset(root, num_workers=0, progress=seen.append)
    assert [now.shards_done for now in seen] == [*range(11), 10, 10]
    assert [now.stage for now in seen[-2:]] == ["index", "commit"]
    assert (seen[-1].samples, seen[-1].bytes_done) == (40, seen[0].bytes_total)


def test_the_time_leaves_out_what_a_person_took(root: Path) -> None:
    begun = time.perf_counter()
    report = prepare_dataset(root, num_workers=0, choose_definition=lambda _: time.sleep(0.3))
    assert time.perf_counter() - begun - report.elapsed_s >= 0.3


def test_one_prepare_at_a_time(root: Path) -> None:
    (root / ".nv-meta").mkdir()
    descriptor = os.open(root / ".nv-meta", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another process"):
        prepare_dataset(root, num_workers=0)
    os.close(descriptor)
    prepare_dataset(root, num_workers=0)


def test_shard_that_changes_meanwhile(root: Path) -> None:
    def spoil(now: PrepareProgress) -> None:
        if now.stage == "index":
            os.utime(root / SHARDS[4], ns=(1, 1))

    with pytest.raises(StaleIndexError, match=r"s-4\.tar: changed"):
        prepare_dataset(root, num_workers=0, progress=spoil)
    assert snapshot(root) == {}


CHILD = """
import sys, time
from pathlib import Path
from energon_grain.prepare import prepare_dataset
root, stage, shards = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
def progress(now):
    if now.stage == stage and now.shards_done == shards:
        print("here", flush=True)
        time.sleep(600)
prepare_dataset(root, num_workers=0, split_ratio={"all": 1}, force_overwrite=True, progress=progress)
"""


@pytest.mark.parametrize(
    ("stage", "shards", "prepared"), [("scan", 6, False), ("scan", 6, True), ("index", 10, True), ("commit", 10, True)]
)
def test_killed_in_the_middle(root: Path, stage: str, shards: int, prepared: bool) -> None:
    """SIGKILL leaves the old state; the next run does not scan finished shards again, and leaves nothing behind."""
    if prepared:
        prepare_dataset(root, num_workers=0)
        write_tars(root, [{"__key__": f"other{i}", "txt": "x"} for i in range(7)], name=SHARDS[0])
    before = snapshot(root)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CHILD, str(root), stage, str(shards)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        child.send_signal(signal.SIGKILL)
    assert snapshot(root) == before
    report = prepare_dataset(root, num_workers=0, force_overwrite=True)
    assert report.shards_reused == shards
    assert report.samples == (43 if prepared else 40)
    assert not (root / ".nv-meta/.prepare").exists()
    assert np.array_equal(open_columnar(root).shard_first, np.cumsum([0, *report.shard_counts.values()]))


@dataclass
class Mine(Sample):
    first: int
    second: list[str] = field(default_factory=list)


class NotADataclass:
    pass


@pytest.mark.parametrize("name", SAMPLE_TYPES)
def test_all_are_public(name: str) -> None:
    assert getattr(energon_grain, name) is SAMPLE_TYPES[name]
    assert find_sample_type(name) is SAMPLE_TYPES[name]
    assert data_fields(SAMPLE_TYPES[name])[0].required


def test_own_type() -> None:
    name = f"{__name__}:Mine"
    assert find_sample_type(name) is Mine
    assert class_reference(name) == {"__module__": __name__, "__class__": "Mine"}
    first, second = data_fields(Mine)
    assert (first.name, first.annotation, first.required) == ("first", "int", True)
    assert (second.name, second.annotation, second.default) == ("second", "list[str]", "[]")


@pytest.mark.parametrize("name", ["Text", "nowhere:Type", f"{__name__}:Missing", f"{__name__}:NotADataclass", ":x"])
def test_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        find_sample_type(name)


def test_references_load_in_energon() -> None:
    assert class_reference("VQASample")["__module__"] == "megatron.energon"
    assert class_reference("VQAOCRSample")["__module__"] == "megatron.energon.flavors.vqa_and_ocr"


@pytest.mark.parametrize(
    ("field", "parts", "expected"),
    [
        ("image", ["txt", "jpg"], "jpg"),
        ("image", ["png", "jpg", "json"], "jpg,png"),
        ("image", ["image", "jpg"], "image"),
        ("image", ["json"], None),
        ("caption", ["txt", "json"], "txt"),
        ("caption", ["caption", "txt"], "caption"),
        ("label", ["cls"], "cls"),
        ("video", ["mp4", "mkv"], "mp4,mkv"),
        ("words_text", ["words_text.json", "jpg"], "words_text.json"),
        ("words_text", ["jpg"], None),
    ],
)
def test_proposals(field: str, parts: list[str], expected: str | None) -> None:
    assert propose_expression(field, parts) == expected


def test_first_samples(tmp_path: Path) -> None:
    content = {"caption": "x" * 100, "boxes": [1, 2, 3, 4], "deep": [{"k": "ü", "none": None}]}
    samples = [
        {"__key__": "a", "json": content, "jpg": b"1234"},
        {"__key__": "b", "json": b"{"},
        {"__key__": "c", "x": ""},
    ]
    (tar,) = write_tars(tmp_path, samples)
    (key, parts, text), (_, _, none) = preview_samples(str(tar), scan_tar(tar))
    assert (key, list(parts), parts["jpg"]) == ("a", ["json", "jpg"], 4)
    assert json.loads(text or "") == {
        "caption": "x" * 40 + "…",
        "boxes": [1, 2, 3, "…"],
        "deep": [{"k": "ü", "none": None}],
    }
    assert none is None


def test_sizes(tmp_path: Path) -> None:
    sizes = [0, 1, 2, 3, 4, 5, 7, 8, 9, 1000, 1023, 1024, 70_000]
    write_tars(tmp_path, [{"__key__": f"{i:03d}", "txt": "x" * size} for i, size in enumerate(sizes)])
    prepare_dataset(tmp_path, num_workers=0, split_ratio=[1], sqlite=False)
    bins = summarize_dataset(tmp_path).sizes
    assert sum(size.samples for size in bins) == len(sizes)
    for size in bins:
        assert size.samples == sum(size.from_bytes <= number < size.below_bytes for number in sizes)
    assert bins[0].samples
    assert bins[-1].samples
    assert [size.below_bytes for size in bins[:-1]] == [size.from_bytes for size in bins[1:]]


def test_everything(tmp_path: Path) -> None:
    samples = [{"__key__": str(i), "txt": "x" * i} | ({"cls": 1} if i % 2 else {}) for i in range(10)]
    write_tars(tmp_path, samples, shards=5)
    prepare_dataset(
        tmp_path, num_workers=0, split_ratio=(3, 2), sample_type="TextSample", field_map={"text": "txt"}, sqlite=False
    )
    split = tmp_path / ".nv-meta/split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude: [shard_000.tar, shard_001.tar/2]"))
    summary = summarize_dataset(tmp_path)
    assert (summary.shards, summary.samples, summary.payload_bytes) == (5, 10, 50)
    assert summary.shard_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.tar"))
    sizes = [(size.from_bytes, size.below_bytes, size.samples) for size in summary.parts["txt"].sizes]
    assert sizes == [(0, 1, 1), (1, 2, 1), (2, 4, 2), (4, 8, 4), (8, 16, 2)]
    (one_byte,) = summary.parts["cls"].sizes
    assert summary.parts == {
        "txt": PartSummary(
            count=10, total_bytes=45, smallest_bytes=0, largest_bytes=9, sizes=summary.parts["txt"].sizes
        ),
        "cls": PartSummary(count=5, total_bytes=5, smallest_bytes=1, largest_bytes=1, sizes=(one_byte,)),
    }
    assert summary.splits == {
        "train": SplitSummary(shards=2, samples=4, excluded_samples=1),
        "val": SplitSummary(shards=2, samples=4, excluded_samples=0),
    }
    assert (summary.kind, summary.sample_type) == ("standard", "megatron.energon.TextSample")
    assert (summary.field_map, summary.has_sqlite, summary.uuid) == ({"text": "txt"}, False, None)
    assert sum(size.samples for size in summary.sizes) == 10


def test_datasets_of_every_kind(tmp_path: Path) -> None:
    assert summarize_dataset(make_crude_dataset(tmp_path / "crude", n=8, shards=2)).kind == "crude"
    root = make_captioning_dataset(tmp_path / "captions", n=8, shards=2)
    assert summarize_dataset(root).kind == "standard"
    config = root / ".nv-meta/dataset.yaml"
    config.write_text("__module__: my.data\n__class__: MyFactory\nanything: 1\n")
    custom = summarize_dataset(root)
    assert (custom.kind, custom.sample_type) == ("custom", "my.data.MyFactory")
    config.write_text("sample_typ: 1\n")
    assert (summarize_dataset(root).sample_type or "").startswith("unknown: ")
    config.unlink()
    (root / ".nv-meta/split.yaml").unlink()
    bare = summarize_dataset(root)
    assert (bare.kind, bare.splits) == ("none", {})
    with pytest.raises(SplitError):
        summarize_dataset(root, split_config="other.yaml")


def test_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="energon-grain prepare"):
        summarize_dataset(tmp_path)


def test_memory_does_not_grow_with_the_samples(made_up: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root = made_up("large", 200_000)
    whole = summarize_dataset(root)
    monkeypatch.setattr("energon_grain.prepare.summary._BLOCK_SAMPLES", 10_000)
    tracemalloc.start()
    try:
        blocks = summarize_dataset(root)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert blocks == whole
    assert whole.samples == sum(each.samples for each in whole.sizes) == 200_000
    assert whole.payload_bytes == sum(part.total_bytes for part in whole.parts.values())
    assert peak_bytes < 2_500_000


SAMPLES = [{"__key__": f"{number:05d}", "txt": b"text %d" % number, "json": b"{}"} for number in range(40)]

ALL = {"train": 1}


@pytest.fixture
def records_root(tmp_path: Path) -> Path:
    write_shards(tmp_path / "data", [msgpack_record(sample) for sample in SAMPLES], 10)
    return tmp_path / "data"


def test_everything_is_written_beside_records(records_root: Path) -> None:
    report = prepare_dataset(
        records_root, records="msgpack", split_ratio=(8, 1, 1), sample_type="TextSample", field_map={"text": "txt"}
    )
    assert (report.samples, report.part_names) == (40, ("txt", "json"))
    assert sorted(path.name for path in (records_root / ".nv-meta").iterdir()) == [
        ".info.json",
        "columnar",
        "dataset.yaml",
        "records.json",
        "split.yaml",
    ]
    assert not list(records_root.glob("*.idx"))
    assert holds_records(records_root)
    assert read_records_file(records_root) == "msgpack"
    assert read_info(records_root).shard_counts == {f"shard_{number:03d}.array_record": 4 for number in range(10)}
    assert len(read_split_config(records_root).split_parts["train"]) == 8
    index = open_columnar(records_root)
    assert index.keys(index.key_order) == [sample["__key__"] for sample in SAMPLES]
    assert set(index.part_offset.tolist()) == {0}


def test_numbers_go_through_all_shards(tmp_path: Path) -> None:
    write_shards(tmp_path / "raw", [b"x" * number for number in range(10)], 3)
    for workers in (0, 2):
        prepare_dataset(tmp_path / "raw", records="raw", crude=True, num_workers=workers, force_overwrite=True)
        index = open_columnar(tmp_path / "raw")
        assert [index.key(number) for number in range(10)] == [str(number) for number in range(10)]
    with ThreadPoolExecutor(2) as executor:
        prepare_dataset(tmp_path / "raw", tar_index_only=True, executor=executor)
    assert open_columnar(tmp_path / "raw").content_id == index.content_id
    examples = [encode_example({"n": [number]} | ({"__key__": [b"k"]} if number == 7 else {})) for number in range(10)]
    write_shards(tmp_path / "tf", examples, 3)
    prepare_dataset(tmp_path / "tf", records="tf_example")
    index = open_columnar(tmp_path / "tf")
    assert [index.key(number) for number in range(10)] == [*"0123456", "k", "8", "9"]


def test_names_of_tensorflow_datasets(tmp_path: Path) -> None:
    """Which has five digits until there are more than 99,999 files."""
    names = [f"x-train.array_record-{number}-of-100001" for number in ("00000", "10001", "100000")]
    for number, name in enumerate(names):
        write_records(tmp_path / name, [b"%d" % number])
    (tmp_path / "x.array_record-00000-of-00002.json").touch()
    with pytest.raises(DatasetNotFoundError, match=r"There are 3 \*\.array_record files: add --records"):
        prepare_dataset(tmp_path)
    command = f"energon-grain prepare {tmp_path} --records msgpack|tf_example|raw"
    with pytest.raises(DatasetNotFoundError, match=re.escape(command)):
        read_info(tmp_path)
    prepare_dataset(tmp_path, records="raw", split_ratio=ALL, crude=True, num_workers=0)
    assert list(read_info(tmp_path).shard_counts) == names
    parts = [sample.parts for sample in ArrayRecordSource(tmp_path).read(np.arange(3))]
    assert parts == [{"record": b"0"}, {"record": b"1"}, {"record": b"2"}]


def repeated(folder: Path) -> Path:
    """Of nine members four are not read."""
    folder.mkdir()
    for shard, names in {
        "a": ["0.txt", "0.json"],
        "b": ["1.txt", "1.json"] * 2 + ["1.txt"],
        "c": ["2.x", "2.x"],
    }.items():
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for place, name in enumerate(names):
                member = tarfile.TarInfo(name)
                member.size = 1
                tar.addfile(member, io.BytesIO(b"%d" % place))
    return folder


REPEATED = (
    "4 members of tars are not read, because a later member of the same sample has the same name, such as 1.txt, "
    "3 times in b.tar: the last one is used, as in `tar` and Energon. Write the tar again without the others, or "
    "rename them if they should be separate samples"
)


@pytest.mark.parametrize("fix_duplicates", [False, True])
def test_members_that_come_again_are_reported(tmp_path: Path, fix_duplicates: bool) -> None:
    root = repeated(tmp_path / "data")
    report = prepare_dataset(root, split_ratio=ALL, crude=True, num_workers=0, fix_duplicates=fix_duplicates)
    assert report.notes == (f"{REPEATED}.",)
    parts = {sample.key: sample.parts for sample in WebDatasetSource(root).read(np.arange(3))}
    assert parts == {"0": {"txt": b"0", "json": b"1"}, "1": {"txt": b"4", "json": b"3"}, "2": {"x": b"1"}}
    with tarfile.open(root / "d.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("3.x"))
    assert prepare_dataset(root, append=True, num_workers=0).notes == ()


@pytest.mark.parametrize("prepared", [False, True])
def test_lint_finds_members_that_come_again(tmp_path: Path, prepared: bool) -> None:
    root = repeated(tmp_path / "data")
    if prepared:
        prepare_dataset(root, split_ratio=ALL, crude=True, num_workers=0)
    report = lint_dataset(root)
    (warning,) = [finding for finding in report.findings if finding.severity == "warning"]
    assert (warning.where, warning.what, report.samples) == (str(root), REPEATED, 3)


def test_what_was_prepared_stays_what_it_is(records_root: Path) -> None:
    prepare_dataset(records_root, records="msgpack")
    with pytest.raises(ConfigError, match="already prepared"):
        prepare_dataset(records_root)
    prepare_dataset(records_root, force_overwrite=True, split_ratio=ALL)
    assert read_records_file(records_root) == "msgpack"
    changed = [msgpack_record({**sample, "txt": b"new"}) for sample in SAMPLES[36:]]
    write_records(records_root / "shard_009.array_record", changed)
    before = open_columnar(records_root).content_id
    prepare_dataset(records_root, tar_index_only=True)
    assert open_columnar(records_root).content_id != before
    assert holds_records(records_root)
    with pytest.raises(ConfigError, match="tar_index_only cannot be combined with records"):
        prepare_dataset(records_root, tar_index_only=True, records="raw")
    (records_root / ".nv-meta" / "records.json").write_text("damaged")
    prepare_dataset(records_root, force_overwrite=True, records="raw")
    assert open_columnar(records_root).part_names == ("record",)


def test_an_interrupted_run_is_of_its_encoding(records_root: Path) -> None:
    write_records(records_root / "zzz.array_record", [b"no map"])
    with pytest.raises(FormatError, match=r"zzz\.array_record: record 0: is not a msgpack map"):
        prepare_dataset(records_root, records="msgpack", num_workers=0)
    report = prepare_dataset(records_root, records="raw", num_workers=0)
    assert (report.shards_reused, report.samples) == (0, 41)


def test_the_index_is_built_where_it_is_missing(records_root: Path) -> None:
    prepare_dataset(records_root, records="msgpack")
    before = open_columnar(records_root).content_id
    for file in (records_root / ".nv-meta" / "columnar").glob("header.json"):
        file.unlink()
    assert open_columnar(records_root).content_id == before


def test_the_way_out(tmp_path: Path, records_root: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"10 \*\.array_record files: add --records msgpack\|tf_example\|"):
        prepare_dataset(records_root)
    with pytest.raises(DatasetNotFoundError, match=r"prepare .*data --records msgpack\|tf_example\|raw"):
        read_info(records_root)
    write_tars(tmp_path / "tars", [{"__key__": "a", "txt": "x"}])
    with pytest.raises(DatasetNotFoundError, match=r"no \*\.array_record files"):
        prepare_dataset(tmp_path / "tars", records="raw")


def test_what_cannot_be_prepared(tmp_path: Path) -> None:
    write_shards(tmp_path / "twice", [msgpack_record(SAMPLES[0])] * 2, 2)
    with pytest.raises(DuplicateKeyError, match="00000"):
        prepare_dataset(tmp_path / "twice", records="msgpack", split_ratio=ALL)
    write_records(tmp_path / "empty" / "x.array_record", [])
    with pytest.raises(FormatError, match=r"x\.array_record: holds no sample \(a record\)"):
        prepare_dataset(tmp_path / "empty", records="raw", split_ratio=ALL)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.array_record").write_bytes(b"garbage" * 20000)
    with pytest.raises(ReadError, match=r"x\.array_record: is not an ArrayRecord file"):
        prepare_dataset(tmp_path / "bad", records="raw", split_ratio=ALL)
