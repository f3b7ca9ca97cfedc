"""The columnar index: round trips, lookups, damage, and what happens to its files while it is read."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from columnar_cases import Sample, check_contents, shards_of, write_dataset
from hypothesis import given, settings, strategies as st
from made_scans import scan_of

from energon_grain.errors import IndexFileError
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.columnar_build import write_columnar
from energon_grain.formats.columnar_header import columnar_folder, read_header
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
