"""Local files: their bytes, spans and bound; locks, and files that appear whole or not at all."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from forking import may_fork
from hypothesis import example, given, settings, strategies as st
from patience import PATIENCE_S

from energon_grain.atomic_files import atomic_write, atomic_write_bytes, atomic_write_text, locked
from energon_grain.errors import ReadError
from energon_grain.formats import local_files as local
from energon_grain.formats.local_files import LocalFiles
from energon_grain.storage.byte_store import MAX_SPAN_BYTES, Spans, coalesce


def content(number: int, size: int) -> bytes:
    return np.random.default_rng(number).bytes(size)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    made = [tmp_path / f"file-{number:02d}" for number in range(30)]
    for number, path in enumerate(made):
        path.write_bytes(content(number, 5000))
    return [os.fspath(path) for path in made]


def read(store: LocalFiles, paths: list[str], ranges: list[tuple[int, int, int]]) -> list[bytes]:
    file, start, stop = (np.array([r[i] for r in ranges], np.int64) for i in range(3))
    return store.read_spans(paths, file, start, stop)


def open_below(folder: Path) -> int:
    """Descriptors of this process that lie in a folder."""
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            names.append(os.readlink(entry))
        except OSError:
            continue
    return sum(name.startswith(str(folder)) for name in names)


def test_reads_what_is_asked_for_in_that_order(paths: list[str]) -> None:
    ranges = [(3, 10, 20), (0, 0, 5000), (3, 4990, 5000), (29, 7, 7), (3, 10, 20)]
    for _ in range(2):  # with and without advice to the kernel
        store = LocalFiles()
        for _ in range(2):
            assert read(store, paths, ranges) == [content(f, 5000)[a:b] for f, a, b in ranges]
    assert store.size(paths[0]) == 5000


def test_open_files_are_bounded(paths: list[str], tmp_path: Path) -> None:
    store = LocalFiles(max_open_files=5)
    every = [(number, 0, 9) for number in range(30)]
    for _ in range(3):
        assert read(store, paths, every) == [content(number, 9) for number in range(30)]
        assert open_below(tmp_path) == 5
    store.close()
    assert open_below(tmp_path) == 0
    assert read(store, paths, every[:2]) == [content(0, 9), content(1, 9)]
    del store
    assert open_below(tmp_path) == 0


def test_threads_that_compete_for_few_files(paths: list[str], tmp_path: Path) -> None:
    """A file that one thread closes for lack of room stays open for the thread that reads it."""
    store = LocalFiles(max_open_files=2)
    failures: list[BaseException] = []
    most = 0

    def work(seed: int) -> None:
        nonlocal most
        rng = np.random.default_rng(seed)
        try:
            for _ in range(60):
                begins = rng.integers(0, 4900, 8).tolist()
                ranges = [(file, at, at + 50) for file, at in zip(rng.integers(0, 30, 8).tolist(), begins, strict=True)]
                assert read(store, paths, ranges) == [content(f, 5000)[a:b] for f, a, b in ranges]
                most = max(most, open_below(tmp_path))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert most <= 2 + 2 * len(threads)


def test_a_file_that_loses_its_place_while_it_is_asked_for_its_size(
    paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalFiles(max_open_files=1)
    asked: list[int] = []
    fstat = os.fstat

    def stat(descriptor: int) -> os.stat_result:
        asked.append(descriptor)
        if len(asked) == 1:
            store.tails(paths[:1], [0])  # meanwhile another file takes the place
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", stat)
    assert store.size(paths[1]) == 5000


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"cannot open .*nowhere: No such file"):
        LocalFiles().size(os.fspath(tmp_path / "nowhere"))


def test_a_file_that_ends_too_early(paths: list[str]) -> None:
    store = LocalFiles()
    with pytest.raises(ReadError, match=r"ends at byte 5000, but bytes 4000 to 6000 were requested.*truncated"):
        read(store, paths, [(0, 4000, 6000)])
    assert read(store, paths, [(0, 4000, 5000)]) == [content(0, 5000)[4000:]]


def test_what_the_kernel_refuses_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_PAUSES_SECONDS", (0.001, 0.001))
    with pytest.raises(ReadError, match=r"@ 5 \(10 bytes\) failed 4 times: Is a directory"):
        read(LocalFiles(), [os.fspath(tmp_path)], [(0, 5, 15)])


def test_a_lost_handle_is_opened_again(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor gone bad (as after a network file system came back) costs a pause, not the run."""
    monkeypatch.setattr(local, "_PAUSES_SECONDS", (0.001,))
    store = LocalFiles()
    store.size(paths[1])
    lost = store._open[paths[1]]
    good, lost.descriptor = lost.descriptor, os.open(paths[1], os.O_WRONLY)
    os.close(good)
    assert read(store, paths, [(1, 3, 30)]) == [content(1, 5000)[3:30]]


