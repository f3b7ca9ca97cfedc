"""What a scan refuses, and what it says; and shards in a store: the same, from a few of their bytes."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import io
import lzma
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from object_server import Bucket

from energon_grain import WebDatasetSource
from energon_grain.errors import ReadError, TarError
from energon_grain.formats.tar.scan import scan_tar
from energon_grain.formats.tar.walk import Strategy
from energon_grain.testing import make_text_dataset

STRATEGIES: tuple[Strategy, ...] = ("auto", "grid", "hops")


def member(name: str, size: int = 10, format: int = tarfile.GNU_FORMAT, **fields: object) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    for field, value in fields.items():
        setattr(info, field, value)
    data = b"x" * size if info.isreg() or info.type in b"xgLKS" else b""
    return info.tobuf(format) + data + bytes(-len(data) % 512)


PLAIN = b"".join(member(f"{i:05d}.txt", 100) for i in range(3))  # 3 KiB
END = bytes(1024)


def patched(block: bytes, at: int, field: bytes) -> bytes:
    header = bytearray(block[:512])
    header[at : at + len(field)] = field
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + block[512:]


def pax(records: bytes, type: bytes = b"x") -> bytes:
    info = tarfile.TarInfo("pax")
    info.type, info.size = type, len(records)
    return info.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512)


def record(keyword: str, value: str) -> bytes:
    body = f" {keyword}={value}\n".encode()
    length = len(body) + 2
    return b"%d" % length + body if length < 100 else b"%d" % (length + 1) + body


def refusal(tmp_path: Path, data: bytes) -> str:
    """The message with which every strategy refuses a file."""
    path = tmp_path / "shard.tar"
    path.write_bytes(data)
    messages: list[str] = []
    for strategy in STRATEGIES:
        with pytest.raises(TarError) as caught:
            scan_tar(path, strategy=strategy)
        messages.append(str(caught.value))
    assert len(set(messages)) == 1
    assert messages[0].startswith(f"{path}: ")
    return messages[0].removeprefix(f"{path}: ")


def zstd(data: bytes) -> bytes:
    return b"\x28\xb5\x2f\xfd" + data


@pytest.mark.parametrize(
    ("compress", "name"), [(gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz"), (zstd, "zstd")]
)
def test_compressed_tars(tmp_path: Path, compress: Callable[[bytes], bytes], name: str) -> None:
    assert refusal(tmp_path, compress(PLAIN + END)).startswith(f"@ 0: the file is compressed with {name}. Samples")


def test_a_first_member_may_look_compressed(tmp_path: Path) -> None:
    (tmp_path / "shard.tar").write_bytes(member("BZh.txt") + END)
    assert scan_tar(tmp_path / "shard.tar").keys() == ["BZh"]


HARD_LINK = member("b.jpg", 0, type=tarfile.LNKTYPE, linkname="a.jpg")
SIZE = 124


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(b"", "@ 0: the file is empty", id="empty"),
        pytest.param(b"not a tar" * 200, "@ 0: no valid tar header", id="no tar"),
        pytest.param(b"short", "@ 0: the file is truncated", id="shorter than a header"),
        pytest.param(PLAIN, "@ 3072: the end-of-archive marker is missing.*append two zero blocks", id="no end"),
        pytest.param(PLAIN + bytes(100), "@ 3072: the end-of-archive marker is missing", id="part of an end"),
        pytest.param(PLAIN[:-300], "00002.txt @ 2048: the file is truncated.*ends at 2772", id="cut in padding"),
        pytest.param(PLAIN[:2600], "00002.txt @ 2048: the file is truncated.*100 bytes", id="cut in payload"),
        pytest.param(PLAIN[:2300], "@ 2048: the file is truncated.*512 bytes must be here", id="cut in header"),
        pytest.param(PLAIN + b"\1" + END[1:], "@ 3072: no valid tar header", id="garbage"),
        pytest.param(PLAIN[:1030] + b"?" + PLAIN[1031:] + END, "@ 1024: no valid tar header", id="checksum"),
        pytest.param(PLAIN + END + PLAIN + END, "@ 4096: data after the end.* at 3072.*--concatenate", id="joined"),
        pytest.param(
            PLAIN[:1024] + bytes(512) + PLAIN[1536:] + END, "@ 1536: data after the end.* at 1024", id="zeroed header"
        ),
        pytest.param(
            PLAIN + patched(member("n.txt"), SIZE, b"\xff" * 12) + END,
            "n.txt @ 3072: .*impossible size of -1 ",
            id="negative",
        ),
        pytest.param(
            PLAIN + patched(member("n.txt"), SIZE, b"-0000000012\0") + END, "n.txt @ 3072: the size field", id="minus"
        ),
        pytest.param(
            PLAIN + patched(member("n.txt"), SIZE, b"\x80\0\0\0\x7f" + b"\xff" * 7) + END,
            "n.txt @ 3072: .*impossible size",
            id="absurd",
        ),
        pytest.param(
            PLAIN + patched(member("n.txt"), SIZE, b"77777777777\0") + END,
            "n.txt @ 3072: the file is truncated, or a header claims an absurd size.*8589934591 bytes",
            id="too large",
        ),
        pytest.param(
            PLAIN + HARD_LINK + END, "b.jpg @ 3072: a hard link to a.jpg: its content lies elsewhere", id="link"
        ),
        pytest.param(
            member("b.jpg", 0, tarfile.GNU_FORMAT, type=tarfile.LNKTYPE, linkname="a" * 150 + ".jpg") + END,
            "b.jpg @ 1024: a hard link to aaa",
            id="link to a long name",
        ),
        pytest.param(
            PLAIN + patched(member("s.txt"), 156, b"S") + END, "s.txt @ 3072: a sparse member", id="GNU sparse"
        ),
        pytest.param(
            PLAIN + pax(record("GNU.sparse.major", "1")) + member("s.txt") + END,
            "s.txt @ 4096: a sparse",
            id="PAX sparse",
        ),
        pytest.param(PLAIN + patched(member("m.txt"), 156, b"M") + END, "m.txt @ 3072: .*another volume", id="volume"),
        pytest.param(
            PLAIN + pax(record("path", "p.txt")) + END, "@ 4096: an extension header without a", id="PAX alone"
        ),
        pytest.param(PLAIN + pax(b"9999 path=a\n") + member("a.txt") + END, "@ 3072: byte 0 of a PAX", id="PAX record"),
        pytest.param(PLAIN + pax(b"0 path=a\n") + member("a.txt") + END, "@ 3072: byte 0 of a PAX", id="PAX zero"),
        pytest.param(PLAIN + pax(record("size", "-5")) + member("a.txt") + END, "@ 3072: .*size b'-5'", id="PAX size"),
        pytest.param(
            PLAIN + pax(record("size", "99999999999")) + member("a.txt") + END,
            "a.txt @ 4096: the file is",
            id="PAX huge",
        ),
        pytest.param(PLAIN + pax(record("path", "a\0b")) + member("a.txt") + END, "@ 3072: .*zero byte", id="PAX name"),
        pytest.param(PLAIN + pax(record("path", "p.txt"), b"g") + PLAIN + END, "@ 3072: a global PAX", id="PAX global"),
        pytest.param(
            PLAIN + pax(b"x" * (2 << 20)) + END, "@ 3072: an extension header of 2097152 bytes", id="PAX too long"
        ),
        pytest.param(
            PLAIN + pax(record("comment", "c")) * 100 + PLAIN + END, ".*more than 64 extension headers", id="PAX chain"
        ),
        pytest.param(
            PLAIN + patched(member("i.txt"), 345, b"14123456701\0") + END,
            "@ 3072: bytes in the place",
            id="incremental",
        ),
        pytest.param(  # the first defect of the file is the one that is told
            PLAIN[:1030] + b"?" + PLAIN[1031:] + HARD_LINK, "@ 1024: no valid tar header", id="two defects"
        ),
    ],
)
def test_refuses(tmp_path: Path, damage: bytes, message: str) -> None:
    for before in (b"", b"".join(member(f"k{i:04d}.txt", 0) for i in range(300))):  # in the first batch, and later
        if before and message.startswith("@ 0"):
            continue
        shift = len(before)
        shifted = re.sub(r"(@ |at |ends at )(\d+)", lambda m, shift=shift: f"{m[1]}{int(m[2]) + shift}", message)
        assert re.match(shifted, refusal(tmp_path, before + damage)), refusal(tmp_path, before + damage)


def test_what_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        scan_tar(tmp_path / "none.tar")
    with pytest.raises(IsADirectoryError):
        scan_tar(tmp_path)
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(TarError, match="not a regular file"):
        scan_tar(tmp_path / "pipe.tar")


def test_leaves_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for data in (b"", PLAIN, PLAIN + END):
        (tmp_path / "shard.tar").write_bytes(data)
        try:
            scan_tar(tmp_path / "shard.tar")
        except TarError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_way_out_of_a_missing_end_works(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(PLAIN)
    with pytest.raises(TarError, match=r"truncate -s 4096 ") as caught:
        scan_tar(path)
    size = re.search(r"truncate -s (\d+)", str(caught.value))
    assert size is not None
    os.truncate(path, int(size[1]))
    assert len(scan_tar(path)) == 3


def test_links_folders_and_devices_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    others = b"".join(
        patched(member(f"o{kind}.txt", 0, type=kind.encode(), linkname="a.txt"), SIZE, b"00000001000\0")
        for kind in ("2", "3", "4", "5", "6")
    )
    unknown = patched(member("v.txt"), 156, b"V")
    path.write_bytes(PLAIN + others + unknown + patched(member("old.txt"), 156, b"\0") + END)
    for strategy in STRATEGIES:
        assert scan_tar(path, strategy=strategy).keys() == ["00000", "00001", "00002", "old"]


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
