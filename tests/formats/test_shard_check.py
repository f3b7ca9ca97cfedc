"""Shards that are not the files any more that were indexed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from energon_grain.errors import ReadError, StaleIndexError
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.shard_check import check_shards
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars


def test_changed_and_missing_shards_are_found(tmp_path: Path) -> None:
    write_tars(tmp_path, ({"__key__": str(i), "txt": b"x" * 100 * i} for i in range(10)), shards=2, name="s{}.tar")
    prepare_dataset(tmp_path, split_ratio=[1, 0, 0])
    folder, index = open_folder(tmp_path), open_columnar(tmp_path)
    check_shards(folder, index)
    path = tmp_path / "s1.tar"
    size, whole = path.stat().st_size, path.read_bytes()

    path.write_bytes(whole + bytes(512))
    check_shards(open_folder(tmp_path), index, [0])
    with pytest.raises(StaleIndexError, match=rf"s1\.tar was indexed with {size} bytes .* has {size + 512} bytes"):
        check_shards(open_folder(tmp_path), index)

    path.write_bytes(whole[: size // 4])
    with pytest.raises(StaleIndexError, match=r"s1\.tar ends at byte \d+, .* run `energon-grain prepare"):
        check_shards(open_folder(tmp_path), index)

    path.write_bytes(b"x" * size)
    with pytest.raises(StaleIndexError, match=r"s1\.tar was indexed .* data at its end marker @ \d+"):
        check_shards(open_folder(tmp_path), index)

    os.unlink(path)
    with pytest.raises(ReadError, match=r"s1\.tar"):
        check_shards(open_folder(tmp_path), index)
