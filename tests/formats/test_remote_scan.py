"""Shards in an object store: the same scans and the same errors as of files, from a few of their bytes."""

from __future__ import annotations

import dataclasses
import io
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from object_server import Bucket

from energon_grain import WebDatasetSource
from energon_grain.errors import ReadError, TarError
from energon_grain.formats.tar.scan import scan_tar
from energon_grain.testing import make_text_dataset


def make_tar(path: Path, members: Sequence[tuple[str, int]], kind: int = tarfile.USTAR_FORMAT) -> bytes:
    with tarfile.open(path, "w", format=kind) as tar:
        for number, (name, size) in enumerate(members):
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(np.random.default_rng(number).bytes(size)))
    return path.read_bytes()


def assert_same_scan(bucket: Bucket, path: Path, *, keep: bool = False) -> None:
    bucket.put(path.name, path.read_bytes())
    bucket.server.reset()
    local, remote = scan_tar(path), scan_tar(f"{bucket.url}/{path.name}", keep=keep)
    for field in dataclasses.fields(local):
        one, other = getattr(local, field.name), getattr(remote, field.name)
        if field.name == "generation":
            assert (one, bool(other)) == (b"", True)
        else:
            assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


@pytest.mark.parametrize(
    "members",
    [
        [(f"{i:05d}.{part}", size) for i in range(3000) for part, size in (("jpg", 3000), ("txt", 30))],
        [(f"{i:05d}.{part}", size) for i in range(40) for part, size in (("mp4", 400_000), ("json", 300))],
        [(f"{'long/' * 40}{i:05d}.jpg", 100 * i) for i in range(300)],
        [(f"{i}.bin", 50_000 if i < 100 else 700_000) for i in range(120)],
        [("0.txt", 0)],
    ],
    ids=["small", "large", "long names", "first small, then large", "one"],
)
@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_scans_are_those_of_files(bucket: Bucket, tmp_path: Path, members: list[tuple[str, int]], kind: int) -> None:
    make_tar(tmp_path / "a.tar", members, kind)
    assert_same_scan(bucket, tmp_path / "a.tar")
    assert_same_scan(bucket, tmp_path / "a.tar", keep=True)


def test_what_is_read_in_passing_is_not_fetched_again(bucket: Bucket, tmp_path: Path) -> None:
    """The first opening of a dataset without a columnar index, and then its first pass."""
    root = make_text_dataset(tmp_path / "texts", n=300, shards=2, text_bytes=20_000)
    shutil.rmtree(root / ".nv-meta" / "columnar")
    size = sum(path.stat().st_size for path in root.glob("*.tar"))
    url = bucket.upload(root, "texts")
    bucket.server.reset()
    source = WebDatasetSource(url)
    assert len(source.read(np.arange(300)).keys) == 300
    assert sum(request.sent_bytes for request in bucket.server.requests(".tar")) < 1.02 * size


def test_of_large_members_only_headers_are_fetched(bucket: Bucket, tmp_path: Path) -> None:
    members = [(f"{i:03d}.{part}", size) for i in range(60) for part, size in (("jpg", 1_000_000), ("json", 200))]
    content = make_tar(tmp_path / "a.tar", members)
    assert_same_scan(bucket, tmp_path / "a.tar")
    requests = bucket.server.requests("a.tar")
    assert sum(request.sent_bytes for request in requests) < 0.05 * len(content)
    assert len(requests) < 70


def test_small_members_are_fetched_in_large_pieces(bucket: Bucket, tmp_path: Path) -> None:
    content = make_tar(tmp_path / "a.tar", [(f"{i:05d}.jpg", 20_000) for i in range(1000)])
    assert_same_scan(bucket, tmp_path / "a.tar")
    requests = bucket.server.requests("a.tar")
    assert sum(request.sent_bytes for request in requests) < 1.05 * len(content)
    assert len(requests) < 16


def test_damage_is_named_with_the_url(bucket: Bucket, tmp_path: Path) -> None:
    content = make_tar(tmp_path / "a.tar", [(f"{i:03d}.jpg", 300_000) for i in range(10)])
    url = f"{bucket.url}/a.tar"
    for damaged, message in (
        (content[: len(content) // 2], rf"{url}: 00\d\.jpg @ \d+: the file is truncated"),
        (content[:300_544] + b"!" * 512 + content[301_056:], rf"{url}: @ 300544: no valid tar header"),
        (b"", rf"{url}: @ 0: the file is empty"),
        (b"\x1f\x8b" + bytes(1000), rf"{url}: @ 0: the file is compressed with gzip"),
    ):
        bucket.put("a.tar", damaged)
        with pytest.raises(TarError, match=message):
            scan_tar(url)
    with pytest.raises(ReadError, match="no such object"):
        scan_tar(f"{bucket.url}/none.tar")
