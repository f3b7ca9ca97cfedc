"""Shards that changed after they were indexed are refused, with the command that mends it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from object_server import Bucket

from energon_grain import WebDatasetSource
from energon_grain.errors import IndexFileError, MissingObjectError, ReadError, StaleIndexError
from energon_grain.formats.columnar_header import HEADER_NAME, columnar_folder
from energon_grain.formats.nv_meta import read_info
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_blob_dataset, write_tars


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """12 blobs of 40 kB in 3 shards: none small enough to be read with its neighbours."""
    return make_blob_dataset(tmp_path / "blobs", n=12, shards=3, sample_bytes=40_000)


def read_all(source: WebDatasetSource) -> list[bytes]:
    return [raw.parts["bin"] for raw in source.read(np.arange(len(source)))]


def longer(shard: Path) -> None:
    with open(shard, "ab") as file:
        file.write(bytes(512))


def overwritten_end(shard: Path) -> None:
    """Same size, but data where the archive ended: somebody appended a sample over the padding."""
    with open(shard, "r+b") as file:
        file.seek(4 * (512 + 40_448))
        assert file.read(512) == bytes(512)
        file.seek(-512, os.SEEK_CUR)
        file.write(b"more.bin".ljust(512, b"\0"))


def shorter(shard: Path) -> None:
    os.truncate(shard, shard.stat().st_size // 2)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (longer, "was indexed .* it has"),
        (shorter, "ends at byte"),
        (overwritten_end, "was indexed .* there is data at its end marker @ 163840"),
    ],
)
def test_a_changed_shard(dataset: Path, change: Callable[[Path], None], found: str) -> None:
    shard = dataset / "shard_001.tar"
    change(shard)
    source = WebDatasetSource(dataset)
    assert len(source.read(np.arange(4))) == 4, "other shards are none of its business"
    for _ in range(2):
        with pytest.raises(StaleIndexError, match=rf"shard_001\.tar {found}.*`energon-grain prepare "):
            source.read(np.array([5]))


def test_the_command_mends_it(dataset: Path) -> None:
    write_tars(dataset, [{"__key__": f"new{i}", "bin": b"new"} for i in range(4)], name="shard_001.tar")
    with pytest.raises(StaleIndexError, match=rf"`energon-grain prepare {dataset} --tar-index-only`"):
        read_all(WebDatasetSource(dataset))
    prepare_dataset(dataset, tar_index_only=True, num_workers=0)
    assert read_all(WebDatasetSource(dataset))[4:8] == [b"new"] * 4


def test_a_missing_shard(dataset: Path) -> None:
    (dataset / "shard_002.tar").unlink()
    with pytest.raises(ReadError, match=r"cannot open .*shard_002\.tar: No such file.*put it back, or leave it out by"):
        read_all(WebDatasetSource(dataset))


def test_a_missing_shard_in_a_store(dataset: Path, bucket: Bucket) -> None:
    url = bucket.upload(dataset, "set")
    bucket.delete("set/shard_002.tar")
    advice = rf"put it back, or leave it out by `energon-grain prepare {url} --force-overwrite`$"
    with pytest.raises(MissingObjectError, match=rf"{url}/shard_002\.tar: there is no such object; .*{advice}"):
        read_all(WebDatasetSource(url))


def test_a_copy_of_a_source_has_its_samples_or_is_an_error(dataset: Path) -> None:
    """A worker process that starts late must not read what was prepared since, under the cursor of what was before."""
    source = WebDatasetSource(dataset, start=2)
    pickled = pickle.dumps(source)
    assert read_all(pickle.loads(pickled)) == read_all(source)
    make_blob_dataset(dataset, n=12, shards=3, sample_bytes=40_001)
    with pytest.raises(StaleIndexError, match=rf"{dataset}: was prepared anew since this process's parent opened it"):
        pickle.loads(pickled)


def test_a_shard_that_shrinks_while_it_is_read(dataset: Path) -> None:
    source = WebDatasetSource(dataset)
    read_all(source)
    os.truncate(dataset / "shard_000.tar", 50_000)
    with pytest.raises(StaleIndexError, match=r"shard_000\.tar: was changed while it was read"):
        source.read(np.array([0]))
    with pytest.raises(ReadError, match=r"shard_000\.tar ends at byte 50000, but bytes \d+ to \d+ were asked for"):
        source.read(np.array([1]))


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"version": 1, "generation": "\xff"}', b"[]", b"null"])
def test_a_damaged_header(dataset: Path, damage: bytes) -> None:
    path = columnar_folder(dataset) / HEADER_NAME
    path.write_bytes(damage)
    with pytest.raises(IndexFileError, match=rf"^{path}: .*--force-overwrite"):
        WebDatasetSource(dataset)


@pytest.mark.parametrize("name", [".info.json", "header.json"])
def test_no_byte_of_a_json_file_can_break_more_than_that(dataset: Path, name: str) -> None:
    """Whatever single byte is damaged: either the samples as before, or one of our errors."""
    path = columnar_folder(dataset) / name if name == HEADER_NAME else dataset / ".nv-meta" / name
    good, expected = path.read_bytes(), read_all(WebDatasetSource(dataset))
    rng = np.random.default_rng(0)
    refused = 0
    for at in range(0, len(good), 3):
        bad = bytearray(good)
        bad[at] = rng.choice([0x00, 0x22, 0x30, 0x39, 0x5C, 0x7B, 0x80, 0xFF])
        path.write_bytes(bad)
        try:
            assert read_all(WebDatasetSource(dataset)) == expected
        except (IndexFileError, ReadError):
            refused += 1
        path.write_bytes(good)
    assert refused


def test_part_names_and_keys_that_are_not_utf8(tmp_path: Path) -> None:
    write_tars(tmp_path, [{"__key__": os.fsdecode(b"k\xff"), os.fsdecode(b"t\xfct"): b"payload"}], name="shärd.tar")
    for _ in range(2):
        source = WebDatasetSource(prepare(tmp_path))
        (raw,) = source.read(np.array([0]))
        assert (os.fsencode(raw.key), raw.shard) == (b"k\xff", "shärd.tar")
        assert {os.fsencode(name): data for name, data in raw.parts.items()} == {b"t\xfct": b"payload"}
        assert read_info(tmp_path).shard_counts == {"shärd.tar": 1}


def prepare(root: Path) -> Path:
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False, force_overwrite=True)
    return root
