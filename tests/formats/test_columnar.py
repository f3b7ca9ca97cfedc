"""The columnar index and further columns: round trips, lookups, damage, and what happens to their files."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import struct
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from columnar_cases import Sample, check_contents, scan_of, shards_of, write_dataset
from hypothesis import given, settings, strategies as st
from object_server import Bucket
from patience import PATIENCE_S

from energon_grain import WebDatasetSource, open_columns
from energon_grain.errors import DuplicateKeyError, IndexFileError, KeyNotFoundError, StaleIndexError
from energon_grain.formats.columnar_header import (
    COLUMN_TYPES,
    HEADER_NAME,
    READ_INSTEAD_OF_MAP_BYTES,
    BlockSums,
    Column,
    ColumnarHeader,
    ColumnWriter,
    columnar_folder,
    encode_header,
    index_cache_folder,
    read_column,
    read_header,
)
from energon_grain.formats.columns import ColumnFolder, ColumnStage
from energon_grain.formats.commit_journal import new_staging_folder
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import DatasetInfo, write_info
from energon_grain.kinds.tar.bare_tars import open_tars
from energon_grain.kinds.tar.index import check_shards, read_tar_index, tar_index_path
from energon_grain.kinds.tar.scan import scan_tar
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.columnar_build import open_columnar, write_columnar
from energon_grain.testing import make_text_dataset, write_tars

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
    scans = [
        scan_of([key for key, _ in shard], [parts for _, parts in shard], 10**6 + i) for i, shard in enumerate(shards)
    ]
    (root / ".nv-meta").mkdir()
    write_info(root, DatasetInfo(shard_counts=dict(zip(names, map(len, scans), strict=True))))
    write_columnar(columnar_folder(root), names, iter(scans))
    index = open_columnar(root)
    assert index.shards == tuple(names)
    assert index.shard_bytes.tolist() == [10**6 + i for i in range(len(shards))]
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


def test_hidden_files_are_kept_where_energon_kept_them(tmp_path: Path) -> None:
    shards: dict[str, list[Sample]] = {"a.tar": [("k", {"jpg": b"1"}), ("d/", {"hidden.jpg": b"2"})]}
    write_dataset(tmp_path, shards)
    check_contents(open_columnar(tmp_path), shards)


def test_opening_looks_at_no_shard(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(2, 5))
    open_columnar(tmp_path)
    (tmp_path / "parts/s1.tar").unlink()
    assert len(open_columnar(tmp_path)) == 10


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


@pytest.mark.parametrize("old", ["version", "sums"])
def test_an_index_of_an_old_version_is_made_anew(tmp_path: Path, old: str) -> None:
    write_dataset(tmp_path, shards_of(2, 5))
    own = open_columnar(tmp_path).content_id
    found = read_header(columnar_folder(tmp_path), tmp_path)
    assert found is not None
    columns = {name: msgspec.structs.replace(each, block_sums="00" * 16) for name, each in found.columns.items()}
    header = msgspec.structs.replace(found, **({"version": 1} if old == "version" else {"columns": columns}))
    (columnar_folder(tmp_path) / HEADER_NAME).write_bytes(encode_header(header))
    assert open_columnar(tmp_path).content_id == own
    now = read_header(columnar_folder(tmp_path), tmp_path)
    assert now is not None
    assert now.generation != found.generation
    assert now.columns == found.columns


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
    with pytest.raises(IndexFileError, match="generation"):
        open_columnar(tmp_path)


@given(pieces=st.lists(st.integers(0, 50)), dtype=st.sampled_from(["int64", "int32", "uint8"]))
def test_round_trip_and_numpy_reads_it(tmp_path_factory: pytest.TempPathFactory, pieces: list[int], dtype: str) -> None:
    path = tmp_path_factory.mktemp("column") / "c.npy"
    arrays = [np.arange(length).astype(dtype) for length in pieces]
    whole = np.concatenate(arrays) if arrays else np.empty(0, dtype)
    writer = ColumnWriter(path, dtype)
    for array in arrays:
        writer.append(array)
    writer.close()
    assert writer.rows == len(whole)
    assert writer.checksum == hashlib.blake2b(whole.tobytes(), digest_size=16).hexdigest()
    for found in (np.load(path), read_column(path, dtype, len(whole), block_sums=writer.block_sums)):
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found, whole)


def test_large_columns_are_mapped_read_only(tmp_path: Path) -> None:
    rows = READ_INSTEAD_OF_MAP_BYTES
    writer = ColumnWriter(tmp_path / "c.npy", "int64")
    writer.append(np.arange(rows))
    writer.close()
    column = read_column(tmp_path / "c.npy", "int64", rows, block_sums=writer.block_sums)
    np.testing.assert_array_equal(column, np.load(tmp_path / "c.npy"))
    np.testing.assert_array_equal(column, np.arange(rows))
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1


@given(
    st.integers(1025, 5000),
    st.sets(st.tuples(st.integers(0, 1 << 20), st.sampled_from([1, 0x40, 0x80, 0xFF])), min_size=1),
)
def test_changed_bytes_are_found(
    tmp_path_factory: pytest.TempPathFactory, rows: int, changes: set[tuple[int, int]]
) -> None:
    """One, or several, of the upper bits of numbers too; and what lies in other blocks is right all the same."""
    path = tmp_path_factory.mktemp("column") / "c.npy"
    writer = ColumnWriter(path, "int64")
    writer.append(np.arange(rows))
    writer.close()
    data, places = bytearray(path.read_bytes()), dict(sorted(changes))
    for place, bits in places.items():
        data[128 + place % (8 * rows)] ^= bits
    wrong = {at // 128 for at in np.flatnonzero(np.frombuffer(data, "<i8", rows, 128) != np.arange(rows)).tolist()}
    path.write_bytes(data)
    column = read_column(path, "int64", rows, block_sums=writer.block_sums)
    sums = sums_of(path, column, writer)
    for block in range(-(-rows // 128)):
        damaged = pytest.raises(IndexFileError, match=rf"c\.npy: block {block} is damaged .*; repair it")
        with damaged if block in wrong else contextlib.nullcontext():
            sums.check(128 * block, min(128 * block + 128, rows))


@pytest.mark.parametrize("bit", [7, 30, 31])
def test_a_bit_that_is_stuck_in_all_numbers_is_found(tmp_path: Path, bit: int) -> None:
    """As a line of a bus of 32 bits may be: what one word gains must not be what another one loses."""
    path, right = tmp_path / "c.npy", np.arange(4096, dtype=np.int32)
    writer = ColumnWriter(path, "int32")
    writer.append(right)
    writer.close()
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), (right.view(np.uint32) | np.uint32(1 << bit)).tobytes(), 128)
    column = read_column(path, "int32", len(right), block_sums=writer.block_sums)
    for first in range(0, len(right), 256):
        sums = sums_of(path, column, writer)
        with pytest.raises(IndexFileError, match=f"block {first // 256} "):
            sums.check(first, first + 256)


def test_who_meets_damage_while_it_is_fetched_again_waits(tmp_path: Path) -> None:
    path, right = tmp_path / "c.npy", np.arange(2048)
    writer = ColumnWriter(path, "int64")
    writer.append(right)
    writer.close()
    whole, raised = path.read_bytes(), list[Exception]()
    path.write_bytes(whole[:128] + b"\1" + whole[129:])
    column = read_column(path, "int64", len(right), block_sums=writer.block_sums)

    def check() -> None:
        try:
            sums.check(0, 1)
        except IndexFileError as error:
            raised.append(error)

    other = threading.Thread(target=check)

    def fetch() -> None:
        other.start()
        other.join(0.5)  # it meets the damage; the longer it may, the surer a fault is found
        path.write_bytes(whole)

    sums = sums_of(path, column, writer, fetch_again=fetch)
    sums.check(0, 1)
    other.join()
    assert not raised
    assert not sums.is_damaged


def sums_of(path: Path, column: Any, writer: ColumnWriter, **options: Any) -> BlockSums:
    known = {"checksum": writer.checksum, "block_sums": writer.block_sums}
    return BlockSums(path, column, **known, where="c.npy", repair_advice="repair it", **options)


def test_appending_casts_and_accepts_strides(tmp_path: Path) -> None:
    writer = ColumnWriter(tmp_path / "c.npy", "int64")
    writer.append(np.arange(10, dtype=np.int32)[::3])
    writer.close()
    writer.close()
    assert np.load(tmp_path / "c.npy").tolist() == [0, 3, 6, 9]


@pytest.mark.parametrize("damage", ["truncated", "longer", "other type", "header"])
def test_damage_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "c.npy"
    writer = ColumnWriter(path, "int64")
    writer.append(np.arange(4))
    writer.close()
    data = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(data[:-1])
    elif damage == "longer":
        path.write_bytes(data + b"\0")
    elif damage == "header":
        path.write_bytes(data.replace(b"<i8", b"<u8"))
    dtype, rows = ("int32", 8) if damage == "other type" else ("int64", 4)
    with pytest.raises(IndexFileError, match=r"c\.npy"):
        read_column(path, dtype, rows)


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
    with pytest.raises(StaleIndexError, match=r"s1\.tar: has 5 samples, .* 6; run `energon-grain prepare"):
        open_columnar(tmp_path)
    (tmp_path / "parts/s1.tar").unlink()
    with pytest.raises(StaleIndexError, match=r"s1\.tar.* missing"):
        open_columnar(tmp_path)
    assert not list(columnar_folder(tmp_path).glob("g*"))


def test_stale_tar_index_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(2, 5))
    path = tmp_path / "parts/s1.tar"
    (scan_tar(path).sample_start + 512).tofile(tar_index_path(path))
    with pytest.raises(StaleIndexError, match=r"s1\.tar\.idx"):
        open_columnar(tmp_path)


def test_duplicates_are_refused_on_request(tmp_path: Path) -> None:
    scans = [scan_of([b"a", b"b"], [["x"], ["x"]]), scan_of([b"b"], [["x"]])]
    with pytest.raises(DuplicateKeyError, match=r"'b' in 0\.tar and in 1\.tar"):
        write_columnar(tmp_path, ["0.tar", "1.tar"], scans, unique_keys=True)
    assert not list(tmp_path.iterdir())
    write_columnar(tmp_path, ["0.tar", "1.tar"], scans)
    keys = [b"\xff", *(b"%d" % number for number in range(40))]
    with pytest.raises(DuplicateKeyError, match=r"^82 samples .* and 77 more") as caught:
        write_columnar(tmp_path, ["0.tar", "1.tar"], [scan_of(keys * 2), scan_of(keys)], unique_keys=True)
    assert "twice" in str(caught.value)


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
    ids = {queue.get(timeout=PATIENCE_S) for _ in processes}
    for process in processes:
        process.join()
    assert len(ids) == 1
    assert len(list(columnar_folder(tmp_path).glob("g*"))) == 1
    check_contents(open_columnar(tmp_path), shards)


@pytest.mark.parametrize(
    ("tar", "index"),
    [
        ("d/x.tar", "d/x.tar.idx"),
        ("a.b.tar", "a.b.tar.idx"),
        ("a.tgz", "a.tar.idx"),
        ("a.tar.gz", "a.tar.tar.idx"),
    ],
)
def test_names_the_index(tar: str, index: str) -> None:
    assert tar_index_path(Path(tar)) == Path(index)


def test_reads_the_bytes_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.idx"
    for starts in ([1536, 4096, 7680, 9728, 10752, 12800], [0]):
        path.write_bytes(struct.pack(f"<{len(starts)}Q", *starts))
        assert read_tar_index(path).tolist() == starts
    assert read_tar_index(path).dtype == np.int64


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (b"\0" * 12, "12 bytes"),
        (struct.pack("<3Q", 0, 1024, 1024), "@ 16: offset 2 is 1024; offsets must ascend"),
        (struct.pack("<2Q", 0, 1000), "@ 8: offset 1 is 1000; offsets must be multiples of 512"),
        (struct.pack("<2Q", 0, 1 << 63), "@ 8: offset 1 is -"),
    ],
)
def test_refuses_damaged_indices(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.tar.idx"
    path.write_bytes(data)
    with pytest.raises(IndexFileError, match=message) as caught:
        read_tar_index(path)
    assert str(path) in str(caught.value)
    assert "--tar-index-only" in str(caught.value)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("prefix", ["", "./", "a/folder/", "long/" * 30, "Grüße/", "d" * 98, "d" * 99, "d" * 100])
def test_what_every_writer_makes_of_names_is_right(tmp_path: Path, format: int, prefix: str) -> None:
    path = tmp_path / "s.tar"
    if format == tarfile.USTAR_FORMAT and "/" not in prefix:
        prefix = prefix[:95]  # longer names it cannot hold
    write_tar(path, [f"{prefix}{number}.txt" for number in range(3)], 100, format)
    prepare_dataset(tmp_path, split_ratio=[1, 0, 0])
    check_shards(open_folder(tmp_path), open_columnar(tmp_path))
    if len(prefix) > 95 or not prefix.isascii():
        return
    whole = path.stat().st_size
    for names, size in (([f"{prefix}{number}.txt" for number in (7, 1, 2)], 100), (["0.txt", "1.txt", "2.txt"], 101)):
        write_tar(path, names, size, format)
        assert path.stat().st_size == whole
        with pytest.raises(StaleIndexError, match=r"s\.tar: was indexed with \S*0\.txt of 100 bytes @ \d+, but"):
            check_shards(open_folder(tmp_path), open_columnar(tmp_path))


def extended(kind: bytes, extension: bytes, name: str, size: int) -> bytes:
    """A member of 12 bytes behind an extension header."""
    described = tarfile.TarInfo("PaxHeader/x")
    described.type, described.size = kind, len(extension)
    header = tarfile.TarInfo(name)
    header.size = size
    return b"".join(
        [
            described.tobuf(tarfile.USTAR_FORMAT) + extension.ljust(512, b"\0"),
            header.tobuf(tarfile.USTAR_FORMAT) + b"hello world\n".ljust(512, b"\0"),
        ]
    )


PLAIN = extended(tarfile.XHDTYPE, b"11 mtime=1\n", "z.txt", 12)


@pytest.mark.parametrize(
    "member",
    [
        extended(tarfile.XHDTYPE, b"14 path=a.txt\n", "other.txt", 12),
        extended(tarfile.XHDTYPE, b"11 size=12\n", "a.txt", 0),
        extended(b"X", b"14 path=a.txt\n11 size=12\n", "other.txt", 7),
        extended(tarfile.GNUTYPE_LONGNAME, b"a.txt\0", "other.txt", 12),
    ],
)
@pytest.mark.parametrize("remote", [False, True])
def test_extension_headers_override_what_a_header_could_hold(
    tmp_path: Path, bucket: Bucket, member: bytes, remote: bool
) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(member + PLAIN + bytes(1024))
    with tarfile.open(path) as tar:
        assert [(each.name, each.size) for each in tar] == [("a.txt", 12), ("z.txt", 12)]
    (bare,) = list(WebDatasetSource(open_tars(str(path))).read(np.array([0])))
    prepare_dataset(tmp_path, split_ratio=[1, 0, 0], crude=True)
    (prepared,) = list(WebDatasetSource(bucket.upload(tmp_path) if remote else tmp_path).read(np.array([0])))
    assert (bare.key, bare.parts) == (prepared.key, prepared.parts) == ("a", {"txt": b"hello world\n"})
    for other in (PLAIN, member.replace(b"a.txt", b"b.txt").replace(b"size=12", b"size=11")):
        path.write_bytes(other + PLAIN + bytes(1024))
        with pytest.raises(
            StaleIndexError, match=r"x\.tar: was indexed with a\.txt of 12 bytes @ 1536, but its header differs"
        ):
            WebDatasetSource(bucket.upload(tmp_path) if remote else tmp_path).read(np.array([0]))


@pytest.mark.parametrize("remote", [False, True])
def test_another_shard_of_the_same_size_is_no_garbage(tmp_path: Path, bucket: Bucket, remote: bool) -> None:
    for number in range(2):
        samples = ({"__key__": f"{number}{i}", "txt": b"x" * 6000} for i in range(30))
        write_tars(tmp_path / str(number), samples, shards=1, name="s{}.tar")
    prepare_dataset(tmp_path / "0", split_ratio=[1, 0, 0], crude=True)
    shutil.copy(tmp_path / "1" / "s0.tar", tmp_path / "0" / "s0.tar")
    place = bucket.upload(tmp_path / "0") if remote else tmp_path / "0"
    source = WebDatasetSource(place)
    with pytest.raises(StaleIndexError, match=r"s0\.tar: was indexed with 00\.txt of 6000 bytes"):
        source.read(np.array([17]))


def write_tar(path: Path, names: list[str], size: int, format: int) -> None:
    with tarfile.open(path, "w", format=format) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(b"x" * size))


N = 3000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(make_text_dataset(tmp_path / "data", n=N, shards=3))


def put(
    root: Path, content_id: str | None = None, *, fill: bool = False, version: int = 1, **columns: np.ndarray
) -> None:
    staging = new_staging_folder(root)
    stage = ColumnStage(ColumnFolder.of(open_folder(root)), columnar_folder(staging))
    for name, values in columns.items():
        writer = stage.new(name.replace("__", "."), values.dtype, function="tests:measure", version=version)
        for piece in np.array_split(values, 3):
            writer.append(piece)
    put, remove = stage.finish(content_id or open_columnar(root).content_id, fill=fill)
    ColumnFolder.of(open_folder(root)).put_in_place(columnar_folder(staging), put=put, remove=remove)
    shutil.rmtree(root / ".nv-meta/.prepare")


def file_of(root: Path, name: str) -> Path:
    return columnar_folder(root) / "columns" / ColumnFolder.of(open_folder(root)).read()[name].file


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "uint8"])
def test_numbers_come_back_as_they_are(root: Path, dtype: str) -> None:
    values = np.arange(N).astype(dtype)
    put(root, tokens=values, odd__name=values[::-1].copy())
    columns = open_columns(root)
    assert columns["tokens"].dtype == dtype
    assert np.array_equal(columns["tokens"], values)
    assert np.array_equal(columns["odd.name"], values[::-1])
    assert np.array_equal(np.concatenate([*columns.blocks("tokens")]), values)
    assert not columns["tokens"].flags.writeable
    assert (columns.stored["tokens"].function, columns.stored["tokens"].version) == ("tests:measure", 1)
    assert [*columns] == ["bytes", "bytes.txt", "bytes.json", "tokens", "odd.name"]
    assert "tokens" in columns
    assert "gone" not in columns


def test_sizes_of_parts_need_no_file(root: Path) -> None:
    index, columns = open_columnar(root), open_columns(root)
    sizes = index.part_size.reshape(N, 2)
    assert np.array_equal(columns["bytes"], sizes.sum(axis=1))
    assert [columns[f"bytes.{part}"].tolist() for part in index.part_names] == sizes.T.tolist()
    with pytest.raises(KeyNotFoundError, match="no part"):
        columns["bytes.jpg"]


def test_a_column_is_replaced_at_once(root: Path) -> None:
    put(root, tokens=np.zeros(N), score=np.ones(N))
    held = open_columns(root)["tokens"]
    put(root, tokens=np.full(N, 2.0))
    assert not held.any()  # who has it open goes on with the old one
    columns = open_columns(root)
    assert (columns["tokens"][0], columns["score"][0]) == (2.0, 1.0)
    assert len([*(columnar_folder(root) / "columns").iterdir()]) == 2


def test_what_is_missing_is_filled_from_the_same_function(root: Path) -> None:
    first, second = np.arange(N, dtype=np.float64), np.full(N, np.nan)
    first[7], second[:5] = np.nan, -1
    put(root, tokens=first)
    put(root, fill=True, tokens=second)
    expected = np.where(np.isnan(second), first, second)
    assert np.array_equal(open_columns(root)["tokens"], expected, equal_nan=True)
    put(root, fill=True, version=2, tokens=second)
    assert np.array_equal(open_columns(root)["tokens"], second, equal_nan=True)


@pytest.mark.parametrize("damage", [lambda path: _flip(path), Path.unlink])
def test_what_is_damaged_fills_nothing(
    root: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """Making a column again is the way out, and gives nobody's numbers a new checksum."""
    values = np.where(np.arange(N) % 2, np.nan, 1.0)
    put(root, tokens=np.arange(N, dtype=np.float64))
    damage(file_of(root, "tokens"))
    put(root, fill=True, tokens=values)
    assert np.array_equal(open_columns(root)["tokens"], values, equal_nan=True)
    assert "the existing numbers of a column are not reused" in caplog.text


