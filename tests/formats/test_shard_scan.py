"""Scans of tars: `tarfile` is the oracle; what a scan refuses and says; shards in a store, from few bytes."""

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
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from object_server import Bucket

from energon_grain import WebDatasetSource
from energon_grain.errors import ReadError, TarError
from energon_grain.formats.scan import ShardScan
from energon_grain.kinds.tar.header import checksum_holds, first_bad_checksum, parse_number, read_sizes
from energon_grain.kinds.tar.names import Hidden, part_dot, part_dots, split_member_name
from energon_grain.kinds.tar.scan import scan_tar
from energon_grain.kinds.tar.walk import Strategy
from energon_grain.testing import make_text_dataset

Sample = tuple[int, str, list[tuple[str, int, int]]]
STRATEGIES: tuple[Strategy, ...] = ("auto", "grid", "hops")
FORMATS = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


class Archive(bytes):
    """The bytes of a tar, shown compressed when a test fails."""

    def __repr__(self) -> str:
        return f"Archive(zlib.decompress({zlib.compress(self)!r}))"


def expected(path: Path, hidden: Hidden = "skip") -> tuple[list[Sample], int]:
    """What `tarfile` finds: samples as (start, key, parts as (name, offset, size)), and the end."""
    samples: list[Sample] = []
    with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
        for member in tar:
            split = split_member_name(member.name, hidden=hidden) if member.isreg() else None
            if split is None:
                continue
            if not samples or samples[-1][1] != split[0]:
                samples.append((member.offset, split[0], []))
            samples[-1][2].append((split[1], member.offset_data, member.size))
        return samples, tar.offset


def listed(scan: ShardScan) -> tuple[list[Sample], int]:
    """The same, of a scan; checks its shape on the way."""
    assert scan.sample_start.shape == scan.part_start.shape == scan.key_start.shape == (len(scan) + 1,)
    assert scan.part_start[0] == scan.key_start[0] == 0
    assert scan.part_start[-1] == len(scan.part_name) == len(scan.part_offset) == len(scan.part_size)
    assert len(set(scan.part_names)) == len(scan.part_names)
    assert [scan.key(i) for i in range(len(scan))] == scan.keys()
    names = [scan.part_names[i] for i in scan.part_name]
    assert list(dict.fromkeys(names)) == list(scan.part_names)
    parts = list(zip(names, scan.part_offset.tolist(), scan.part_size.tolist(), strict=True))
    starts = scan.sample_start.tolist()
    bounds = scan.part_start.tolist()
    samples = [(starts[i], scan.key(i), parts[bounds[i] : bounds[i + 1]]) for i in range(len(scan))]
    return samples, starts[-1]


def write(path: Path, members: list[tuple[str, int]], format: int = tarfile.USTAR_FORMAT, **fields: object) -> Path:
    with tarfile.open(path, "w", format=format, encoding="utf-8", errors="surrogateescape") as tar:
        for name, size in members:
            info = tarfile.TarInfo(name)
            info.size = size
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(bytes(i % 251 for i in range(size))))
    return path


@st.composite
def names(draw: st.DrawFn) -> str:
    folder = draw(
        st.sampled_from(["", "", "d/", "d.x/", "./", "__meta__/", "d/__m__/", "x" * 60 + "/" + "y" * 50 + "/", "ü/"])
    )
    stem = draw(
        st.sampled_from(["a", "b", "00", "", "_", "__x__", "日本", "k" * 90, "n" * 130]) | st.text("ab", max_size=9)
    )
    part = draw(
        st.sampled_from([".jpg", ".txt", ".seg.png", ".", "", "." + "p" * 30, ".json"]) | st.text(".ä/c", max_size=4)
    )
    return folder + stem + part


