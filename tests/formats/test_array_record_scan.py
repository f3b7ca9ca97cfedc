"""What a scan of an ArrayRecord file finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from records import encode_example, msgpack_record, write_records

from energon_grain.errors import FormatError
from energon_grain.formats.array_record import count_records, scan_records


def test_msgpack(tmp_path: Path) -> None:
    samples = [
        {"__key__": f"ü/{number}", "txt": b"x" * number, **({"json": b"{}"} if number % 3 else {})}
        for number in range(100)
    ]
    records = [msgpack_record(sample) for sample in samples]
    path = write_records(tmp_path / "x.array_record", records)
    scan = scan_records(path, "msgpack", first=7)
    assert (len(scan), count_records(path)) == (100, 100)
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
    with pytest.raises(FormatError, match=r"x\.array_record: record 1: is no msgpack .* encoded as msgpack\?"):
        scan_records(path, "msgpack", first=0)
    with pytest.raises(FormatError, match=r"record 0: is no tf\.train\.Example: "):
        scan_records(path, "tf_example", first=0)
