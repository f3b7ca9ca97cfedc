"""The columnar index: round trips, lookups, damage, and what happens to its files while it is read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from columnar_cases import Sample, check_contents, shards_of, write_dataset
from hypothesis import given, settings, strategies as st
from made_scans import scan_of

from energon_grain.errors import IndexFileError
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.columnar_build import write_columnar
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
    read_column,
    read_header,
)
from energon_grain.formats.nv_meta import DatasetInfo, write_info

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
        damaged = pytest.raises(IndexFileError, match=rf"c\.npy: bytes of block {block} .*; mend it")
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
    return BlockSums(path, column, **known, where="c.npy", mending="mend it", **options)


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