@st.composite
def tars(draw: st.DrawFn) -> Archive:
    """The bytes of a tar with members of all kinds that a scan accepts."""
    format = draw(FORMATS)
    buffer = io.BytesIO()
    members = draw(st.lists(names(), max_size=12))
    headers = {"comment": "x"} if members and format == tarfile.PAX_FORMAT and draw(st.booleans()) else None
    with tarfile.open(fileobj=buffer, mode="w", format=format, encoding="utf-8", pax_headers=headers) as tar:
        for name in members:
            info = tarfile.TarInfo(name)
            info.type = draw(
                st.sampled_from([tarfile.REGTYPE] * 8 + [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CONTTYPE])
            )
            if info.type == tarfile.SYMTYPE:
                info.linkname = draw(st.sampled_from(["a.jpg", "t" * 120]))
            elif info.type != tarfile.DIRTYPE:
                info.size = draw(st.sampled_from([0, 1, 511, 512, 513, 1536]) | st.integers(0, 3000))
            if format == tarfile.PAX_FORMAT:
                info.mtime = draw(st.sampled_from([0, 1.5]))
                info.pax_headers = draw(
                    st.sampled_from([{}, {}, {"SCHILY.xattr.a": "b\nc=d"}, {"size": str(info.size)}])
                )
            try:
                tar.addfile(info, io.BytesIO(b"ustar" * 1000))
            except ValueError:  # too long for ustar
                continue
    return Archive(buffer.getvalue())


@pytest.fixture(scope="module")
def tar_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tar") / "shard.tar"


@settings(max_examples=100)
@given(data=tars(), hidden=st.sampled_from(["skip", "keep"]))
def test_finds_what_tarfile_finds(tar_path: Path, data: Archive, hidden: Hidden) -> None:
    tar_path.write_bytes(data)
    for strategy in STRATEGIES:
        scan = scan_tar(tar_path, hidden=hidden, strategy=strategy)
        assert listed(scan) == expected(tar_path, hidden)
        assert scan.size_bytes == len(data)


def long_tars() -> Iterator[tuple[str, list[tuple[str, int]], int, dict[str, object]]]:
    """Enough members for many batches and for every change of strategy."""
    small = [(f"{i:07d}.{part}", size) for i in range(3000) for part, size in (("txt", 1000 + i % 700), ("json", 60))]
    yield "small", small, tarfile.USTAR_FORMAT, {}
    yield "numbers of all widths", [(f"d/{i}.{'seg.' * (i % 3)}png", i % 600) for i in range(5000)], 0, {}
    yield "each with a PAX header", small[:2000], tarfile.PAX_FORMAT, {"mtime": 1.5}
    yield "large", [(f"{i}.bin", 40_000) for i in range(80)], tarfile.USTAR_FORMAT, {}
    yield "small, large, small", small[:500] + [(f"l{i}.bin", 60_000) for i in range(60)] + small[500:900], 0, {}
    yield "larger than a run", [("a.bin", 5 << 20), *small[:100], ("b.bin", 1 << 20), *small[100:200]], 0, {}
    yield "a part name each", [(f"img.{i}.jpg", 10) for i in range(4000)], tarfile.GNU_FORMAT, {}
    long = [(f"{'x' * 120 if i % 50 == 0 else 'y'}{i}.txt", 30) for i in range(5000)]
    yield "long names now and then (GNU)", long, tarfile.GNU_FORMAT, {}
    yield "long names now and then (PAX)", long, tarfile.PAX_FORMAT, {}
    yield "prefixes", [(f"{'f' * 80}/{'g' * 40}/{i}.txt", 30) for i in range(3000)], tarfile.USTAR_FORMAT, {}
    yield "contiguous", small[:4000], tarfile.USTAR_FORMAT, {"type": tarfile.CONTTYPE}


@pytest.mark.parametrize(("members", "format", "fields"), [pytest.param(*rest, id=name) for name, *rest in long_tars()])
def test_long_tars(tmp_path: Path, members: list[tuple[str, int]], format: int, fields: dict[str, object]) -> None:
    path = write(tmp_path / "shard.tar", members, format, **fields)
    want = expected(path)
    for strategy in STRATEGIES:
        assert listed(scan_tar(path, strategy=strategy)) == want


