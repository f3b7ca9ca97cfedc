"""Objects as a byte store: few requests, no byte twice, never two versions mixed, and a prompt end of the program."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RunScript
from forking import may_fork
from hypothesis import given, settings, strategies as st
from object_server import Bucket, Fault, Request
from patience import PATIENCE_S
from remote_reading import digest, read, read_for_ever

from energon_grain import StorageSettings
from energon_grain.errors import RangeError, ReadError, StaleIndexError, WorkerError
from energon_grain.stores.held_bytes import HeldRanges, held_ranges
from energon_grain.stores.remote_files import BLOCK_BYTES, RemoteFiles
from energon_grain.testing import make_text_dataset

SIZE = 20 * BLOCK_BYTES + 777
CONTENT = np.random.default_rng(0).bytes(SIZE)
OTHER = np.random.default_rng(1).bytes(SIZE)
MakeFiles = Callable[..., RemoteFiles]


@pytest.fixture
def make_files(tmp_path: Path) -> MakeFiles:
    def make(**changed: Any) -> RemoteFiles:
        quick = {"timeout_s": 5.0, "attempts": 4, "first_pause_s": 0.01, "longest_pause_s": 0.05}
        return RemoteFiles(StorageSettings(**{**quick, "cache_dir": str(tmp_path / "objects"), **changed}))

    return make


@pytest.fixture
def url(bucket: Bucket) -> str:
    bucket.put("x.tar", CONTENT)
    bucket.server.reset()
    return f"{bucket.url}/x.tar"


def extent(request: Request) -> tuple[int, int]:
    first, _, last = request.range.removeprefix("bytes=").partition("-")
    return int(first), int(last) + 1


def fetched_blocks(bucket: Bucket) -> Counter[int]:
    """How often each block came, by what the server recorded."""
    blocks: Counter[int] = Counter()
    for request in bucket.server.requests("tar"):
        if request.sent_bytes >= 777:  # not what a size is learnt by
            start, stop = extent(request)
            blocks.update(range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)))
    return blocks


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, SIZE), st.integers(0, 700_000)), max_size=12))
@pytest.mark.parametrize("cache_bytes", [0, 1 << 30, 3 * BLOCK_BYTES])
def test_ranges_of_several_objects_are_those_of_slices(
    shared: tuple[Bucket, str], cache_bytes: int, wanted: list[tuple[int, int, int]]
) -> None:
    bucket, folder = shared
    files = RemoteFiles(StorageSettings(cache_dir=f"{folder}/{cache_bytes}", cache_bytes=cache_bytes))
    file = np.array([one for one, _, _ in wanted], np.int64)
    start = np.array([min(start, SIZE) for _, start, _ in wanted], np.int64)
    stop = np.minimum(start + np.array([size for _, _, size in wanted], np.int64), SIZE)
    found = files.read_spans([f"{bucket.url}/{name}" for name in "012"], file, start, stop)
    assert all(type(data) is bytes for data in found)
    assert found == [
        (CONTENT, OTHER, CONTENT[::-1])[one][begin:end] for one, begin, end in zip(file, start, stop, strict=True)
    ]


@pytest.fixture(scope="module")
def shared(object_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bucket, str]]:
    """A bucket with three objects, and a folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in object_server.environment.items():
            patch.setenv(name, value)
        bucket = object_server.make_bucket("shared")
        for name, content in zip("012", (CONTENT, OTHER, CONTENT[::-1]), strict=True):
            bucket.put(name, content)
        yield bucket, str(tmp_path_factory.mktemp("objects"))


def test_neighbours_come_in_one_request(make_files: MakeFiles, bucket: Bucket, url: str) -> None:
    files = make_files()
    files.tails([url], [SIZE - 1])
    bucket.server.reset()
    ranges = [(start, start + 20_000) for start in range(0, 4_000_000, 25_000)]
    assert read(files, url, ranges) == [CONTENT[start:stop] for start, stop in ranges]
    (request,) = bucket.server.requests("tar")
    assert extent(request) == (0, 16 * BLOCK_BYTES)
    assert read(files, url, ranges) == [CONTENT[start:stop] for start, stop in ranges]
    assert len(bucket.server.requests("tar")) == 1


