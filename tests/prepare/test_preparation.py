from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sqlite_rows import rows

from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    DuplicateKeyError,
    FieldMapError,
    StaleIndexError,
    TarError,
)
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.dataset_config import read_dataset_config
from energon_grain.formats.nv_meta import read_info, read_uuid
from energon_grain.formats.splits import read_split_config
from energon_grain.formats.tar.index import read_tar_index, tar_index_path
from energon_grain.formats.tar.scan import scan_tar
from energon_grain.prepare import PrepareProgress, prepare_dataset
from energon_grain.testing import write_tars

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
        "shards in more than one split part: 1, such as parts/s-7.tar.",
        "shards in no split part: 1, such as parts/s-9.tar.",
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
        ({"split_ratio": {str(part): 1 for part in range(11)}}, ConfigError, "cannot be dealt"),
        ({"exclude": "tar"}, ConfigError, "leaves out all"),
        ({"shards": []}, DatasetNotFoundError, "empty"),
        ({"shards": ["a.tar"]}, DatasetNotFoundError, "no such file"),
        ({"shards": [SHARDS[0]] * 2, "split_ratio": [1]}, ConfigError, "twice"),
        ({"tar_index_only": True}, DatasetNotFoundError, "not a prepared dataset"),
        ({"sample_type": "CaptionSample"}, ConfigError, "Did you mean CaptioningSample"),
        ({"sample_type": "CaptioningSample"}, ConfigError, "needs a field map"),
        ({"sample_type": "TextSample", "field_map": {"txt": "txt"}}, FieldMapError, "no field 'txt'"),
        ({"sample_type": "CaptioningSample", "field_map": {"image": "jpg"}}, FieldMapError, "requires caption"),
        ({"field_map": {"text": "txt"}}, ConfigError, "needs the sample type"),
        ({"crude": True, "sample_type": "TextSample"}, ConfigError, "neither"),
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
    with pytest.raises(StaleIndexError, match=r"s-2\.tar: has 1 samples, \.info\.json says 4"):
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
