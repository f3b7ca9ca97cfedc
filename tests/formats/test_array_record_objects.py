"""Records by ranges of bytes: what array_record's own writer wrote, in every way of writing, and damage."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from pathlib import Path

import cramjam
import numpy as np
import pytest
from conftest import RunScript
from hypothesis import given, strategies as st
from object_server import Bucket
from records import write_records

from energon_grain.errors import FormatError, ReadError
from energon_grain.formats.array_record import ArrayRecordFile, open_records, scan_records
from energon_grain.formats.array_record_ranges import (
    BLOCK_BYTES,
    ArrayRecordObject,
    RecordPlaces,
    chunk_records,
    find_places,
    footer_start,
    packed_numbers,
    postscript_start,
    read_places,
    read_records,
    varint,
)
from energon_grain.storage.local import LocalFiles

COUNT = 1500
OPTIONS = (
    "group_size:1,uncompressed",
    "group_size:1,zstd",
    "group_size:1,brotli",
    "group_size:1,snappy",
    "group_size:64,zstd",
    "group_size:7,uncompressed",
    "group_size:100000,brotli",
)


def record(number: int) -> bytes:
    """Empty ones, short ones, some longer than a block of the file, some that can be compressed."""
    if number % 200 == 150:
        return np.random.default_rng(number).bytes(100_000 + number)
    return number.to_bytes(4, "little") * (number % 60)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    return [
        str(write_records(folder / f"{number}.array_record", map(record, range(COUNT)), options))
        for number, options in enumerate(OPTIONS)
    ]


@pytest.fixture(scope="module")
def places(paths: list[str]) -> list[RecordPlaces]:
    return find_places(LocalFiles(), paths, [Path(path).stat().st_size for path in paths])


def read(paths: list[str], places: list[RecordPlaces], wanted: Sequence[tuple[int, int]]) -> list[bytes]:
    file, number = np.array(wanted, np.int64).reshape(-1, 2).T
    return read_records(LocalFiles(), paths, places, file, number)


@given(st.sets(st.tuples(st.integers(0, len(OPTIONS) - 1), st.integers(0, COUNT - 1)), max_size=60), st.integers(1, 5))
def test_any_records(paths: list[str], places: list[RecordPlaces], chosen: set[tuple[int, int]], run: int) -> None:
    wanted = sorted({(file, min(number + place, COUNT - 1)) for file, number in chosen for place in range(run)})
    assert read(paths, places, wanted) == [record(number) for _, number in wanted]


def test_all_records(paths: list[str], places: list[RecordPlaces]) -> None:
    for file, path in enumerate(paths):
        assert places[file].records == ArrayRecordFile(path).records == COUNT
        assert read(paths, places, [(file, number) for number in range(COUNT)]) == list(map(record, range(COUNT)))


@pytest.mark.parametrize("size", [0, 1, 65_000, 65_400, 65_431, 65_432, 65_433, 65_472, 65_536, 131_000, 131_008])
@pytest.mark.parametrize("options", ["group_size:1,uncompressed", "group_size:3,uncompressed"])
def test_chunks_that_end_near_a_block(tmp_path: Path, size: int, options: str) -> None:
    """Headers of blocks stand in the middle of headers of chunks, of sizes, and of records."""
    content = [bytes([number]) * max(0, size - number) for number in range(12)]
    path = str(write_records(tmp_path / "x.array_record", content, options))
    found = find_places(LocalFiles(), [path], [Path(path).stat().st_size])
    assert read([path], found, [(0, number) for number in range(12)]) == content


@pytest.mark.parametrize("count", [0, 1, 2])
def test_short_files(tmp_path: Path, count: int) -> None:
    path = str(write_records(tmp_path / "x.array_record", [b"abc"] * count))
    found = find_places(LocalFiles(), [path], [Path(path).stat().st_size])
    assert found[0].records == count
    assert read([path], found, [(0, number) for number in range(count)]) == [b"abc"] * count


def test_transposed_files_are_refused(tmp_path: Path) -> None:
    path = str(write_records(tmp_path / "x.array_record", [b"abc"] * 20, "group_size:10,transpose:true"))
    found = find_places(LocalFiles(), [path], [Path(path).stat().st_size])
    with pytest.raises(ReadError, match=r"x\.array_record: record 11: its chunk is transposed, .* copy the file"):
        read([path], found, [(0, 11)])


@pytest.mark.parametrize(
    "content", [b"", b"garbage" * 20, b"garbage" * 9363, bytes(2 * BLOCK_BYTES), b"x" * (BLOCK_BYTES * 3)]
)
def test_what_is_no_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.array_record"
    path.write_bytes(content)
    with pytest.raises(ReadError, match=r"bad\.array_record: is no ArrayRecord file"):
        find_places(LocalFiles(), [str(path)], [len(content)])


def test_a_file_without_its_end(paths: list[str], tmp_path: Path) -> None:
    whole = Path(paths[0]).read_bytes()
    for size in (len(whole) - BLOCK_BYTES, len(whole) - 100, 2 * BLOCK_BYTES):
        path = tmp_path / "cut.array_record"
        path.write_bytes(whole[:size])
        with pytest.raises(ReadError, match=r"cut\.array_record: is no ArrayRecord file"):
            find_places(LocalFiles(), [str(path)], [size])


@given(st.data())
def test_damage_is_told_or_harmless(paths: list[str], data: st.DataObject) -> None:
    """Whatever is done to the bytes of a chunk or of the footer, what comes is records or a FormatError."""
    whole = Path(data.draw(st.sampled_from(paths))).read_bytes()
    stop = postscript_start(len(whole))
    begin = footer_start(whole[stop : stop + 1024], stop)
    damaged = bytearray(whole[begin:stop])
    size = int.from_bytes(damaged[8:16], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, min(size + 40, 400) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FormatError):
        found = read_places(bytes(damaged), begin)
        assert found.records == found.first[-1]
    start, end = read_places(whole[begin:stop], begin).start[:2].tolist()
    chunk = bytearray(whole[start:end])
    chunk[data.draw(st.integers(0, min(len(chunk), 200) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FormatError):
        assert len(chunk_records(bytes(chunk), start)) == chunk[25] + (chunk[26] << 8) + (chunk[27] << 16)


def bomb(codec: str, unpacks_to: int, values: int, decoded_bytes: int) -> bytes:
    """A chunk of one record that announces `values` bytes for it, and `decoded_bytes` for the records of the chunk."""
    compress = {"z": cramjam.zstd.compress, "b": _brotli, "s": cramjam.snappy.compress_raw}[codec]
    sizes = encode_varint(10) + bytes(compress(encode_varint(decoded_bytes).ljust(10, b"\0")))
    data = (
        codec.encode() + encode_varint(len(sizes)) + sizes + encode_varint(values) + bytes(compress(bytes(unpacks_to)))
    )
    return struct.pack("<QQQQQ", 0, len(data), 0, ord("r") | 1 << 8, decoded_bytes) + data


def _brotli(data: bytes) -> bytes:
    return bytes(cramjam.brotli.compress(data, level=1))


def encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 128:
        encoded.append(number % 128 | 128)
        number //= 128
    return bytes([*encoded, number])


@pytest.mark.parametrize("codec", "zbs")
@pytest.mark.parametrize(
    ("values", "decoded_bytes", "said"),
    [
        (10, 10, "is damaged"),
        (1 << 36, 10, "68719476736 bytes are announced where the chunk has room for 10"),
        (1 << 36, 1 << 36, "at most 2147483648 are decompressed"),
        (1 << 20, 10, "1048576 bytes are announced where the chunk has room for 10"),
    ],
)
def test_no_more_is_decompressed_than_is_announced(codec: str, values: int, decoded_bytes: int, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        chunk_records(bomb(codec, 1 << 20, values, decoded_bytes), 24)


@pytest.mark.parametrize("codec", "zb")
def test_chunks_take_no_more_memory_than_they_announce(run_script: RunScript, tmp_path: Path, codec: str) -> None:
    (tmp_path / "chunk").write_bytes(bomb(codec, 1 << 28, 10, 10))
    run = run_script(_IN_LITTLE_MEMORY, tmp_path / "chunk")
    assert (run.returncode, run.stdout.strip()) == (0, "FormatError"), run.stderr


_IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from energon_grain.formats.array_record_ranges import chunk_records
data = Path(sys.argv[1]).read_bytes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    chunk_records(data, 24)
except ValueError as error:
    print(type(error).__name__)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert after - before < 1 << 17, (before, after)
"""


