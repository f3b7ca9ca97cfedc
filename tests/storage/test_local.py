"""Local files: the bytes, the bound on open files, what is raised."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import threading
from pathlib import Path

import numpy as np
import pytest

from energon_grain.errors import ReadError
from energon_grain.storage import local
from energon_grain.storage.local import LocalFiles


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
    with pytest.raises(ReadError, match=r"ends at byte 5000, but bytes 4000 to 6000 were asked for.*truncated"):
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
