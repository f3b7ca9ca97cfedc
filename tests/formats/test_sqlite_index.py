"""`index.sqlite`: what is written."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from full_disk import size_limit
from hypothesis import given, settings, strategies as st
from made_scans import scan_of
from patience import PATIENCE_S
from sqlite_rows import rows

from energon_grain.errors import DuplicateKeyError
from energon_grain.formats.sqlite_index import write_sqlite_index

SAMPLES = st.lists(
    st.tuples(st.one_of(st.text(max_size=4).map(lambda text: text.encode("utf-8", "ignore")), st.binary(max_size=3))),
    unique=True,
    max_size=60,
).map(lambda rows: [row[0].replace(b"\0", b"0") for row in rows])


@settings(max_examples=30)
@given(keys=SAMPLES, cut=st.integers(0, 60))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, keys: list[bytes], cut: int) -> None:
    keys = list(dict.fromkeys(keys))
    path = tmp_path_factory.mktemp("sqlite") / "index.sqlite"
    shards = [keys[:cut], keys[cut:]]
    write_sqlite_index(path, ((5 + number, scan_of(shard)) for number, shard in enumerate(shards)))
    expected = [
        (5 + number, key.decode("utf-8", "surrogateescape"), i, i * 2048, 2048)
        for number, shard in enumerate(shards)
        for i, key in enumerate(shard)
    ]
    assert rows(path, "SELECT * FROM samples") == expected
    texts = rows(path, "SELECT * FROM sample_parts WHERE part_name = 'txt'")
    assert texts == [(shard, i, "txt", i * 2048 + 1536, (2 * i + 1) % 500) for shard, _, i, *_ in expected]
    assert rows(path, "SELECT COUNT(*) FROM sample_parts WHERE part_name = 'jpg'") == [(len(keys),)]


def test_schema_and_row_order(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    write_sqlite_index(path, [(1, scan_of([b"b", b"a"])), (0, scan_of([b"c"]))])
    database = sqlite3.connect(path)
    try:
        assert [row[0] for row in database.execute("SELECT sample_key FROM samples ORDER BY rowid")] == ["b", "a", "c"]
        columns = [row[1:4] for row in database.execute("PRAGMA table_info(samples)")]
        assert columns == [
            ("tar_file_id", "INTEGER", 1),
            ("sample_key", "TEXT", 1),
            ("sample_index", "INTEGER", 1),
            ("byte_offset", "INTEGER", 0),
            ("byte_size", "INTEGER", 0),
        ]
        indices = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        assert indices == {
            "sqlite_autoindex_samples_1",
            "idx_samples_by_tar_and_idx",
            "idx_sample_parts_seq",
            "idx_sample_parts_full",
        }
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA user_version").fetchone() == (0,)
    finally:
        database.close()


def test_written_bytes_do_not_depend_on_the_run(tmp_path: Path) -> None:
    scans = [(number, scan_of([b"%d-%d" % (number, i) for i in range(100)])) for number in range(3)]
    for name in ("a", "b"):
        write_sqlite_index(tmp_path / name, scans)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_duplicates_are_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    write_sqlite_index(path, [(0, scan_of([b"a"]))])
    before = path.read_bytes()
    shards = ["s0.tar", "s1.tar", "s2.tar"]
    scans = [(0, scan_of([b"a", b"b"])), (1, scan_of([b"c", b"a"])), (2, scan_of([b"b"]))]
    with pytest.raises(DuplicateKeyError) as caught:
        write_sqlite_index(path, scans, shard_name=shards.__getitem__)
    assert "'a' in s0.tar and in s1.tar; 'b' in s0.tar and in s2.tar" in str(caught.value)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["index.sqlite"]


def test_errors_of_the_system_are_os_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_sqlite_index(tmp_path / "nothing" / "index.sqlite", [])
    with (
        pytest.raises(OSError, match=r"index\.sqlite: cannot be written: .*is there room on the disk"),
        size_limit(20_000),
    ):
        write_sqlite_index(tmp_path / "index.sqlite", [])
    assert list(tmp_path.iterdir()) == []


def test_duplicates_that_are_not_text(tmp_path: Path) -> None:
    scans = [(3, scan_of([b"\xff", b"b", b"b"])), (4, scan_of([b"a", b"\xff", b"b"]))]
    with pytest.raises(DuplicateKeyError) as caught:
        write_sqlite_index(tmp_path / "index.sqlite", scans)
    assert "3 samples have the key of another one" in str(caught.value)
    assert "'b' in tar file 3 twice" in str(caught.value)
    assert r"'\\xff' in tar file 3 and in tar file 4" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_memory_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from made_scans import scan_of
from sqlite_rows import rows
from energon_grain.formats.sqlite_index import write_sqlite_index

def scans(shards):
    for shard in range(shards):
        yield shard, scan_of([b"%d/%018d" % (shard, i) for i in range(1000)])

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

write_sqlite_index(Path(sys.argv[1]), scans(20), cache_bytes=1 << 20)
before = peak_bytes()
write_sqlite_index(Path(sys.argv[1]), scans(200), cache_bytes=1 << 20)
assert peak_bytes() - before < 4 << 20, peak_bytes() - before
"""
    command = [sys.executable, "-c", program, str(tmp_path / "index.sqlite"), str(Path(__file__).parents[1])]
    subprocess.run(command, check=True, timeout=PATIENCE_S)


def test_a_repeated_part_is_there_twice(tmp_path: Path) -> None:
    scan = scan_of([b"a"], [("x", "y")])
    scan.part_name[1] = 0
    write_sqlite_index(tmp_path / "i", [(0, scan)])
    found = rows(tmp_path / "i", "SELECT part_name, content_byte_offset FROM sample_parts ORDER BY 2")
    assert [name for name, _ in found] == ["x", "x"]
    assert found[1][1] == 1536
