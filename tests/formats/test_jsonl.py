"""Indices of JSONL and of joins, to the byte; keys sorted as bytes, in memory and through files."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import resource
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from object_server import Bucket, Fault
from patience import PATIENCE_S

from energon_grain import StorageSettings, use_storage
from energon_grain.errors import (
    DatasetNotFoundError,
    DecodingError,
    EmptyDatasetError,
    IndexFileError,
    ReadError,
    StaleIndexError,
)
from energon_grain.formats.columnar_header import ColumnWriter, index_cache_folder
from energon_grain.formats.key_order import duplicate_keys, external_key_order, is_ascending, key_order
from energon_grain.formats.local_files import LocalFiles
from energon_grain.kinds.joins.index import (
    ROWS_NAME,
    JoinedMember,
    JoinHeader,
    JoinIndex,
    cache_folder,
    energon_join_name,
    index_file_name,
    join_folder,
    join_name,
    joins_in,
    new_join_folder,
    open_join_index,
    read_join_header,
    write_join_header,
    write_join_index,
)
from energon_grain.kinds.jsonl import lines as jsonl_object
from energon_grain.kinds.jsonl.lines import (
    JsonlFile,
    LineNumbers,
    find_jsonl_index,
    jsonl_index_path,
    open_jsonl,
    read_jsonl_index,
    scan_lines,
    write_jsonl_index,
)
from energon_grain.kinds.jsonl.prepare import prepare_jsonl
from energon_grain.kinds.jsonl.source import JsonlRows
from energon_grain.sources.rows import selected

PEER = os.environ.get("ENERGON_PEER_PYTHON")
THERE = """
import sys
from megatron.energon import CrudeJsonlDatasetFactory
for path in sys.argv[1:]:
    CrudeJsonlDatasetFactory.prepare_dataset(path)
"""
CONTENTS = [
    b'\n{"a":0}\n\n{"a":1}\r\n  {"a": 2}  \n\n',
    b'{"a":0}',
    b'{"a":0}\r\n\r\n \t\n{"b": "\xc3\xa9 }{"}\n',
    b"{}\n" * 5000,
    b'{"long": "' + b"x" * 3_000_000 + b'"}\n{}',
    b"\x0b {} \x0c\n\n{}\n \n",
]


def opened(path: Path, cache_dir: Path | None = None) -> npt.NDArray[np.int64]:
    return read_jsonl_index(find_jsonl_index(path, cache_dir=cache_dir))


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    jsonl_index_path(path).unlink(missing_ok=True)
    return path


def by_hand(content: bytes) -> list[int]:
    """What the reference says: 0, where each further sample's line starts, and the size."""
    starts, offset = list[int](), 0
    for line in content.split(b"\n"):
        if line.strip():
            starts.append(offset)
        offset += len(line) + 1
    return [0, *starts[1:], len(content)]