def test_columns_of_other_samples_are_not_given_out(root: Path) -> None:
    put(root, "0" * 32, tokens=np.zeros(N))
    columns = open_columns(root)
    assert columns.stale == ("tokens",)
    assert "tokens" not in columns
    with pytest.raises(
        KeyNotFoundError,
        match=r"belongs to other samples; create it again: .* --column tokens=tests:measure`",
    ):
        columns["tokens"]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_flip, "checksum mismatch"),
        (lambda path: path.write_bytes(path.read_bytes()[:-8]), "cannot be opened"),
        (Path.unlink, "cannot be opened"),
    ],
)
def test_damage_is_named(root: Path, damage: Callable[[Path], object], said: str) -> None:
    put(root, tokens=np.arange(N), score=np.ones(N))
    path = file_of(root, "tokens")
    damage(path)
    columns = open_columns(root)
    with pytest.raises(IndexFileError, match=said) as caught:
        columns["tokens"]
    assert path.name in str(caught.value)
    assert "create the column 'tokens' again: `energon-grain measure" in str(caught.value)
    assert columns["score"].all()


def test_the_file_that_names_them_is_checked(root: Path) -> None:
    put(root, tokens=np.arange(N))
    path = columnar_folder(root) / "columns.json"
    text = path.read_text()
    for damaged, said in [
        (text.replace("tests:measure", "tests:another"), "checksum mismatch"),
        (text[:-20], "columns.json: "),
        (json.dumps({**json.loads(text), "version": 9}), "has version 9"),
        (text.replace('"file":"', '"file":"../'), "columns.json: "),
    ]:
        path.write_text(damaged)
        with pytest.raises(IndexFileError, match=said):
            open_columns(root)
