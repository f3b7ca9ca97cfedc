"""ArrayRecord files: of this machine, and in ranges of bytes as array_record's own writer wrote them; and damage."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cramjam
import msgspec
import numpy as np
import pytest
from conftest import RunScript
from hypothesis import given, strategies as st
from object_server import Bucket
from records import encode_example, msgpack_record, write_records

from energon_grain.errors import FormatError, IndexFileError, ReadError
from energon_grain.formats.local_files import LocalFiles
from energon_grain.formats.records import RECORD_ENCODINGS, RecordEncoding, encode_records_file, read_records_file
from energon_grain.kinds.array_record.files import (
    ArrayRecordFile,
    open_records,
    part_bytes,
    read_example,
    record_decoder,
    scan_records,
)
from energon_grain.kinds.array_record.ranges import (
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
from energon_grain.kinds.array_record.source import OpenFiles

COUNT = 2000
OPTIONS = ("group_size:1,uncompressed", "group_size:1,zstd", "group_size:64,brotli")


def record(number: int) -> bytes:
    return number.to_bytes(4, "little") * (number % 7)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    return [
        write_records(folder / f"{number}.array_record", map(record, range(COUNT)), options)
        for number, options in enumerate(OPTIONS)
    ]


@given(st.sets(st.integers(0, COUNT - 1), min_size=1, max_size=60), st.integers(0, 2), st.integers(1, 20))
def test_any_records(paths: list[Path], chosen: set[int], which: int, run: int) -> None:
    numbers = sorted({min(number + place, COUNT - 1) for number in chosen for place in range(run)})
    file = ArrayRecordFile(str(paths[which]))
    assert file.records == COUNT
    assert file.read(numbers) == [record(number) for number in numbers]


def test_all(paths: list[Path]) -> None:
    for path in paths:
        file = ArrayRecordFile(str(path))
        assert file.read(list(range(COUNT))) == [record(number) for number in range(COUNT)]
        assert file.read(list(range(0, COUNT, 2))) == [record(number) for number in range(0, COUNT, 2)]


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"none\.array_record: no such file"):
        ArrayRecordFile(str(tmp_path / "none.array_record"))
    for content in (b"", b"garbage" * 20000):
        (tmp_path / "bad.array_record").write_bytes(content)
        with pytest.raises(ReadError, match=r"bad\.array_record: is not an ArrayRecord file, or is damaged: ."):
            ArrayRecordFile(str(tmp_path / "bad.array_record"))


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.array_record", [b"abc"] * 100)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ReadError, match=r"is damaged: its end, which contains the record offsets, is missing$"):
        ArrayRecordFile(str(path))


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.array_record", [bytes([number]) * 1000 for number in range(200)])
    data = bytearray(path.read_bytes())
    place = data.index(bytes([70]) * 500)
    data[place] ^= 1
    path.write_bytes(data)
    file = ArrayRecordFile(str(path))
    for wanted in ([70], [3, 70, 71], [69, 70, 71], list(range(0, 200, 2)), list(range(200))):
        with pytest.raises(ReadError, match=r"x\.array_record: record 70: .*hash mismatch"):
            file.read(wanted)
    assert file.read([69, 71]) == [bytes([69]) * 1000, bytes([71]) * 1000]


class Files(OpenFiles[ArrayRecordFile]):
    def file(self, path: object) -> ArrayRecordFile:
        return self.get(str(path)) or self.put(str(path), ArrayRecordFile(str(path)))


def test_few_files_stay_open(paths: list[Path], tmp_path: Path) -> None:
    copies = [shutil.copy(paths[0], tmp_path / f"{number}.array_record") for number in range(6)]
    files = Files(max_files=3)
    opened = [files.file(path) for path in copies]
    assert [files.file(path) is file for path, file in zip(copies[3:], opened[3:], strict=True)] == [True] * 3
    assert files.file(copies[0]) is not opened[0]
    assert opened[0].read([5]) == [record(5)]  # who holds it reads on
    few = Files(max_records=COUNT + 1)
    first = few.file(copies[0])
    assert few.file(copies[1]) is not None
    assert few.file(copies[0]) is not first
    files.close()
    assert files.file(copies[5]) is not opened[5]


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    (tmp_path / ".nv-meta").mkdir()
    return tmp_path / ".nv-meta"


@pytest.mark.parametrize("encoding", RECORD_ENCODINGS)
def test_round_trip(tmp_path: Path, meta: Path, encoding: RecordEncoding) -> None:
    assert read_records_file(tmp_path) is None
    (meta / "records.json").write_bytes(encode_records_file(encoding))
    assert read_records_file(tmp_path) == encoding


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"version": 1, "encoding": "pickle"}', "pickle"),
        ('{"version": 2, "encoding": "raw"}', "version 2"),
        ('{"version": 1}', "encoding"),
        ('{"version": 1, "encoding": "raw", "more": 1}', "more"),
        ("no json", "malformed"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, meta: Path, content: str, said: str) -> None:
    (meta / "records.json").write_text(content)
    with pytest.raises(IndexFileError, match=rf"records\.json: .*{said}.*--records ENCODING"):
        read_records_file(tmp_path)


def test_msgpack() -> None:
    decode = record_decoder("msgpack")
    record = msgspec.msgpack.encode({"__key__": "a/ü", "txt": b"x", "jpg": b""})
    assert decode(record) == ("a/ü", {"txt": b"x", "jpg": b""})
    assert list(decode(record)[1]) == ["txt", "jpg"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"txt": b"x"}, "its __key__ is missing"),
        ({"__key__": b"a"}, "its __key__ is not a string"),
        ({"__key__": "a", "txt": "x"}, "part 'txt' is a msgpack str"),
        ({"__key__": "a", "n": 1}, "part 'n' is a msgpack int"),
        ([1], "not a msgpack map"),
        ({1: b"x"}, "not a msgpack map"),
        ({"__key__": "a", "deep": [[]]}, "part 'deep' is a msgpack list"),
    ],
)
def test_other_msgpack_is_refused(value: Any, said: str) -> None:
    with pytest.raises(FormatError, match=re.escape(said)):
        record_decoder("msgpack")(msgspec.msgpack.encode(value))
    with pytest.raises(FormatError, match="not a msgpack map"):
        record_decoder("msgpack")(b"\xc1garbage")


def test_examples() -> None:
    decode = record_decoder("tf_example")
    key, parts = decode(encode_example({"__key__": [b"k\xc3\xbc"], "txt": [b"x"], "n": [1, 2]}))
    assert (key, list(parts)) == ("kü", ["txt", "n"])
    assert decode(encode_example({"txt": [b"x"]}))[0] is None
    for key in ([b"\xff"], [b"a", b"b"], [1]):
        with pytest.raises(FormatError, match="its feature __key__ is not"):
            decode(encode_example({"__key__": key}))


def test_bytes_of_parts() -> None:
    texts = np.empty(2, np.object_)
    texts[:] = [b"abc", b"d"]
    assert [part_bytes(value) for value in (b"abc", np.zeros(3, np.float32), texts)] == [3, 12, 4]


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FEATURES = st.dictionaries(
    st.text(max_size=8),
    st.one_of(st.lists(st.binary(max_size=300), max_size=3), st.lists(INT64), st.lists(st.floats(width=32))),
    max_size=6,
)


def plain(value: Any) -> Any:
    return [value] if isinstance(value, bytes) else value.tolist()


@given(FEATURES)
def test_features_come_as_they_were_written(features: dict[str, list[Any]]) -> None:
    found = read_example(encode_example(features))
    assert list(found) == list(features)
    for name, values in features.items():
        np.testing.assert_array_equal(plain(found[name]), values)


def test_types() -> None:
    found = read_example(encode_example({"one": [b"x"], "two": [b"x", b""], "f": [0.5], "i": [-1]}))
    assert found["one"] == b"x"
    for name, dtype in (("two", np.object_), ("f", np.float32), ("i", np.int64)):
        value = found[name]
        assert isinstance(value, np.ndarray)
        assert value.dtype == dtype


def test_numbers_one_by_one() -> None:
    # feature "i": field 1 as varints 5 and 2**64 - 1; feature "f": 0.5 as fixed32
    ints = bytes.fromhex("0a16 0a14 0a0169 120f 1a0d 0805 08" + "ff" * 9 + "01")
    assert plain(read_example(ints)["i"]) == [5, -1]
    floats = bytes.fromhex("0a0e 0a0c 0a0166 1207 1205 0d0000003f")
    assert plain(read_example(floats)["f"]) == [0.5]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x0a\x05abc", "corrupt"),
        (b"\x0a", "corrupt"),
        (b"\x12\x00", "Example has no field 2"),
        (b"hello world", "corrupt"),
        (bytes.fromhex("0a0b 0a09 0a0169 1204 1a02 0a80"), "corrupt"),
        (bytes.fromhex("0a0d 0a0b 0a0166 1206 1204 0a020000"), "corrupt"),
        (b"\x0a" + b"\xff" * 11, "corrupt"),
        (bytes.fromhex("0a05 0a03 0a01ff"), "UTF-8"),
    ],
)
def test_what_is_no_example(data: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=f"is not a tf.train.Example: .*{said}"):
        read_example(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_features_or_an_error(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        read_example(data)


@given(FEATURES, st.data())
def test_damage_is_features_or_an_error(features: dict[str, list[Any]], data: st.DataObject) -> None:
    text = bytearray(encode_example(features))
    for _ in range(data.draw(st.integers(0, 3)) if text else 0):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FormatError):
        read_example(bytes(text))


def test_a_scan_of_msgpack(tmp_path: Path) -> None:
    samples = [
        {"__key__": f"ü/{number}", "txt": b"x" * number, **({"json": b"{}"} if number % 3 else {})}
        for number in range(100)
    ]
    records = [msgpack_record(sample) for sample in samples]
    path = write_records(tmp_path / "x.array_record", records)
    scan = scan_records(path, "msgpack", first=7)
    assert (len(scan), open_records(str(path)).records) == (100, 100)
    assert scan.keys() == [sample["__key__"] for sample in samples]
    assert scan.part_names == ("txt", "json")
    assert scan.size_bytes == path.stat().st_size
    assert scan.sample_start.tolist()[:3] == [0, len(records[0]), len(records[0]) + len(records[1])]
    assert scan.part_start.tolist()[:4] == [0, 1, 3, 5]
    assert scan.part_size.tolist()[:5] == [0, 1, 2, 2, 2]
    assert set(scan.part_offset.tolist()) == {0}


def test_numbers_for_keys(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.array_record", [b"a", b"bc", b""])
    scan = scan_records(path, "raw", first=998)
    assert scan.keys() == ["998", "999", "1000"]
    assert (scan.part_names, scan.part_size.tolist()) == (("record",), [1, 2, 0])
    examples = [encode_example({"n": [1, 2]}), encode_example({"__key__": [b"k"], "f": [0.5]})]
    scan = scan_records(write_records(tmp_path / "y.array_record", examples), "tf_example", first=5)
    assert (scan.keys(), scan.part_names, scan.part_size.tolist()) == (["5", "k"], ("n", "f"), [16, 4])


def test_large_records_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.array_record", [bytes(1 << 20)] * 70 + [b""] * 300)
    assert scan_records(path, "raw", first=0).part_size.tolist() == [1 << 20] * 70 + [0] * 300


def test_other_encodings_are_named(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.array_record", [msgpack_record({"__key__": "a"}), b"\xff"])
    with pytest.raises(FormatError, match=r"x\.array_record: record 1: is not a msgpack .* encoded as msgpack\?"):
        scan_records(path, "msgpack", first=0)
    with pytest.raises(FormatError, match=r"record 0: is not a tf\.train\.Example: "):
        scan_records(path, "tf_example", first=0)


PLACED = 1500
WAYS = (
    "group_size:1,uncompressed",
    "group_size:1,zstd",
    "group_size:1,brotli",
    "group_size:1,snappy",
    "group_size:64,zstd",
    "group_size:7,uncompressed",
    "group_size:100000,brotli",
)


def placed_record(number: int) -> bytes:
    """Empty ones, short ones, some longer than a block of the file, some that can be compressed."""
    if number % 200 == 150:
        return np.random.default_rng(number).bytes(100_000 + number)
    return number.to_bytes(4, "little") * (number % 60)


@pytest.fixture(scope="module")
def file_of_each_way(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    return [
        str(write_records(folder / f"{number}.array_record", map(placed_record, range(PLACED)), options))
        for number, options in enumerate(WAYS)
    ]


@pytest.fixture(scope="module")
def places(file_of_each_way: list[str]) -> list[RecordPlaces]:
    return find_places(LocalFiles(), file_of_each_way, [Path(path).stat().st_size for path in file_of_each_way])


def read(paths: list[str], places: list[RecordPlaces], wanted: Sequence[tuple[int, int]]) -> list[bytes]:
    file, number = np.array(wanted, np.int64).reshape(-1, 2).T
    return read_records(LocalFiles(), paths, places, file, number)


@given(st.sets(st.tuples(st.integers(0, len(WAYS) - 1), st.integers(0, PLACED - 1)), max_size=60), st.integers(1, 5))
def test_any_records_by_ranges(
    file_of_each_way: list[str], places: list[RecordPlaces], chosen: set[tuple[int, int]], run: int
) -> None:
    wanted = sorted({(file, min(number + place, PLACED - 1)) for file, number in chosen for place in range(run)})
    assert read(file_of_each_way, places, wanted) == [placed_record(number) for _, number in wanted]


def test_all_records(file_of_each_way: list[str], places: list[RecordPlaces]) -> None:
    for file, path in enumerate(file_of_each_way):
        assert places[file].records == ArrayRecordFile(path).records == PLACED
        assert read(file_of_each_way, places, [(file, number) for number in range(PLACED)]) == list(
            map(placed_record, range(PLACED))
        )


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
def test_what_is_no_file_by_ranges(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.array_record"
    path.write_bytes(content)
    with pytest.raises(ReadError, match=r"bad\.array_record: is not an ArrayRecord file"):
        find_places(LocalFiles(), [str(path)], [len(content)])


def test_a_file_without_its_end(file_of_each_way: list[str], tmp_path: Path) -> None:
    whole = Path(file_of_each_way[0]).read_bytes()
    for size in (len(whole) - BLOCK_BYTES, len(whole) - 100, 2 * BLOCK_BYTES):
        path = tmp_path / "cut.array_record"
        path.write_bytes(whole[:size])
        with pytest.raises(ReadError, match=r"cut\.array_record: is not an ArrayRecord file"):
            find_places(LocalFiles(), [str(path)], [size])


@given(st.data())
def test_damage_is_told_or_harmless(file_of_each_way: list[str], data: st.DataObject) -> None:
    """Whatever is done to the bytes of a chunk or of the footer, what comes is records or a FormatError."""
    whole = Path(data.draw(st.sampled_from(file_of_each_way))).read_bytes()
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
        (1 << 36, 10, "68719476736 bytes, its chunk has space for 10"),
        (1 << 36, 1 << 36, "at most 2147483648 are decompressed"),
        (1 << 20, 10, "1048576 bytes, its chunk has space for 10"),
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
from energon_grain.kinds.array_record.ranges import chunk_records
data = Path(sys.argv[1]).read_bytes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    chunk_records(data, 24)
except ValueError as error:
    print(type(error).__name__)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert after - before < 1 << 17, (before, after)
"""


def test_a_file_in_a_bucket(bucket: Bucket, file_of_each_way: list[str], tmp_path: Path) -> None:
    for path in file_of_each_way[:2] + file_of_each_way[4:5]:
        bucket.put("some folder/x.array_record", Path(path).read_bytes())
        url = f"{bucket.url}/some folder/x.array_record"
        there = open_records(url)
        assert isinstance(there, ArrayRecordObject)
        assert isinstance(open_records(path), ArrayRecordFile)
        assert (there.records, there.size_bytes) == (PLACED, Path(path).stat().st_size)
        assert there.read([3, 4, 1350, 1499]) == list(map(placed_record, [3, 4, 1350, 1499]))
        found, expected = scan_records(url, "raw", first=5), scan_records(path, "raw", first=5)
        assert (found.keys(), found.size_bytes) == (expected.keys(), expected.size_bytes)
        np.testing.assert_array_equal(found.part_size, expected.part_size)
        assert found.generation
        assert not expected.generation
    with pytest.raises(ReadError, match="no such object"):
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
