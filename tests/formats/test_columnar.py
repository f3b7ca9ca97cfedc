"""The columnar index: round trips, lookups, first-use builds, damage and staleness."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_grain.errors import DuplicateKeyError, IndexFileError, StaleIndexError
from energon_grain.formats.columnar import ColumnarIndex, open_columnar
from energon_grain.formats.columnar_build import write_columnar
from energon_grain.formats.columnar_header import (
    COLUMN_TYPES,
    HEADER_NAME,
    Column,
    ColumnarHeader,
    columnar_folder,
    read_header,
)
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.index_cache import index_cache_folder
from energon_grain.formats.nv_meta import DatasetInfo, write_info
from energon_grain.formats.shard_check import check_shards
from energon_grain.formats.shard_scan import ShardScan, scan_tar
from energon_grain.formats.tar_index import tar_index_path, write_tar_index

Sample = tuple[str, dict[str, bytes]]


def write_tar(path: Path, samples: Sequence[Sample]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for key, parts in samples:
            for part, payload in parts.items():
                member = tarfile.TarInfo(f"{key}.{part}")
                member.size = len(payload)
                tar.addfile(member, io.BytesIO(payload))


def write_dataset(root: Path, shards: dict[str, list[Sample]], *, tar_index: bool = True) -> DatasetInfo:
    """Write tars and `.info.json`, as of a dataset that Energon prepared."""
    (root / ".nv-meta").mkdir(parents=True, exist_ok=True)
    for shard, samples in shards.items():
        write_tar(root / shard, samples)
        if tar_index:
            write_tar_index(tar_index_path(root / shard), scan_tar(root / shard, hidden="keep").sample_start)
    info = DatasetInfo(shard_counts={shard: len(samples) for shard, samples in shards.items()})
    write_info(root, info)
    return info


def shards_of(count: int, samples: int) -> dict[str, list[Sample]]:
    return {
        f"parts/s{shard}.tar": [
            (f"{shard:02}/{i:03}", {"txt": b"x" * i, "json": b"{}"} if i % 3 else {"json": b"[]"})
            for i in range(samples)
        ]
        for shard in range(count)
    }


def check_contents(index: ColumnarIndex, shards: dict[str, list[Sample]]) -> None:
    """Every sample of the index has the bytes it should have."""
    flat = [(shard, key, parts) for shard, samples in shards.items() for key, parts in samples]
    assert len(index) == len(flat)
    numbers = np.arange(len(flat))
    assert index.keys(numbers) == [key for _, key, _ in flat]
    owners = index.shard_of(numbers)
    for i, (shard, key, parts) in enumerate(flat):
        assert index.shards[owners[i]] == shard
        assert index.key(i) == key
        data = (index.root / shard).read_bytes()
        rows = range(index.part_start[i], index.part_start[i + 1])
        found = {
            index.part_names[index.part_name[row]]: data[
                index.part_offset[row] : index.part_offset[row] + index.part_size[row]
            ]
            for row in rows
        }
        assert found == parts
        assert index.find(key) == i


def scan_of(keys: list[bytes], parts: list[list[str]], size_bytes: int = 1 << 20) -> ShardScan:
    """Make a scan by hand: sample i has the parts parts[i], each of one block."""
    names = list(dict.fromkeys(part for of_sample in parts for part in of_sample))
    counts = [len(of_sample) for of_sample in parts]
    part_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return ShardScan(
        size_bytes=size_bytes,
        sample_start=part_start * 1024,
        part_start=part_start,
        part_names=tuple(names),
        part_name=np.array([names.index(part) for of_sample in parts for part in of_sample], dtype=np.int32),
        part_offset=np.arange(part_start[-1]) * 1024 + 512,
        part_size=np.arange(part_start[-1]) % 500,
        key_start=np.concatenate([[0], np.cumsum([len(key) for key in keys])]).astype(np.int64),
        key_bytes=np.frombuffer(b"".join(keys), np.uint8),
    )


SHARD = st.lists(
    st.tuples(
        st.one_of(st.text(max_size=5).map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=4)),
        st.lists(st.sampled_from(["jpg", "txt", "a.b", "json", ""]), min_size=1, max_size=3),
    ),
    max_size=8,
)


@settings(max_examples=60)
@given(st.lists(SHARD, max_size=4))
def test_round_trip_of_scans(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[tuple[bytes, list[str]]]]
) -> None:
    root = tmp_path_factory.mktemp("dataset")
    names = [f"{i}.tar" for i in range(len(shards))]
    scans = [scan_of([key for key, _ in shard], [parts for _, parts in shard], 7 + i) for i, shard in enumerate(shards)]
    (root / ".nv-meta").mkdir()
    write_info(root, DatasetInfo(shard_counts=dict(zip(names, map(len, scans), strict=True))))
    write_columnar(columnar_folder(root), names, iter(scans))
    index = open_columnar(root)
    assert index.shards == tuple(names)
    assert index.shard_bytes.tolist() == [7 + i for i in range(len(shards))]
    keys = [key for shard in shards for key, _ in shard]
    assert index.keys(np.arange(len(keys))) == [key.decode("utf-8", "surrogateescape") for key in keys]
    assert index.key_order.tolist() == sorted(range(len(keys)), key=lambda i: (keys[i], i))
    for key in keys:
        assert index.find(key.decode("utf-8", "surrogateescape")) == keys.index(key)
    assert index.find("no such key") is None
    parts = [parts for shard in shards for _, parts in shard]
    for i, expected in enumerate(parts):
        rows = slice(index.part_start[i], index.part_start[i + 1])
        assert [index.part_names[number] for number in index.part_name[rows]] == expected
    for number, scan in enumerate(scans):
        np.testing.assert_array_equal(index.shard_sample_start(number), scan.sample_start)
        rows = slice(index.part_start[index.shard_first[number]], index.part_start[index.shard_first[number + 1]])
        np.testing.assert_array_equal(index.part_offset[rows], scan.part_offset)
        np.testing.assert_array_equal(index.part_size[rows], scan.part_size)


@pytest.mark.parametrize("widths", [(5, 5), (1, 12)])
def test_many_keys_come_in_the_order_asked_for(tmp_path: Path, widths: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    keys = [bytes(random.integers(97, 123, random.integers(widths[0], widths[1] + 1), np.uint8)) for _ in range(300)]
    (tmp_path / ".nv-meta").mkdir()
    write_info(tmp_path, DatasetInfo(shard_counts={"a.tar": 300}))
    write_columnar(columnar_folder(tmp_path), ["a.tar"], [scan_of(keys, [["x"]] * 300)])
    index = open_columnar(tmp_path)
    for count in (0, 1, 63, 64, 300, 1000):
        samples = random.integers(0, 300, count)
        assert index.keys(samples) == [keys[i].decode() for i in samples]


def test_first_use_builds_into_the_dataset(tmp_path: Path) -> None:
    shards = shards_of(3, 7)
    write_dataset(tmp_path, shards)
    check_contents(open_columnar(tmp_path), shards)
    generation = read_header(columnar_folder(tmp_path), tmp_path)
    index = open_columnar(tmp_path)
    assert read_header(columnar_folder(tmp_path), tmp_path) == generation
    check_shards(open_folder(tmp_path), index)
    assert index.sample_start.flags.writeable is False


def test_tar_index_files_are_not_needed(tmp_path: Path) -> None:
    shards = shards_of(2, 3)
    write_dataset(tmp_path, shards, tar_index=False)
    check_contents(open_columnar(tmp_path), shards)


def test_hidden_files_are_kept_where_energon_kept_them(tmp_path: Path) -> None:
    shards: dict[str, list[Sample]] = {"a.tar": [("k", {"jpg": b"1"}), ("d/", {"hidden.jpg": b"2"})]}
    write_dataset(tmp_path, shards)
    check_contents(open_columnar(tmp_path), shards)


def test_content_id_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    shards = shards_of(2, 5)
    ids: list[str] = []
    for name in ("one", "two"):
        write_dataset(tmp_path / name, shards)
        ids.append(open_columnar(tmp_path / name).content_id)
    shards["parts/s1.tar"][2][1]["json"] = b"{ }"
    write_dataset(tmp_path / "three", shards)
    assert ids[0] == ids[1] != open_columnar(tmp_path / "three").content_id
    assert len(bytes.fromhex(ids[0])) == 16


def test_content_id_has_no_part_in_how_shards_are_kept() -> None:
    columns = {name: Column(3, name) for name in COLUMN_TYPES}

    def content_id(**changes: Any) -> str:
        header: dict[str, Any] = {
            "generation": "g0",
            "shards": [("a.tar", 10240, 2), ("b.tar", 5120, 1)],
            "part_names": ["txt"],
            "columns": columns,
        }
        return ColumnarHeader(**header | changes).content_id

    same = [
        content_id(),
        content_id(shards=[("a.array_record", 65536, 2), ("b.array_record", 65536, 1)]),
        content_id(generation="g1"),
        *(
            content_id(columns=columns | {name: Column(3, "other")})
            for name in ("sample_start", "part_offset", "key_order")
        ),
    ]
    others = [
        content_id(shards=[("a.tar", 10240, 1), ("b.tar", 5120, 2)]),
        content_id(part_names=["json"]),
        *(
            content_id(columns=columns | {name: Column(3, "other")})
            for name in ("key_start", "key_bytes", "part_start", "part_name", "part_size")
        ),
    ]
    assert len(set(same)) == 1
    assert len({same[0], *others}) == 1 + len(others)


def test_headers_with_a_stored_content_id_are_read(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(2, 5))
    own = open_columnar(tmp_path).content_id
    header = columnar_folder(tmp_path) / HEADER_NAME
    header.write_bytes(header.read_bytes().replace(b'"generation"', b'"content_id":"00","generation"'))
    assert open_columnar(tmp_path).content_id == own


def test_a_dataset_prepared_again_is_indexed_again(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(2, 5))
    old = open_columnar(tmp_path)
    shards = shards_of(3, 4)
    write_dataset(tmp_path, shards)
    check_contents(open_columnar(tmp_path), shards)
    assert len(old) == 10
    assert old.keys(np.arange(10))[-1] == "01/004"
    assert len(list(columnar_folder(tmp_path).glob("g*"))) == 1


def test_stale_info_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(2, 5))
    write_info(tmp_path, DatasetInfo(shard_counts={"parts/s0.tar": 5, "parts/s1.tar": 6}))
    with pytest.raises(StaleIndexError, match=r"s1\.tar: has 5 samples, .* 6; `energon-grain prepare"):
        open_columnar(tmp_path)
    (tmp_path / "parts/s1.tar").unlink()
    with pytest.raises(StaleIndexError, match=r"s1\.tar.* gone"):
        open_columnar(tmp_path)
    assert not list(columnar_folder(tmp_path).glob("g*"))


def test_stale_tar_index_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(2, 5))
    path = tmp_path / "parts/s1.tar"
    write_tar_index(tar_index_path(path), scan_tar(path).sample_start + 512)
    with pytest.raises(StaleIndexError, match=r"s1\.tar\.idx"):
        open_columnar(tmp_path)


def test_opening_looks_at_no_shard(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(2, 5))
    open_columnar(tmp_path)
    (tmp_path / "parts/s1.tar").unlink()
    assert len(open_columnar(tmp_path)) == 10


def test_duplicates_are_refused_on_request(tmp_path: Path) -> None:
    scans = [scan_of([b"a", b"b"], [["x"], ["x"]]), scan_of([b"b"], [["x"]])]
    with pytest.raises(DuplicateKeyError, match=r"'b' in 0\.tar and in 1\.tar"):
        write_columnar(tmp_path, ["0.tar", "1.tar"], scans, unique_keys=True)
    assert not list(tmp_path.iterdir())
    write_columnar(tmp_path, ["0.tar", "1.tar"], scans)


def test_a_failing_scan_leaves_the_old_index(tmp_path: Path) -> None:
    shards = shards_of(2, 4)
    write_dataset(tmp_path, shards)
    open_columnar(tmp_path)

    def scans() -> object:
        yield scan_tar(tmp_path / "parts/s0.tar")
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="on fire"):
        write_columnar(columnar_folder(tmp_path), list(shards), scans())  # type: ignore[arg-type]
    check_contents(open_columnar(tmp_path), shards)
    assert len(list(columnar_folder(tmp_path).glob("g*"))) == 1


@pytest.mark.parametrize("name", ["header.json", "sample_start", "part_name", "key_bytes", "part_start"])
@pytest.mark.parametrize("damage", ["truncate", "remove", "garble"])
def test_damage_is_refused_with_the_command_that_mends(tmp_path: Path, name: str, damage: str) -> None:
    write_dataset(tmp_path, shards_of(2, 4))
    open_columnar(tmp_path)
    folder = columnar_folder(tmp_path)
    path = folder / name if name == "header.json" else next(folder.glob(f"g*/{name}.npy"))
    if damage == "truncate":
        os.truncate(path, path.stat().st_size // 2)
    elif damage == "remove":
        path.unlink()
    else:
        path.write_bytes(bytes(reversed(path.read_bytes())))
    if name == "header.json" and damage == "remove":
        open_columnar(tmp_path)  # no header: no index, it is built again
        return
    with pytest.raises(IndexFileError, match=r"energon-grain prepare .* --force-overwrite"):
        open_columnar(tmp_path)


def test_a_newer_index_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(1, 2))
    open_columnar(tmp_path)
    header = columnar_folder(tmp_path) / "header.json"
    header.write_text(json.dumps({"version": 99, "something": "else"}))
    with pytest.raises(IndexFileError, match="version 99"):
        open_columnar(tmp_path)


def test_header_cannot_point_outside(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(1, 2))
    open_columnar(tmp_path)
    header = columnar_folder(tmp_path) / "header.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"generation": "../../elsewhere"}))
    with pytest.raises(IndexFileError, match="no usable columns"):
        open_columnar(tmp_path)


def test_read_only_datasets_are_indexed_in_the_cache(tmp_path: Path) -> None:
    root, cache = tmp_path / "data", tmp_path / "cache"
    shards = shards_of(2, 4)
    write_dataset(root, shards)
    columnar_folder(root).touch()  # a file in the place of the folder: nothing can be written there
    check_contents(open_columnar(root, cache_dir=cache), shards)
    folder = index_cache_folder(root, cache)
    header = read_header(folder, root)
    assert header is not None
    check_contents(open_columnar(root, cache_dir=cache), shards)
    assert read_header(folder, root) == header
    write_info(root, DatasetInfo(shard_counts=dict.fromkeys(shards, 4)))  # as a new `prepare` would
    open_columnar(root, cache_dir=cache)
    assert read_header(folder, root) != header


def test_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert index_cache_folder(Path("/data/x")).parent == tmp_path / "energon-grain"
    assert index_cache_folder(Path("/data/x")) != index_cache_folder(Path("/data/y"))


def _open_and_report(root: Path, queue: multiprocessing.Queue[str]) -> None:
    queue.put(open_columnar(root).content_id)


def test_processes_that_build_at_once_all_end_well(tmp_path: Path) -> None:
    shards = shards_of(4, 50)
    write_dataset(tmp_path, shards)
    context = multiprocessing.get_context("forkserver")
    queue = context.Queue()
    processes = [context.Process(target=_open_and_report, args=(tmp_path, queue)) for _ in range(3)]
    for process in processes:
        process.start()
    ids = {queue.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(ids) == 1
    assert len(list(columnar_folder(tmp_path).glob("g*"))) == 1
    check_contents(open_columnar(tmp_path), shards)


def test_readers_never_see_a_mixture_while_it_is_rewritten(tmp_path: Path) -> None:
    write_dataset(tmp_path, {"a.tar": [("x", {"txt": b"1"})]})
    variants = [scan_of([b"x" * length], [["txt"] * length]) for length in (1, 40)]
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            for variant in variants:
                write_columnar(columnar_folder(tmp_path), ["a.tar"], [variant])

    open_columnar(tmp_path)
    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(100):
            try:
                index = open_columnar(tmp_path)
            except IndexFileError as error:  # three attempts in a row hit a rewrite
                assert "kept changing" in str(error)  # noqa: PT017
                continue
            assert len(index.key(0)) == len(index.part_name)
    finally:
        stop.set()
        writer.join()


def test_a_copied_dataset_brings_its_index_along(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(1, 3))
    open_columnar(tmp_path)
    header = read_header(columnar_folder(tmp_path), tmp_path)
    copy = tmp_path.parent / "copy"
    shutil.copytree(tmp_path, copy)
    check_contents(open_columnar(copy), shards_of(1, 3))
    assert read_header(columnar_folder(copy), copy) == header