def test_members_inside_members_do_not_count(tmp_path: Path) -> None:
    inner = write(tmp_path / "inner.tar", [(f"{i}.txt", 100) for i in range(40)]).read_bytes()
    path = tmp_path / "shard.tar"
    with tarfile.open(path, "w") as tar:
        for i in range(200):
            for name, data in ((f"{i}.tar", inner), (f"{i}.json", b"{}")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    for strategy in STRATEGIES:
        scan = scan_tar(path, strategy=strategy)
        assert listed(scan) == expected(path)
        assert len(scan) == 200


def test_the_example_of_the_reference(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        folder = tarfile.TarInfo("d.x")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name in ("__meta__/info.txt", "a.jpg", "a.txt", "a.jpg", "b.jpg", "a.jpg", "noext", "\N{SNOWMAN}.txt"):
            info = tarfile.TarInfo(name)
            info.size = 10
            tar.addfile(info, io.BytesIO(b"0123456789"))
    scan = scan_tar(path)
    assert scan.keys() == ["a", "b", "a", "\N{SNOWMAN}"]
    assert scan.sample_start.tolist() == [1536, 4608, 5632, 7680, 10240 - 512]
    assert scan.part_start.tolist() == [0, 3, 4, 5, 6]
    assert scan.part_names == ("jpg", "txt")
    assert scan.part_name.tolist() == [0, 1, 0, 0, 0, 1]
    with pytest.raises(IndexError):
        scan.key(4)


def test_a_tar_without_samples_is_fine(tmp_path: Path) -> None:
    path = write(tmp_path / "shard.tar", [])
    for strategy in STRATEGIES:
        scan = scan_tar(path, strategy=strategy)
        assert (len(scan), scan.sample_start.tolist(), scan.keys()) == (0, [0], [])


def test_sizes_in_base_256(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    huge = 9 << 30
    info = tarfile.TarInfo("a.bin")
    info.size = huge
    tail = write(tmp_path / "tail.tar", [("b.txt", 5)]).read_bytes()
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):  # base-256, and a PAX record with size 0 in the header
        with open(path, "wb") as file:  # a sparse file on disk: nine gibibytes that take no room
            head = info.tobuf(format)
            file.write(head)
            file.seek(len(head) + huge)
            file.write(tail)
        for strategy in STRATEGIES:
            scan = scan_tar(path, strategy=strategy)
            assert scan.part_size.tolist() == [huge, 5]
            assert scan.sample_start.tolist() == [0, len(head) + huge, len(head) + huge + 1024]
        path.unlink()


def with_checksum(block: bytearray) -> bytes:
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@st.composite
def damaged_tars(draw: st.DrawFn) -> Archive:
    data = bytearray(draw(tars()))
    blocks = len(data) // 512
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["byte", "header", "header", "zeros", "cut", "drop", "copy", "append"]))
        block = draw(st.integers(0, max(0, blocks - 1))) * 512
        if not data:
            break
        if kind == "byte":
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        elif kind == "header" and block + 512 <= len(data):  # with a right checksum: fields that have a meaning here
            header = data[block : block + 512]
            first, last = draw(st.sampled_from([(0, 99), (124, 135), (156, 156), (157, 263), (345, 499)]))
            new = draw(
                st.binary(min_size=1, max_size=12) | st.sampled_from([b"L", b"x", b"g", b"S", b"1", b"\x80", b"7"])
            )
            at = draw(st.integers(first, last))
            header[at : last + 1] = (new + bytes(header[at + len(new) : last + 1]))[: last + 1 - at]
            data[block : block + 512] = with_checksum(header)
        elif kind == "zeros":
            data[block : block + 512 * draw(st.integers(1, 4))] = bytes(512)
        elif kind == "cut":
            del data[draw(st.integers(0, len(data) - 1)) :]
        elif kind == "drop":
            del data[block : block + 512]
        elif kind == "copy":
            data[block:block] = data[: 512 * draw(st.integers(1, 4))]
        else:
            data += draw(st.binary(max_size=600))
    return Archive(data)


@settings(max_examples=250)
@given(data=damaged_tars())
def test_damage_is_an_error_or_does_not_matter(tar_path: Path, data: Archive) -> None:
    tar_path.write_bytes(data)
    outcomes: list[object] = []
    for strategy in STRATEGIES:
        try:
            outcomes.append(listed(scan_tar(tar_path, strategy=strategy)))
        except TarError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    if isinstance(outcomes[0], str):
        assert re.match(rf"{tar_path}: (.* )?@ \d+: ", outcomes[0], re.DOTALL)
        return
    try:
        found = expected(tar_path)
    except tarfile.ReadError:
        return  # it also reads fields that do not matter here: owners and times
    assert outcomes[0] == found


