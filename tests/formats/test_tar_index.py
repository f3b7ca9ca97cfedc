from __future__ import annotations

import io
import shutil
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from object_server import Bucket

from energon_grain import WebDatasetSource
from energon_grain.errors import IndexFileError, StaleIndexError
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.tar.index import check_shards, read_tar_index, tar_index_path
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars


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
        (struct.pack("<2Q", 0, 1000), "@ 8: offset 1 is 1000; offsets are multiples of 512"),
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
        with pytest.raises(StaleIndexError, match=r"s\.tar was indexed with \S*0\.txt of 100 bytes @ \d+, but"):
            check_shards(open_folder(tmp_path), open_columnar(tmp_path))


@pytest.mark.parametrize("remote", [False, True])
def test_another_shard_of_the_same_size_is_no_garbage(tmp_path: Path, bucket: Bucket, remote: bool) -> None:
    for number in range(2):
        samples = ({"__key__": f"{number}{i}", "txt": b"x" * 6000} for i in range(30))
        write_tars(tmp_path / str(number), samples, shards=1, name="s{}.tar")
    prepare_dataset(tmp_path / "0", split_ratio=[1, 0, 0], crude=True)
    shutil.copy(tmp_path / "1" / "s0.tar", tmp_path / "0" / "s0.tar")
    place = bucket.upload(tmp_path / "0") if remote else tmp_path / "0"
    source = WebDatasetSource(place)
    with pytest.raises(StaleIndexError, match=r"s0\.tar was indexed with 00\.txt of 6000 bytes"):
        source.read(np.array([17]))


def write_tar(path: Path, names: list[str], size: int, format: int) -> None:
    with tarfile.open(path, "w", format=format) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(b"x" * size))