def test_what_lies_far_apart_does_not_bring_what_is_between(make_files: MakeFiles, bucket: Bucket, url: str) -> None:
    files = make_files()
    files.tails([url], [SIZE - 1])
    bucket.server.reset()
    assert read(files, url, [(5, 10), (19 * BLOCK_BYTES + 5, 19 * BLOCK_BYTES + 9)]) == [
        CONTENT[5:10],
        CONTENT[19 * BLOCK_BYTES + 5 : 19 * BLOCK_BYTES + 9],
    ]
    assert [request.sent_bytes for request in bucket.server.requests("tar")] == [BLOCK_BYTES] * 2


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
def test_long_ranges_come_in_several_requests_at_a_time(
    make_files: MakeFiles, bucket: Bucket, url: str, cache_bytes: int
) -> None:
    files = make_files(request_bytes=4 * BLOCK_BYTES, requests_in_flight=3, cache_bytes=cache_bytes)
    files.tails([url], [SIZE - 1])
    bucket.server.reset()
    bucket.server.delay(0.4)
    assert read(files, url, [(0, SIZE)]) == [CONTENT]
    requests = bucket.server.requests("tar")
    assert max(request.sent_bytes for request in requests) <= 5 * BLOCK_BYTES
    assert sum(request.sent_bytes for request in requests) == SIZE
    assert max(request.concurrent for request in requests) == 3


def test_the_end_of_an_object_and_its_size_are_one_request(make_files: MakeFiles, bucket: Bucket, url: str) -> None:
    files = make_files()
    bucket.put("y.tar", b"")
    urls = [url, url.replace("x.tar", "y.tar"), url]
    assert files.tails(urls, [SIZE - 1024, 0, SIZE]) == [CONTENT[-1024:], b"", b""]
    assert files.size(url) == SIZE
    assert files.size(urls[1]) == 0
    assert len(bucket.server.requests("tar")) == 3
    with pytest.raises(RangeError, match=url):
        files.tails([url], [SIZE + 5])


def test_a_look_at_a_header_fetches_nothing_else(make_files: MakeFiles, bucket: Bucket, url: str) -> None:
    files = make_files()
    files.tails([url], [SIZE - 1])
    bucket.server.reset()
    assert files.peek([url, url], [0, 70_001], 512) == [CONTENT[:512], CONTENT[70_001:70_513]]
    assert [request.sent_bytes for request in bucket.server.requests("tar")] == [512, 512]
    with pytest.raises(RangeError, match=url):
        files.peek([url], [SIZE - 5], 512)


@pytest.mark.parametrize("size", [0, 1, 2, 777, 300_000, SIZE])
def test_a_size_alone_is_found_out(make_files: MakeFiles, bucket: Bucket, size: int) -> None:
    bucket.put("y.tar", CONTENT[:size])
    bucket.server.reset()
    assert make_files().size(f"{bucket.url}/y.tar") == size
    assert sum(request.sent_bytes for request in bucket.server.requests("tar")) < 2_000
    assert len(bucket.server.requests("tar")) <= 2


def test_what_is_not_there_or_too_short_is_named(make_files: MakeFiles, bucket: Bucket, url: str) -> None:
    files = make_files()
    for ask in (files.size, lambda path: files.tails([path], [5]), lambda path: read(files, path, [(0, 1)])):
        with pytest.raises(ReadError, match=rf"{bucket.url}/none: no such object"):
            ask(f"{bucket.url}/none")
    with pytest.raises(ReadError, match=rf"{url} has {SIZE} bytes, but bytes up to {SIZE + 1} were requested"):
        read(files, url, [(5, SIZE + 1)])


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", status=503, times=3),
        Fault("reset", times=2),
        Fault("close", sent=0.7, times=3),
        Fault("reset", sent=0.1, times=3),
        Fault("short", sent=0.4, times=3),
    ],
    ids=["503", "dropped", "truncated", "reset", "short"],
)
@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
def test_failures_that_pass_change_nothing(
    make_files: MakeFiles, bucket: Bucket, url: str, fault: Fault, cache_bytes: int
) -> None:
    files = make_files(cache_bytes=cache_bytes, request_bytes=4 * BLOCK_BYTES)
    files.tails([url], [SIZE - 1])
    bucket.server.inject(fault)
    assert read(files, url, [(5, SIZE - 5)]) == [CONTENT[5:-5]]


