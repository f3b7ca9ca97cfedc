"""`records.json`, and records to parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from records import encode_example

from energon_grain.errors import FormatError, IndexFileError
from energon_grain.formats.array_record import (
    RECORD_ENCODINGS,
    RecordEncoding,
    encode_records_file,
    part_bytes,
    read_records_file,
    record_decoder,
)


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
        ({"__key__": b"a"}, "its __key__ is no text"),
        ({"__key__": "a", "txt": "x"}, "part 'txt' is a msgpack str"),
        ({"__key__": "a", "n": 1}, "part 'n' is a msgpack int"),
        ([1], "no msgpack map"),
        ({1: b"x"}, "no msgpack map"),
        ({"__key__": "a", "deep": [[]]}, "part 'deep' is a msgpack list"),
    ],
)
def test_other_msgpack_is_refused(value: Any, said: str) -> None:
    with pytest.raises(FormatError, match=re.escape(said)):
        record_decoder("msgpack")(msgspec.msgpack.encode(value))
    with pytest.raises(FormatError, match="no msgpack map"):
        record_decoder("msgpack")(b"\xc1garbage")


def test_examples() -> None:
    decode = record_decoder("tf_example")
    key, parts = decode(encode_example({"__key__": [b"k\xc3\xbc"], "txt": [b"x"], "n": [1, 2]}))
    assert (key, list(parts)) == ("kü", ["txt", "n"])
    assert decode(encode_example({"txt": [b"x"]}))[0] is None
    for key in ([b"\xff"], [b"a", b"b"], [1]):
        with pytest.raises(FormatError, match="its feature __key__ is not"):
            decode(encode_example({"__key__": key}))


def test_raw() -> None:
    assert record_decoder("raw")(b"any") == (None, {"record": b"any"})


def test_bytes_of_parts() -> None:
    texts = np.empty(2, np.object_)
    texts[:] = [b"abc", b"d"]
    assert [part_bytes(value) for value in (b"abc", np.zeros(3, np.float32), texts)] == [3, 12, 4]