NAMES = st.text(st.sampled_from("a_./.b\n"), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jpg", ("a", "jpg")),
        ("a.b.jpg", ("a", "b.jpg")),
        ("d.x/a.b.c", ("d.x/a", "b.c")),
        ("./d/a.jpg", ("./d/a", "jpg")),
        ("a.", ("a", "")),
        ("/a.txt", ("/a", "txt")),
        ("ü/日本.jpg", ("ü/日本", "jpg")),
        ("\udcff.jpg", ("\udcff", "jpg")),
        ("noext", None),
        ("d/noext", None),
        (".hidden.jpg", None),
        ("d.x/.hidden.jpg", None),
        ("d/.hidden.jpg", None),
        ("__meta__/x.txt", None),
        ("__x__", None),
        ("____/x.txt", None),
        ("__x__.json", ("__x__", "json")),
        ("___/x.txt", ("___/x", "txt")),
        ("d/__meta__/x.txt", ("d/__meta__/x", "txt")),
        ("_x__/x.txt", ("_x__/x", "txt")),
    ],
)
def test_splits_names(name: str, expected: tuple[str, str] | None) -> None:
    assert split_member_name(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("d/.hidden.jpg", ("d/", "hidden.jpg")),
        ("x/y/.h.jpg", ("x/y/", "h.jpg")),
        ("x.z/y/.h.jpg", ("x.z/y/", "h.jpg")),
        ("a//.h.jpg", ("a//", "h.jpg")),
        (".hidden.jpg", None),
        ("d.x/.hidden.jpg", None),
        ("y/x.z/.h.jpg", None),
        ("./.h.jpg", None),
    ],
)
def test_keeps_hidden_files_as_energon_does(name: str, expected: tuple[str, str] | None) -> None:
    assert split_member_name(name, hidden="keep") == expected
    assert split_member_name(name, hidden="skip") is None


def energon_split(name: str) -> tuple[str, str] | None:
    """Energon's rule by brute force: a folder prefix on the first line, a stem without dots, a dot, no more slashes."""
    first, slash, _ = name.partition("/")
    for end in ("", "\n") if not slash else ("",):
        if first.endswith("__" + end) and first.startswith("__") and len(first) - len(end) >= 4:
            return None
    for dot in (i for i, letter in enumerate(name) if letter == "." and "/" not in name[i:]):
        for start in (i for i in range(dot) if i == 0 or (name[i - 1] == "/" and "\n" not in name[:i])):
            if "." not in name[start:dot]:
                return name[:dot], name[dot + 1 :]
    return None


@given(NAMES)
def test_keep_is_energons_rule_and_skip_is_it_without_hidden_files(name: str) -> None:
    kept = energon_split(name)
    hidden = name.rpartition("/")[2].startswith(".")
    assert split_member_name(name, hidden="keep") == kept
    assert split_member_name(name, hidden="skip") == (None if hidden else kept)


@given(st.lists(NAMES, min_size=1, max_size=20), st.sampled_from(["skip", "keep"]))
def test_many_names_at_once_are_split_as_one(names: list[str], hidden: Hidden) -> None:
    raw = [name.encode() for name in names]
    padded = np.zeros((len(raw), 16), np.uint8)
    for row, name in enumerate(raw):
        padded[row, : len(name)] = np.frombuffer(name, np.uint8)
    assert part_dots(padded, hidden).tolist() == [part_dot(name, hidden) for name in raw]


def header(name: str = "a.txt", size: int = 0, **fields: object) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def stack(blocks: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(blocks), np.uint8).reshape(-1, 512)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"00000001750\0", 1000),
        (b"    1750 \0\0\0", 1000),
        (b"1750\0garbage", 1000),
        (b"            ", 0),
        (b"777777777777", 8**12 - 1),
        (b"\x80" + (10**15).to_bytes(11, "big"), 10**15),
        (b"\xff" * 12, -1),
    ],
)
def test_reads_numbers(field: bytes, value: int) -> None:
    assert parse_number(field) == value