def test_a_failure_names_object_range_and_attempts_and_blocks_nobody(
    make_files: MakeFiles, bucket: Bucket, url: str
) -> None:
    files = make_files(timeout_s=2 * PATIENCE_S)
    files.tails([url], [SIZE - 1])
    bucket.server.inject(Fault("status", times=None))
    with pytest.raises(ReadError, match=rf"reading {url} bytes 0 to {BLOCK_BYTES} failed: .*SlowDown.* \(4 attempts"):
        read(files, url, [(5, 10)])
    bucket.server.reset()
    assert read(files, url, [(5, 10)]) == [CONTENT[5:10]]


def test_the_store_goes_through_pickle(make_files: MakeFiles, bucket: Bucket, url: str) -> None:
    files = make_files()
    assert digest(pickle.loads(pickle.dumps(files)), url, 1_000_000) == hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
def test_an_object_that_was_replaced_is_an_error(
    make_files: MakeFiles, bucket: Bucket, url: str, cache_bytes: int
) -> None:
    files = make_files(cache_bytes=cache_bytes)
    assert read(files, url, [(0, 10)]) == [CONTENT[:10]]
    bucket.put("x.tar", OTHER)
    with pytest.raises(StaleIndexError, match=rf"{url}: was replaced while it was read \(version .* then, .* now\)"):
        read(files, url, [(BLOCK_BYTES, BLOCK_BYTES + 10)])
    with pytest.raises(StaleIndexError):
        files.tails([url], [SIZE - 5])
    files.close()
    assert read(files, url, [(0, SIZE)]) == [OTHER]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
@pytest.mark.parametrize("left_bytes", [0, 10, 2 * BLOCK_BYTES])
def test_an_object_that_was_replaced_by_a_shorter_one_is_an_error(
    make_files: MakeFiles, bucket: Bucket, url: str, cache_bytes: int, left_bytes: int
) -> None:
    files = make_files(cache_bytes=cache_bytes)
    assert read(files, url, [(0, 10)]) == [CONTENT[:10]]
    bucket.put("x.tar", CONTENT[:left_bytes])
    with pytest.raises(StaleIndexError, match=rf"{url} .*it has {left_bytes} bytes.*it was replaced by a shorter one"):
        read(files, url, [(BLOCK_BYTES, SIZE)])
    files.close()
    assert read(files, url, [(0, left_bytes)]) == [CONTENT[:left_bytes]]


def test_what_a_reader_has_is_what_an_earlier_one_kept(make_files: MakeFiles, bucket: Bucket, url: str) -> None:
    assert digest(make_files(), url, 1_000_000) == hashlib.sha256(CONTENT).hexdigest()
    bucket.put("x.tar", OTHER)
    assert digest(make_files(), url, 1_000_000) == hashlib.sha256(OTHER).hexdigest()
    bucket.put("x.tar", CONTENT)
    bucket.server.reset()
    assert digest(make_files(), url, 1_000_000) == hashlib.sha256(CONTENT).hexdigest()
    assert fetched_blocks(bucket) == {}  # the first version's entity tag again


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
def test_versions_are_never_mixed(
    make_files: MakeFiles, bucket: Bucket, url: str, cache_bytes: int, tmp_path: Path
) -> None:
    bucket.server.delay(0.01)
    over = threading.Event()

    def replace() -> None:
        while not over.wait(0.03):
            bucket.put("x.tar", OTHER)
            bucket.put("x.tar", CONTENT)

    writer = threading.Thread(target=replace)
    writer.start()
    outcomes: Counter[str] = Counter()
    try:
        for number in range(25):
            files = make_files(
                cache_bytes=cache_bytes,
                request_bytes=2 * BLOCK_BYTES,
                cache_dir=f"{make_files().settings.cache_folder}{number}",
            )
            try:
                (found,) = read(files, url, [(0, SIZE)])
            except StaleIndexError:
                outcomes["error"] += 1
            else:
                assert found in (CONTENT, OTHER)
                outcomes["whole"] += 1
    finally:
        over.set()
        writer.join()
    assert outcomes["error"]