def test_golden(tmp_path: Path) -> None:
    path = put(tmp_path / "x.jsonl", CONTENTS[0])
    assert write_jsonl_index(path) == 3
    assert (tmp_path / "x.jsonl.idx").read_bytes() == np.array([0, 10, 19, 33], "<u8").tobytes()
    assert read_jsonl_index(jsonl_index_path(path)).tolist() == by_hand(CONTENTS[0])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([b"{}", b'{"a": "\\n"}', b"", b" ", b" {} ", b"{}\r", b"\r", b'{"}": "{"}']), min_size=1),
    st.booleans(),
    st.integers(1, 9),
)
def test_any_mixture_of_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ends: bool, block: int
) -> None:
    content = b"\n".join(lines) + (b"\n" if ends else b"")
    path = put(tmp_path_factory.mktemp("lines") / "x.jsonl", content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("energon_grain.kinds.jsonl.lines._BLOCK_BYTES", block)
        if any(line.strip() for line in lines):
            assert opened(path).tolist() == by_hand(content)
        else:
            with pytest.raises(EmptyDatasetError, match="no sample"):
                opened(path)


@pytest.mark.energon
@pytest.mark.skipif(PEER is None, reason="ENERGON_PEER_PYTHON is not set: no Megatron-Energon to compare with")
def test_the_same_bytes_as_energons(tmp_path: Path) -> None:
    paths = [put(tmp_path / f"{number}.jsonl", content) for number, content in enumerate(CONTENTS)]
    subprocess.run([str(PEER), "-c", THERE, *paths], capture_output=True, check=True, timeout=PATIENCE_S)
    theirs = [jsonl_index_path(path).read_bytes() for path in paths]
    for path in paths:
        write_jsonl_index(path)
    assert [jsonl_index_path(path).read_bytes() for path in paths] == theirs


def test_lines_that_hold_no_object(tmp_path: Path) -> None:
    path = put(tmp_path / "x.jsonl", b'{}\n\n[1]\n{"a": 1\n{}\n' + b"7\n" * 10)
    with pytest.raises(DecodingError, match=r"12 of 15 lines .*: x.jsonl:3: b'\[1\]', x.jsonl:4: .*; and 7 more"):
        write_jsonl_index(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.jsonl"]
    with pytest.raises(DecodingError, match="lint"):
        opened(path)


def test_what_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "x.jsonl", b"{}\n{}\n")
    index = jsonl_index_path(path)
    with pytest.raises(DatasetNotFoundError):
        opened(tmp_path / "y.jsonl")
    for damaged in (b"", b"\0" * 8, b"\0" * 17, np.array([3, 6], "<u8").tobytes()):
        index.write_bytes(damaged)
        with pytest.raises(IndexFileError, match=f"energon-grain prepare {path}"):
            opened(path)
    index.unlink()
    opened(path)
    path.write_bytes(b"{}\n{}\n{}\n")
    with pytest.raises(StaleIndexError, match=f"with 6 bytes, but has 9.*energon-grain prepare {path}"):
        opened(path)


def test_the_index_in_the_cache_folder(tmp_path: Path) -> None:
    path = put(tmp_path / "x.jsonl", b"{}\n{}\n")
    cache = tmp_path / "cache"
    kept = index_cache_folder(path, cache) / "x.jsonl.idx"
    kept.parent.mkdir(parents=True)
    write_jsonl_index(path, target=kept)
    before = kept.stat().st_mtime_ns
    assert opened(path, cache_dir=cache).tolist() == [0, 3, 6]
    assert not jsonl_index_path(path).exists(), "the one in the cache is used"
    path.write_bytes(b"{}\n{ }")
    os.utime(path, ns=(before + 10**9, before + 10**9))
    assert opened(path, cache_dir=cache).tolist() == [0, 3, 6]
    assert jsonl_index_path(path).exists(), "the file is newer than the cached index"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_made_in_the_cache_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    path = put(folder / "x.jsonl", b"{}\n{}\n")
    folder.chmod(0o500)
    try:
        assert opened(path, cache_dir=tmp_path / "cache").tolist() == [0, 3, 6]
        assert (index_cache_folder(path, tmp_path / "cache") / "x.jsonl.idx").exists()
    finally:
        folder.chmod(0o700)


def test_several_at_once(tmp_path: Path) -> None:
    path = put(tmp_path / "x.jsonl", b"{}\n" * 200_000)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(opened(path)))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200_001] * 6