@pytest.mark.parametrize(
    "field", [b"00000000008\0", b"-0000000005\0", b"+0000000005\0", b"0_000000005\0", b"12 34\0      "]
)
def test_refuses_what_is_no_number(field: bytes) -> None:
    with pytest.raises(ValueError, match="octal"):
        parse_number(field)


@given(st.lists(st.integers(0, 8**12 - 1), min_size=1, max_size=20))
def test_reads_sizes_in_bulk(sizes: list[int]) -> None:
    plain = [size if size < 8**11 else -1 for size in sizes]
    assert read_sizes(stack([header(size=size) for size in sizes])).tolist() == plain


@given(st.binary(min_size=12, max_size=12) | st.text("01789 \0", min_size=12, max_size=12).map(str.encode))
def test_bulk_sizes_are_right_or_left_out(field: bytes) -> None:
    block = bytearray(header())
    block[124:136] = field
    (size,) = read_sizes(stack([bytes(block)])).tolist()
    assert size == -1 or size == parse_number(field)


@given(
    st.lists(st.tuples(st.text(max_size=20), st.integers(0, 8**11), st.integers(0, 8**7 - 1)), min_size=1, max_size=12),
    st.integers(0, 11),
    st.integers(0, 511),
    st.integers(0, 255),
)
def test_finds_the_first_bad_checksum(members: list[tuple[str, int, int]], row: int, at: int, byte: int) -> None:
    blocks = [header(name, size, uid=uid) for name, size, uid in members]
    assert first_bad_checksum(stack(blocks)) is None
    damaged = bytearray(blocks[row % len(blocks)])
    damaged[at] = byte
    blocks[row % len(blocks)] = bytes(damaged)
    assert all(map(checksum_holds, blocks)) == (first_bad_checksum(stack(blocks)) is None)
    if not checksum_holds(bytes(damaged)):
        assert first_bad_checksum(stack(blocks)) == row % len(blocks)


def test_accepts_sums_of_signed_bytes_and_blank_padding() -> None:
    block = bytearray(header("\xfc.txt"))
    signed = sum(byte - 256 * (byte > 127) for byte in bytes(block[:148]) + b" " * 8 + bytes(block[156:]))
    block[148:156] = b"%06o\0 " % signed
    assert checksum_holds(bytes(block))
    block[148:156] = b"%7o " % signed
    assert checksum_holds(bytes(block))
    assert first_bad_checksum(stack([bytes(block)] * 2)) is None


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
    length = len(body) + len(str(len(body)))
    return b"%d" % (len(body) + len(str(length))) + body


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
    ("compress", "name"),
    [
        (gzip.compress, "gzip"),
        (bz2.compress, "bzip2"),
        (lzma.compress, "xz"),
        (zstd, "zstd"),
        (partial(lzma.compress, format=lzma.FORMAT_ALONE), "lzma"),
        (b"\x04\x22\x4d\x18".__add__, "lz4"),
        (b"\x02\x21\x4c\x18".__add__, "lz4"),
        (b"\x1f\x9d\x90".__add__, "compress"),
        (b"LZIP\x01\x0c".__add__, "lzip"),
        (b"\x89LZO\0\r\n\x1a\n".__add__, "lzo"),
    ],
)
def test_compressed_tars(tmp_path: Path, compress: Callable[[bytes], bytes], name: str) -> None:
    assert refusal(tmp_path, compress(PLAIN + END)).startswith(f"@ 0: the file is compressed with {name}. Samples")


def test_a_first_member_may_look_compressed(tmp_path: Path) -> None:
    (tmp_path / "shard.tar").write_bytes(member("BZh.txt") + END)
    assert scan_tar(tmp_path / "shard.tar").keys() == ["BZh"]