def test_two_threads_fetch_nothing_twice(make_files: MakeFiles, bucket: Bucket, url: str) -> None:
    files = make_files()
    files.tails([url], [SIZE - 1])
    bucket.server.reset()
    bucket.server.delay(0.02)
    readers = [threading.Thread(target=digest, args=(files, url, 100_000)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert fetched_blocks(bucket) == Counter(range(21))


def test_the_cache_keeps_its_bound(make_files: MakeFiles, bucket: Bucket, url: str) -> None:
    bound = 8 * BLOCK_BYTES
    files = make_files(cache_bytes=bound)
    for number in range(6):
        bucket.put(f"{number}.tar", CONTENT[number:])
    folder = Path(files.settings.cache_folder) / "pages"
    for number in range(6):
        path = f"{bucket.url}/{number}.tar"
        for start in range(0, SIZE - 6, 3 * BLOCK_BYTES):
            stop = min(start + 3 * BLOCK_BYTES, SIZE - 6)
            assert read(files, path, [(start, stop)]) == [CONTENT[number + start : number + stop]]
            assert sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file()) <= bound


def test_a_process_killed_in_the_middle_of_a_fetch_hinders_nobody(
    make_files: MakeFiles, bucket: Bucket, url: str
) -> None:
    files = make_files(timeout_s=2 * PATIENCE_S)
    bucket.server.inject(Fault("stall", sent=0.5, match="x.tar bytes=0-"))
    reader = multiprocessing.get_context("spawn").Process(target=read_for_ever, args=(files, url))
    reader.start()
    try:
        while not any(request.sent_bytes > 1000 for request in bucket.server.requests("x.tar")):
            time.sleep(0.01)
    finally:
        assert reader.pid is not None
        os.kill(reader.pid, signal.SIGKILL)
        reader.join()
        reader.close()
    bucket.server.reset()
    assert digest(files, url, 1_000_000) == hashlib.sha256(CONTENT).hexdigest()
    assert fetched_blocks(bucket) == Counter(range(21))


def test_damaged_blocks_are_fetched_again_by_the_next_process(make_files: MakeFiles, bucket: Bucket, url: str) -> None:
    files = make_files()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        assert pool.submit(digest, files, url, SIZE).result(60) == hashlib.sha256(CONTENT).hexdigest()
    (copy,) = (Path(files.settings.cache_folder) / "pages").glob("*/*-000000")
    with copy.open("r+b") as file:
        file.seek(4096 + 5 * BLOCK_BYTES + 50_000)
        file.write(bytes(4096))
    bucket.server.reset()
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        assert pool.submit(digest, files, url, SIZE).result(60) == hashlib.sha256(CONTENT).hexdigest()
    assert fetched_blocks(bucket) == Counter([5])


def test_objects_beyond_the_descriptors_of_a_process(bucket: Bucket, tmp_path: Path, run_script: RunScript) -> None:
    for number in range(150):
        bucket.put(f"{number}.tar", b"%d" % number)
    script = """
import resource, sys
import numpy as np
from energon_grain.stores.remote_files import RemoteFiles
from energon_grain.storage.settings import StorageSettings
resource.setrlimit(resource.RLIMIT_NOFILE, (240, 240))
files, count = RemoteFiles(StorageSettings(cache_dir=sys.argv[2])), 150
paths = [f"{sys.argv[1]}/{number}.tar" for number in range(count)]
files.tails(paths, [0] * count)
for _ in range(2):
    stop = np.array([len(str(number)) for number in range(count)])
    found = files.read_spans(paths, np.arange(count)[::-1], np.zeros(count, np.int64), stop[::-1])
    assert found == [b"%d" % number for number in range(count)][::-1]
    traffic = files._client.traffic  # a busy machine answers late, so some requests are sent again
    print(traffic.requests - traffic.sent_twice, traffic.repeated - traffic.sent_twice)
"""
    done = run_script(script, bucket.url, tmp_path / "objects", env=bucket.server.environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["300", "0", "300", "0"]


HELD = bytes(range(200))
ranges = st.tuples(st.integers(0, 199), st.integers(0, 60)).map(lambda one: (one[0], min(one[0] + one[1], 200)))


@given(st.lists(ranges, max_size=20), ranges)
def test_what_is_held_and_what_is_missing_make_the_whole(added: list[tuple[int, int]], wanted: tuple[int, int]) -> None:
    held = HeldRanges(10_000)
    there: set[int] = set()
    for start, stop in added:
        assert all(there.isdisjoint(range(begin, end)) for begin, end in held.missing("a", start, stop))
        held.add("a", start, [HELD[start:stop][:7], HELD[start:stop][7:]])
        there.update(range(start, stop))
    start, stop = wanted
    missing = {byte for begin, end in held.missing("a", start, stop) for byte in range(begin, end)}
    assert missing == set(range(start, stop)) - there
    assert held.read("a", start, stop) == (None if missing else HELD[start:stop])
    assert held.missing("b", start, stop) == ([(start, stop)] if start < stop else [])


def test_the_oldest_go_first_and_one_always_stays() -> None:
    held = HeldRanges(100)
    for start in range(0, 160, 40):
        held.add("a", start, [HELD[start : start + 40]])
    assert held.missing("a", 0, 160) == [(0, 80)]
    held.add("b", 0, [HELD])
    assert held.read("b", 5, 190) == HELD[5:190]
    assert held.read("a", 150, 160) is None
    held.discard("b")
    assert held.missing("b", 0, 200) == [(0, 200)]
    held.add("c", 0, [HELD[:100]])
    assert held.read("c", 0, 100) == HELD[:100]


def test_what_comes_after_a_reader_was_closed_is_not_held(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_bytes = 12_345_678  # of this test alone
    files = RemoteFiles(StorageSettings(cache_bytes=0, ahead_bytes=ahead_bytes))
    bucket.put("x", bytes(1000))
    url = f"{bucket.url}/x"
    assert files.size(url) == 1000
    bucket.server.reset()
    began, go = threading.Event(), threading.Event()
    read = files.versions.read

    def waiting(*args: Any) -> Any:
        began.set()
        go.wait(PATIENCE_S)
        return read(*args)

    monkeypatch.setattr(files.versions, "read", waiting)
    prefetching = threading.Thread(target=files.prefetch, args=(url, 0, 1000))
    prefetching.start()
    assert began.wait(PATIENCE_S)
    files.close()
    go.set()
    prefetching.join()
    assert bucket.server.requests("x")
    assert held_ranges(ahead_bytes).size_bytes == 0
    bucket.server.reset()
    assert files.prefetch(url, 0, 1000)
    assert held_ranges(ahead_bytes).size_bytes == 1000
    files.close()
    assert held_ranges(ahead_bytes).size_bytes == 0


class _Slow:
    """Pieces that take until a test lets them be had."""

    def __init__(self) -> None:
        self.asked, self.may_come = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        self.asked.set()
        assert self.may_come.wait(PATIENCE_S)
        yield HELD[:10]


@may_fork
def test_a_fork_while_a_thread_adds_does_not_wait_for_it() -> None:
    held = HeldRanges(100)
    held.add("a", 0, [HELD[:10]])
    slow = _Slow()
    adding = threading.Thread(target=held.add, args=("b", 0, slow))
    adding.start()
    assert slow.asked.wait(PATIENCE_S)
    try:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if held.read("a", 0, 10) == HELD[:10] else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        slow.may_come.set()
        adding.join(PATIENCE_S)
    assert held.read("b", 0, 10) == HELD[:10]


WHOLE = hashlib.sha256(CONTENT).hexdigest()
METHODS = ["forkserver", "spawn"]


@pytest.fixture
def files(bucket: Bucket, tmp_path: Path) -> RemoteFiles:
    """They have read the first block of `x.tar`."""
    bucket.put("x.tar", CONTENT)
    made = RemoteFiles(StorageSettings(cache_dir=str(tmp_path / "objects"), timeout_s=5.0, first_pause_s=0.01))
    assert read(made, f"{bucket.url}/x.tar", [(5, 10)]) == [CONTENT[5:10]]
    bucket.server.reset()
    return made


def fetched(bucket: Bucket) -> int:
    return sum(request.sent_bytes for request in bucket.server.requests("x.tar"))


@pytest.mark.parametrize("method", METHODS)
def test_workers_read_what_their_parent_has_not(files: RemoteFiles, bucket: Bucket, method: str) -> None:
    bucket.server.delay(0.01)
    url = f"{bucket.url}/x.tar"
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context(method)) as pool:
        found = [pool.submit(digest, files, url, step, backwards=step == 70_000) for step in (50_000, 70_000, SIZE)]
        assert [one.result(60) for one in found] == [WHOLE] * 3
    assert not any(request.range.startswith("bytes=0-") for request in bucket.server.requests("x.tar"))
    bucket.server.reset()
    assert digest(files, url, SIZE) == WHOLE
    assert fetched(bucket) == 0


@pytest.mark.parametrize("method", METHODS)
def test_failures_are_told_to_workers(files: RemoteFiles, bucket: Bucket, method: str) -> None:
    url = f"{bucket.url}/x.tar"
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        assert pool.submit(read, files, url, [(0, 1)]).result(60) == [CONTENT[:1]]
        bucket.server.inject(Fault("close", sent=0.5, times=2), Fault("status", times=2))
        assert pool.submit(read, files, url, [(BLOCK_BYTES, SIZE)]).result(60) == [CONTENT[BLOCK_BYTES:]]
        with pytest.raises(Exception, match="none: no such object"):
            pool.submit(read, files, f"{bucket.url}/none", [(0, 1)]).result(60)


@may_fork
def test_a_fork_of_a_process_that_has_read_is_told_the_way_out(files: RemoteFiles, bucket: Bucket) -> None:
    said = r"x\.tar: this process was forked .* 'forkserver' or 'spawn' \(`multiprocessing_context='forkserver'`\)"
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=fork) as pool, pytest.raises(WorkerError, match=said):
        pool.submit(digest, RemoteFiles(files.settings), f"{bucket.url}/x.tar", SIZE).result(PATIENCE_S)
    assert digest(files, f"{bucket.url}/x.tar", SIZE) == WHOLE


def test_a_fork_of_a_process_that_has_read_nothing_reads(bucket: Bucket, run_script: Any) -> None:
    bucket.put("x.tar", CONTENT)
    done = run_script(UNTOUCHED, f"{bucket.url}/x.tar")
    assert (done.returncode, done.stderr) == (0, "")


UNTOUCHED = """
import os, sys
import numpy as np
from energon_grain.stores.remote_files import RemoteFiles
from energon_grain.storage.settings import StorageSettings
files = RemoteFiles(StorageSettings())
zero = np.zeros(1, np.int64)
child = os.fork()
assert len(files.read_spans([sys.argv[1]], zero, zero, zero + 5)[0]) == 5
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


_SCRIPT = """
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from energon_grain.stores.object_client import ObjectRange, shared_client
from energon_grain.storage.settings import storage_settings

url = sys.argv[1]


def begin():
    client = shared_client(storage_settings())
    pool = ThreadPoolExecutor(2)
    for _ in range(4):
        pool.submit(client.read, ObjectRange(url))
    while not client.traffic.requests:
        time.sleep(0.01)
    time.sleep(0.5)


begin()
print(time.time())
"""


@pytest.mark.parametrize("kind", ["stall", "status"])
def test_a_program_ends_while_requests_are_under_way(bucket: Bucket, run_script: RunScript, kind: str) -> None:
    bucket.put("a", b"text")
    bucket.server.inject(Fault("stall" if kind == "stall" else "status", times=None, match="/a "))
    done = run_script(_SCRIPT, f"{bucket.url}/a", env=bucket.server.environment)
    ended = time.time()
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "attempt" not in line] == []
    assert ended - float(done.stdout) < 50  # a request that stalls takes minutes


_UNCLOSED = """
import sys

from energon_grain import WorkerConfig, get_savable_loader, get_train_dataset

url, workers, backend = sys.argv[1:]
if backend == "torch":
    from energon_grain_torch import WorkerConfig, get_savable_loader, get_train_dataset
if __name__ == "__main__":
    dataset = get_train_dataset(
        url,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=int(workers)),
        batch_size=4,
        shuffle_buffer_size=20,
        max_samples_per_sequence=5,
    )
    loader = get_savable_loader(dataset)
    batches = iter(loader)
    for _ in range(3):
        print(len(next(batches).__key__))
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("backend", ["grain", "torch"])
def test_a_loader_that_is_never_closed(
    bucket: Bucket, run_script: RunScript, tmp_path: Path, workers: int, backend: str
) -> None:
    url = bucket.upload(make_text_dataset(tmp_path / "texts", n=60, shards=3))
    done = run_script(_UNCLOSED, url, workers, backend, env=bucket.server.environment)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.split(), done.stderr) == (["4"] * 3, "")