def test_a_file_in_a_bucket(bucket: Bucket, paths: list[str], tmp_path: Path) -> None:
    for path in paths[:2] + paths[4:5]:
        bucket.put("some folder/x.array_record", Path(path).read_bytes())
        url = f"{bucket.url}/some folder/x.array_record"
        there = open_records(url)
        assert isinstance(there, ArrayRecordObject)
        assert isinstance(open_records(path), ArrayRecordFile)
        assert (there.records, there.size_bytes) == (COUNT, Path(path).stat().st_size)
        assert there.read([3, 4, 1350, 1499]) == list(map(record, [3, 4, 1350, 1499]))
        found, expected = scan_records(url, "raw", first=5), scan_records(path, "raw", first=5)
        assert (found.keys(), found.size_bytes) == (expected.keys(), expected.size_bytes)
        np.testing.assert_array_equal(found.part_size, expected.part_size)
        assert found.generation
        assert not expected.generation
    with pytest.raises(ReadError, match="there is no such object"):
        open_records(f"{bucket.url}/none.array_record")


def varint_of(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint_of(rest) if rest else bytes([low])


@given(st.lists(st.one_of(st.integers(0, (1 << 64) - 1), st.integers(0, 300))))
def test_numbers_come_back(numbers: list[int]) -> None:
    data = b"".join(map(varint_of, numbers))
    assert packed_numbers(data).tolist() == packed_numbers(memoryview(data)).tolist() == numbers
    place, found = 0, list[int]()
    while place < len(data):
        number, place = varint(data, place)
        found.append(number)
    assert found == numbers


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x80", "ends in the middle"),
        (b"\x01\xff", "ends in the middle"),
        (b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\x80" * 10 + b"\x01", "more than 64 bits"),
    ],
)
def test_numbers_that_are_none(data: bytes, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        packed_numbers(data)
    with pytest.raises(FormatError, match=what):
        place = 0
        while place < len(data):
            _, place = varint(data, place)