@pytest.mark.parametrize("digits", ["999", "0000000000999", "0" * 5000 + "999"])
def test_sizes_in_pax_records_may_begin_with_zeros(tmp_path: Path, digits: str) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(pax(record("size", digits)) + member("a.txt", 0) + bytes(1024) + member("b.txt") + END)
    for strategy in STRATEGIES:
        assert scan_tar(path, strategy=strategy).part_size.tolist() == [999, 10]


HARD_LINK = member("b.jpg", 0, type=tarfile.LNKTYPE, linkname="a.jpg")
SIZE = 124


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(b"", "@ 0: the file is empty", id="empty"),
        pytest.param(b"not a tar" * 200, "@ 0: expected a tar header", id="no tar"),
        pytest.param(b"short", "@ 0: the file is truncated", id="shorter than a header"),
        pytest.param(PLAIN, "@ 3072: the end-of-archive marker is missing.*append two zero blocks", id="no end"),
        pytest.param(PLAIN + bytes(100), "@ 3072: the end-of-archive marker is missing", id="part of an end"),
        pytest.param(PLAIN[:-300], "00002.txt @ 2048: the file is truncated.*ends at 2772", id="cut in padding"),
        pytest.param(PLAIN[:2600], "00002.txt @ 2048: the file is truncated.*100 bytes", id="cut in payload"),
        pytest.param(PLAIN[:2300], "@ 2048: the file is truncated.*expected a header of 512 bytes", id="cut in header"),
        pytest.param(PLAIN + b"\1" + END[1:], "@ 3072: expected a tar header", id="garbage"),
        pytest.param(PLAIN[:1030] + b"?" + PLAIN[1031:] + END, "@ 1024: expected a tar header", id="checksum"),
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
            "n.txt @ 3072: the file is truncated, or a header declares a wrong size.*8589934591 bytes",
            id="too large",
        ),
        pytest.param(PLAIN + HARD_LINK + END, "b.jpg @ 3072: a hard link to a.jpg, which has the content", id="link"),
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
        pytest.param(
            PLAIN + pax(b"9999 path=a\n") + member("a.txt") + END,
            "@ 3072: no record .* at byte 0 of a PAX",
            id="PAX record",
        ),
        pytest.param(
            PLAIN + pax(b"0 path=a\n") + member("a.txt") + END, "@ 3072: no record .* at byte 0 of a PAX", id="PAX zero"
        ),
        pytest.param(PLAIN + pax(record("size", "-5")) + member("a.txt") + END, "@ 3072: .*size b'-5'", id="PAX size"),
        pytest.param(
            PLAIN + pax(record("size", "99999999999")) + member("a.txt") + END,
            "a.txt @ 4096: the file is",
            id="PAX huge",
        ),
        pytest.param(PLAIN + pax(record("path", "a\0b")) + member("a.txt") + END, "@ 3072: .*zero byte", id="PAX name"),
        pytest.param(PLAIN + pax(record("path", "p.txt"), b"g") + PLAIN + END, "@ 3072: a global PAX", id="PAX global"),
        pytest.param(
            PLAIN + pax(b"x" * (2 << 20)) + END, "@ 3072: an extension header has 2097152 bytes", id="PAX too long"
        ),
        pytest.param(
            PLAIN + pax(record("comment", "c")) * 100 + PLAIN + END, ".*more than 64 extension headers", id="PAX chain"
        ),
        pytest.param(
            PLAIN + patched(member("i.txt"), 345, b"14123456701\0") + END,
            "@ 3072: bytes in the field",
            id="incremental",
        ),
        pytest.param(  # the first defect of the file is the one that is told
            PLAIN[:1030] + b"?" + PLAIN[1031:] + HARD_LINK, "@ 1024: expected a tar header", id="two defects"
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
        (content[:300_544] + b"!" * 512 + content[301_056:], rf"{url}: @ 300544: expected a tar header"),
        (b"", rf"{url}: @ 0: the file is empty"),
        (b"\x1f\x8b" + bytes(1000), rf"{url}: @ 0: the file is compressed with gzip"),
    ):
        bucket.put("a.tar", damaged)
        with pytest.raises(TarError, match=message):
            scan_tar(url)
    with pytest.raises(ReadError, match="no such object"):
        scan_tar(f"{bucket.url}/none.tar")