def test_copies_in_other_processes_open_their_own_files(paths: list[str]) -> None:
    store = LocalFiles(max_open_files=3)
    store.size(paths[0])
    copy = pickle.loads(pickle.dumps(store))
    assert not copy._open
    assert read(copy, paths, [(number, 1, 4) for number in range(9)])[8] == content(8, 5000)[1:4]
    assert len(copy._open) == 3


def test_a_file_that_cannot_be_opened_for_a_moment_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    monkeypatch.setattr(local, "_PAUSES_SECONDS", (0.0, 0.0))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = LocalFiles()
    gc.collect()  # what other tests left open must not be closed while this one counts descriptors
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limit[1]))
    try:
        with pytest.raises(ReadError, match="Too many open files"):
            files.size(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert files.size(str(path)) == 10
    with pytest.raises(ReadError, match="No such file"):
        files.size(str(tmp_path / "missing"))


def test_one_at_a_time(tmp_path: Path) -> None:
    done: list[str] = []

    def second() -> None:
        with open(tmp_path / "lock", "wb") as file, locked(file):
            done.append("second")

    with open(tmp_path / "lock", "wb") as file, locked(file):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        done.append("first")
    thread.join(PATIENCE_S)
    assert done == ["first", "second"]


@may_fork
def test_a_child_that_was_forked_meanwhile_holds_nothing_up(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    over = context.Event()
    child = context.Process(target=over.wait, args=(60,))
    with open(tmp_path / "lock", "wb") as file, locked(file):
        child.start()
    entered = threading.Event()

    def enter() -> None:
        with open(tmp_path / "lock", "wb") as file, locked(file):
            entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    try:
        assert entered.wait(PATIENCE_S)
    finally:
        over.set()
        child.join()
        waiting.join()


def test_replaces_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_write_bytes(path, b"old")
    atomic_write_text(path, "né w")
    assert path.read_text(encoding="utf-8") == "né w"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        write()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_new_file_is_not_seen_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"new"


def test_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    atomic_write_bytes(path, b"new")
    assert path.stat().st_mode & 0o7777 == 0o640


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    """Of `write`, which names none; other errors are left alone."""
    path = tmp_path / "file"
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*/file'$"),
        atomic_write(path),
        open("/dev/full", "wb") as full,
    ):
        full.write(b"x")
    for error in (OSError(errno.EIO, "broken"), OSError("our own"), OSError(errno.ENOSPC, "no room", "elsewhere")):
        with pytest.raises(OSError, match=f"^{re.escape(str(error))}$"), atomic_write(path):
            raise error
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic_write_bytes(tmp_path / "none" / "file", b"")


KILLED = """
import os, signal, sys
from energon_grain.atomic_files import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"x" * 100_000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment, timeout=PATIENCE_S)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


Range = tuple[int, int, int]

small_ranges = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400), st.integers(0, 60)), max_size=40)
wide_ranges = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 40 << 20), st.integers(0, 3 << 20)), min_size=1, max_size=30
)


def spans_of(ranges: list[Range], gap: int, solo: int) -> Spans:
    file, start, size = (np.array([r[i] for r in ranges], np.int64) for i in range(3))
    return coalesce(file, start, size, merge_gap_bytes=gap, solo_bytes=solo)


@given(ranges=small_ranges, gap=st.integers(0, 50), solo=st.integers(1, 80))
@example(ranges=[(0, 0, 100), (0, 2, 3), (0, 60, 10)], gap=0, solo=1 << 20)  # the third begins inside the first
def test_every_range_lies_in_its_span(ranges: list[Range], gap: int, solo: int) -> None:
    spans = spans_of(ranges, gap, solo)
    for place, (file, start, size) in enumerate(ranges):
        span = int(spans.span[place])
        assert spans.file[span] == file
        assert spans.start[span] + spans.offset[place] == start
        assert start + size <= spans.stop[span]


def test_ranges_far_out_in_many_files_are_put_in_order() -> None:
    far = 1 << 62
    spans = spans_of([(9, far, 5), (9, 3, 5), (2, far + 8, 5), (2, far, 5)], 8, 1 << 20)
    assert spans.file.tolist() == [2, 9, 9]
    assert spans.start.tolist() == [far, 3, far]
    assert spans.span.tolist() == [2, 1, 0, 0]


@given(ranges=small_ranges, gap=st.integers(0, 50), solo=st.integers(1, 80))
def test_spans_cover_nothing_but_ranges_and_small_gaps(ranges: list[Range], gap: int, solo: int) -> None:
    spans = spans_of(ranges, gap, solo)
    for span in range(len(spans.start)):
        mine = sorted(ranges[i][1:] for i in np.flatnonzero(spans.span == span))
        assert mine, "a span without a range"
        assert spans.start[span] == mine[0][0]
        assert spans.stop[span] == max(start + size for start, size in mine)
        reached = mine[0][0]
        for start, size in mine:
            assert start - reached <= gap
            reached = max(reached, start + size)


@given(ranges=small_ranges, gap=st.integers(0, 50), solo=st.integers(1, 80))
def test_ranges_are_read_as_they_are_cut_from_spans(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[Range], gap: int, solo: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    paths = [folder / f"ranges-{number}" for number in range(3)]
    for number, path in enumerate(paths):
        if not path.exists():
            path.write_bytes(content(number, 500))
    spans, size = spans_of(ranges, gap, solo), np.array([size for _, _, size in ranges], np.int64)
    found = LocalFiles().read_ranges([os.fspath(path) for path in paths], spans, size)
    assert found == [content(file, 500)[start : start + long] for file, start, long in ranges]


@given(ranges=small_ranges, gap=st.integers(0, 50), solo=st.integers(1, 80))
def test_large_ranges_are_alone(ranges: list[Range], gap: int, solo: int) -> None:
    spans = spans_of(ranges, gap, solo)
    for place, (_, _, size) in enumerate(ranges):
        if size >= solo:
            assert np.count_nonzero(spans.span == spans.span[place]) == 1
            assert spans.stop[spans.span[place]] - spans.start[spans.span[place]] == size


@settings(max_examples=60)
@given(ranges=wide_ranges)
def test_spans_are_bounded(ranges: list[Range]) -> None:
    """A span never crosses a multiple of 8 MiB, but for the range that it ends with."""
    spans = spans_of(ranges, 1 << 30, 4 << 20)
    largest = max(size for _, _, size in ranges)
    assert (spans.stop - spans.start).max() <= MAX_SPAN_BYTES + largest


@given(ranges=small_ranges)
def test_spans_come_in_the_order_of_the_files(ranges: list[Range]) -> None:
    spans = spans_of(ranges, 8, 64)
    order = list(zip(spans.file.tolist(), spans.start.tolist(), strict=True))
    assert order == sorted(order)


def test_the_example_of_the_docstring() -> None:
    spans = spans_of([(0, 0, 10), (0, 12, 5), (0, 500, 5)], 4, 1 << 20)
    assert spans.start.tolist() == [0, 500]
    assert spans.stop.tolist() == [17, 505]
    assert spans.span.tolist() == [0, 0, 1]
    assert spans.offset.tolist() == [0, 12, 0]


def test_nothing_asked_for() -> None:
    spans = spans_of([], 4, 16)
    assert [len(column) for column in (spans.file, spans.start, spans.stop, spans.span, spans.offset)] == [0] * 5