MEMORY = """
import resource, sys
from energon_grain.kinds.jsonl.lines import write_jsonl_index
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert write_jsonl_index(sys.argv[1]) == 3_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_SELF"), reason="asks for the memory of a process")
def test_memory_does_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 3_000_000)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", MEMORY, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert int(done.stdout) < 20_000, "KiB; the index alone has 23,000"


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_line_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("energon_grain.kinds.jsonl.lines._COUNTED_BYTES", block)
    path = tmp_path / "x.jsonl"
    content = b"".join(b"{" + b" " * (i % 13) + b"}\n" * (i % 3) for i in range(200))
    path.write_bytes(content)
    numbers = LineNumbers(str(path), LocalFiles())
    for offset in (*range(len(content) - 1, -1, -17), *range(0, len(content), 11), len(content)):
        assert numbers.at(offset) == content.count(b"\n", 0, offset) + 1


def test_blocks_cover_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_grain.kinds.jsonl.lines._BLOCK_BYTES", 10)
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 12345678901234567890}\n\n{}')
    blocks = list(scan_lines(path))
    assert [start for starts, _ in blocks for start in starts.tolist()] == [0, 9, 38]
    assert blocks[-1][1] == 40


LINES = b'\n{"a": 0}\n\n{"a": 1}\r\n  {"a": 2}  \n\n'
STARTS = [0, 11, 21, 35]


@pytest.fixture
def url(bucket: Bucket) -> str:
    bucket.put("some sets/x.jsonl", LINES)
    bucket.server.reset()
    return f"{bucket.url}/some sets/x.jsonl"


def starts(file: JsonlFile) -> list[int]:
    return file.starts().tolist()


def sent(bucket: Bucket) -> int:
    return sum(request.sent_bytes for request in bucket.server.requests("x.jsonl"))


def test_made_once_where_there_is_none(bucket: Bucket, url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "energon_grain"):
        file = open_jsonl(url)
    assert starts(file) == STARTS
    assert f"{url} has no index beside it" in caplog.text
    assert len(bucket.server.requests("x.jsonl", "PUT")) == 0
    bucket.server.reset()
    caplog.clear()
    assert open_jsonl(url) == file
    assert not caplog.text
    assert len(bucket.server.requests("x.jsonl")) <= 3


def test_several_at_once_make_it_once(bucket: Bucket, url: str) -> None:
    content = b'{"text": "' + b"x" * 1000 + b'"}\n'
    bucket.put("some sets/x.jsonl", content * 3000)
    bucket.server.reset()
    found: list[JsonlFile] = []
    threads = [threading.Thread(target=lambda: found.append(open_jsonl(url))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(starts(file)) for file in found] == [3001] * 5
    assert sent(bucket) < 1.1 * 3000 * len(content)


def test_what_was_gone_through_is_not_fetched_again(bucket: Bucket, url: str) -> None:
    content = b"".join(b'{"n": %d, "text": "%s"}\n' % (number, b"x" * 5000) for number in range(4000))
    bucket.put("some sets/x.jsonl", content)
    bucket.server.reset()
    source = selected(JsonlRows(url))
    batch = source.read(np.arange(4000)[::7])
    assert [json.loads(bytes(raw.parts["json"]))["n"] for raw in batch] == list(range(0, 4000, 7))
    assert sent(bucket) < len(content) + 10_000


def test_read_once_where_it_is_beside_the_file(bucket: Bucket, url: str) -> None:
    content = LINES + b'{"long": "' + b"x" * 5_000_000 + b'"}\n'
    bucket.put("some sets/x.jsonl", content)
    prepare_jsonl(url)
    bucket.server.reset()
    file = open_jsonl(url)
    assert starts(file) == [*STARTS, len(content)]
    assert sent(bucket) < 10_000, "the lines are not read"
    bucket.server.reset()
    assert open_jsonl(url) == file
    assert len(bucket.server.requests("x.jsonl")) <= 3


def test_on_the_web_too(bucket: Bucket, url: str) -> None:
    bucket.put("some sets/x.jsonl", LINES, public=True)
    web = url.replace("s3:/", bucket.server.endpoint)
    assert starts(open_jsonl(web)) == STARTS
    bucket.put("some sets/x.jsonl.idx", np.array(STARTS, "<u8").tobytes(), public=True)
    assert starts(open_jsonl(web)) == STARTS
    assert selected(JsonlRows(web)).place_of(2) == f"{web}:5"
    bucket.put("some sets/x.jsonl", LINES + b"{}", public=True)
    with pytest.raises(StaleIndexError, match=f"^{web}: was indexed with 35 bytes, but has 37"):
        open_jsonl(web)


def test_a_large_index_comes_in_pieces(bucket: Bucket, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_object, "_COPIED_BYTES", 100_000)
    bucket.put("some sets/x.jsonl", b"{}\n" * 300_000)
    prepare_jsonl(url)
    assert starts(open_jsonl(url)) == list(range(0, 900_001, 3))


def test_an_index_that_was_made_anew_is_read_anew(bucket: Bucket, url: str) -> None:
    made = open_jsonl(url)
    prepare_jsonl(url)
    stored = open_jsonl(url)
    assert made.index != stored.index
    assert starts(stored) == STARTS
    with pytest.raises(StaleIndexError, match=f"{url}: its index on this machine.* was removed"):
        made.starts()
    bucket.put("some sets/x.jsonl", LINES + b"{}")
    with pytest.raises(StaleIndexError, match=f"^{url}: was indexed with 35 bytes, but has 37; .*prepare {url}`"):
        open_jsonl(url)
    prepare_jsonl(url)
    assert starts(open_jsonl(url)) == [*STARTS, 37]
    bucket.delete("some sets/x.jsonl.idx")
    assert starts(open_jsonl(url)) == [*STARTS, 37]


def test_without_an_index_another_version_is_indexed_anew(bucket: Bucket, url: str) -> None:
    assert starts(open_jsonl(url)) == STARTS
    bucket.put("some sets/x.jsonl", LINES.replace(b'{"a": 1}\r\n', b'{"a":11}\n\n'))
    assert starts(open_jsonl(url)) == STARTS
    bucket.put("some sets/x.jsonl", LINES.replace(b'\n\n{"a": 1}', b'\n{"a": 1}\n'))
    assert starts(open_jsonl(url)) == [0, 10, 21, 35]
    assert len(list(open_jsonl(url).index.parent.glob("*.idx"))) == 1


@pytest.mark.parametrize("damaged", [b"", b"\0" * 8, b"\0" * 17, np.array([3, 35], "<u8").tobytes()])
def test_a_damaged_index(bucket: Bucket, url: str, damaged: bytes) -> None:
    bucket.put("some sets/x.jsonl.idx", damaged)
    with pytest.raises(IndexFileError, match=rf"^{url}\.idx: .*damaged; `energon-grain prepare {url}`"):
        open_jsonl(url)


def test_what_is_refused_in_stores(bucket: Bucket, url: str) -> None:
    with pytest.raises(DatasetNotFoundError, match=f"{bucket.url}/none.jsonl: no such object"):
        open_jsonl(f"{bucket.url}/none.jsonl")
    bucket.put("some sets/x.jsonl", b"\n \n")
    with pytest.raises(EmptyDatasetError, match=f"{url}: has no sample"):
        open_jsonl(url)
    bucket.put("some sets/x.jsonl", b"")
    with pytest.raises(EmptyDatasetError, match=f"{url}: has no sample"):
        open_jsonl(url)
    bucket.put("some sets/x.jsonl", b'{}\n\noops\n{"a": 1\n')
    with pytest.raises(DecodingError, match=rf"{url}: 2 of 4 lines .*: x.jsonl:3: b'oops', x.jsonl:4: "):
        open_jsonl(url)
    use_storage(StorageSettings(attempts=2, first_pause_s=0.001))
    bucket.server.inject(Fault("status", times=None))
    with pytest.raises(ReadError, match=f"{url}.* failed: .*2 attempts"):
        open_jsonl(url)


def test_an_object_that_changes_while_it_is_indexed(
    bucket: Bucket, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_storage(StorageSettings(cache_dir=str(tmp_path / "own")))
    write: Callable[..., int] = jsonl_object.write_jsonl_index

    def replaced_first(path: str, *, target: Path) -> int:
        bucket.put("some sets/x.jsonl", LINES[:-1])
        return write(path, target=target)

    monkeypatch.setattr(jsonl_object, "write_jsonl_index", replaced_first)
    with pytest.raises(StaleIndexError, match="was replaced while it was indexed"):
        open_jsonl(url)
    monkeypatch.undo()
    use_storage(StorageSettings(cache_dir=str(tmp_path / "own")))
    assert not list((tmp_path / "own").rglob("*.idx"))


ROWS = np.array([[[0, 0, 1024], [0, 0, 1024]], [[0, 1024, 1024], [-1, -1, -1]]])


def test_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "join.bin"
    assert write_join_index(path, 2, [ROWS[:1], ROWS[1:]]) == 2
    numbers = (2, 0, 0, 1024, 0, 0, 1024, 0, 1024, 1024, -1, -1, -1)
    assert path.read_bytes() == b"JIDX0001" + struct.pack("=13q", *numbers)


def test_names_tell_everything_apart_that_changes_rows() -> None:
    member = ("id", "train", ["a.tar", "b.tar"], ["b.tar/x", "b.tar/y"], "error")
    name = join_name([member, member])
    assert len(name) == 64
    assert join_name([member, (*member[:3], ["b.tar/y", "b.tar/x"], "error")]) == name
    others = [
        [member],
        [member, ("other", *member[1:])],
        [member, ("id", "val", *member[2:])],
        [member, (*member[:2], ["b.tar", "a.tar"], *member[3:])],
        [member, (*member[:3], ["b.tar/x"], "error")],
        [member, (*member[:4], "skip")],
    ]
    assert len({name, *(join_name(other) for other in others)}) == 1 + len(others)


def test_energons_names() -> None:
    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    members = [("u", ["a.tar/1"], "error"), ("v", [], "none")]
    said = "\0uuid=u\0excludes=a.tar/1\0\0nonmatch=error\0\0uuid=v\0excludes=\0nonmatch=none\0"
    assert energon_join_name(members) == digest(said)


def test_where_files_lie() -> None:
    assert cache_folder("/data/meta.yaml") == Path("/data/meta.yaml.cache")
    assert index_file_name("ab") == "join_index_ab.bin"


def header(rows: int, checksum: str, block_sums: str | None) -> JoinHeader:
    member = JoinedMember(
        path="a", split_part="train", content_id="c" * 32, samples=9, shards="s", excludes=["x"], nonmatch="error"
    )
    return JoinHeader(members=[member, member], rows=rows, checksum=checksum, block_sums=block_sums)


def write(cache: Path, rows: np.ndarray, name: str = "ab") -> JoinIndex:
    with new_join_folder(cache, name) as folder:
        writer = ColumnWriter(folder / ROWS_NAME, np.int64, width=2)
        writer.append(rows[:1])
        writer.append(rows[1:])
        writer.close()
        write_join_header(folder, header(writer.rows, writer.checksum, writer.block_sums))
    return open_join_index(join_folder(cache, name))


@pytest.mark.parametrize("count", [2, 10_000])
def test_columnar_form(tmp_path: Path, count: int) -> None:
    rows = np.arange(2 * count).reshape(-1, 2)
    index = write(tmp_path / "new" / "cache", rows)
    assert np.array_equal(index.rows, rows)
    assert np.array_equal(np.load(index.folder / "rows.npy"), rows)  # type: ignore[operator]
    with pytest.raises(ValueError, match="read-only"):
        index.rows[0, 0] = 3
    assert joins_in(tmp_path / "new" / "cache") == {"ab": index.header}
    copy = pickle.loads(pickle.dumps(index))
    assert np.array_equal(copy.rows, rows)
    assert copy.content_id == index.content_id
    assert len(pickle.dumps(index)) < 500
    same = pickle.loads(pickle.dumps(JoinIndex(rows=np.array(rows), header=index.header)))
    assert np.array_equal(same.rows, rows)
    assert [path.name for path in (tmp_path / "new" / "cache").iterdir()] == [".join_ab"]


def test_nothing_is_left_of_a_failed_write(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_join_folder(tmp_path, "ab") as folder:
        (folder / "rows.npy").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_second_writer_keeps_what_the_first_wrote_and_mends_what_is_damaged(tmp_path: Path) -> None:
    rows = np.arange(8).reshape(-1, 2)
    first = write(tmp_path, rows)
    inode = (tmp_path / ".join_ab" / "rows.npy").stat().st_ino
    assert write(tmp_path, rows).content_id == first.content_id
    assert (tmp_path / ".join_ab" / "rows.npy").stat().st_ino == inode
    (tmp_path / ".join_ab" / "rows.npy").write_bytes(b"")
    with pytest.raises(IndexFileError, match="has 0 bytes"):
        open_join_index(tmp_path / ".join_ab")
    assert np.array_equal(write(tmp_path, rows).rows, rows)


def test_headers_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_join_header(tmp_path)
    (tmp_path / "header.json").write_text("{")
    with pytest.raises(IndexFileError, match="prepare"):
        read_join_header(tmp_path)
    (tmp_path / "header.json").write_text('{"version": 3}')
    with pytest.raises(IndexFileError, match="version 3"):
        read_join_header(tmp_path)
    (tmp_path / "header.json").write_text('{"version": 1}')
    with pytest.raises(IndexFileError, match="members"):
        read_join_header(tmp_path)


def test_copies_notice_that_rows_were_replaced(tmp_path: Path) -> None:
    rows = np.arange(8).reshape(-1, 2)
    pickled = pickle.dumps(write(tmp_path, rows))
    (tmp_path / ".join_ab" / "header.json").unlink()
    write(tmp_path, rows[::-1])
    with pytest.raises(IndexFileError, match="prepared again"):
        pickle.loads(pickled)


# Few letters, NUL and long common beginnings: ties at every depth.
KEYS = st.lists(
    st.one_of(
        st.text(alphabet="ab\0", max_size=20).map(str.encode),
        st.text(alphabet="01", max_size=12).map(lambda text: b"a/very/long/common/beginning/" + text.encode()),
        st.binary(max_size=10),
    ),
    max_size=80,
)


def columns(keys: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    start = np.concatenate([[0], np.cumsum([len(key) for key in keys])]).astype(np.int64)
    return start, np.frombuffer(b"".join(keys), np.uint8)


@settings(max_examples=300)
@given(KEYS)
def test_order_is_that_of_sorted_bytes_and_stable(keys: list[bytes]) -> None:
    start, text = columns(keys)
    order, ascending = key_order(start, text), sorted(keys)
    assert order.dtype == np.int64
    assert order.tolist() == sorted(range(len(keys)), key=lambda i: (keys[i], i))
    assert duplicate_keys(start, text, order).tolist() == [
        place for place, (key, following) in enumerate(pairwise(ascending)) if key == following
    ]
    assert is_ascending(start, text) == (keys == ascending)
    assert is_ascending(*columns(ascending))
    assert key_order(*columns(ascending)).tolist() == list(range(len(keys)))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=KEYS, run=st.integers(1, 30), ascending=st.booleans())
def test_through_files_order_and_duplicates_are_the_same(
    tmp_path: Path, keys: list[bytes], run: int, ascending: bool
) -> None:
    keys = sorted(keys) if ascending else keys
    found: list[tuple[int, int]] = []
    how: dict[str, Any] = {"memory_bytes": 128 * run, "on_duplicates": found.extend}
    blocks = [*external_key_order(*columns(keys), tmp_path, **how)]
    order = sorted(range(len(keys)), key=lambda i: (keys[i], i))
    expected = [(a, b) for a, b in pairwise(order) if keys[a] == keys[b]]
    assert [tuple(pair) for pair in found] == expected
    assert [sample for block in blocks for sample in block.tolist()] == order
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shuffled", [False, True])
def test_many_keys_come_in_blocks(tmp_path: Path, shuffled: bool) -> None:
    numbers = np.random.default_rng(5).permutation(50_000) if shuffled else np.arange(50_000)
    start, text = columns([b"%08d" % number for number in numbers])
    blocks = list(external_key_order(start, text, tmp_path, memory_bytes=128 * 4_000))
    assert np.array_equal(np.concatenate(blocks), key_order(start, text))
    if shuffled:
        assert len(blocks) == 13
        assert max(map(len, blocks)) < 1.3 * 4_000
