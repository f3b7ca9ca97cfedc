from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from energon_grain.errors import IndexFileError
from energon_grain.formats.tar.index import read_tar_index, tar_index_path, write_tar_index


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


def test_writes_the_bytes_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.idx"
    starts = [1536, 4096, 7680, 9728, 10752, 12800]
    write_tar_index(path, np.array(starts, np.int64))
    assert path.read_bytes() == struct.pack("<6Q", *starts)
    assert read_tar_index(path).tolist() == starts
    assert read_tar_index(path).dtype == np.int64
    write_tar_index(path, np.array([0], np.int64))
    assert read_tar_index(path).tolist() == [0]


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


def test_refuses_to_write_nonsense(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.idx"
    for starts in ([], [512, 0], [3]):
        with pytest.raises(IndexFileError):
            write_tar_index(path, np.array(starts, np.int64))
    assert not path.exists()
