"""Files of joins, to the byte, and their columnar form; keys sorted as bytes, in memory and through files."""

from __future__ import annotations

import hashlib
import pickle
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from energon_grain.errors import IndexFileError
from energon_grain.formats.columnar_header import ColumnWriter
from energon_grain.formats.join_index import (
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
from energon_grain.formats.key_order import duplicate_keys, external_key_order, is_ascending, key_order

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
    with pytest.raises(IndexFileError, match="prepared anew"):
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
