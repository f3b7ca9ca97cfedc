"""Worker processes, however they were started, read on where their parent has read."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import psutil
import pytest
from forking import may_fork
from object_server import Bucket, Fault
from patience import PATIENCE_S
from remote_reading import digest, read, read_for_ever

from energon_grain.storage import helper_objects
from energon_grain.storage.helper_process import helper_process
from energon_grain.storage.remote_files import BLOCK_BYTES, RemoteFiles
from energon_grain.storage.storage_settings import StorageSettings

SIZE = 20 * BLOCK_BYTES + 777
CONTENT = np.random.default_rng(0).bytes(SIZE)
WHOLE = hashlib.sha256(CONTENT).hexdigest()
METHODS = ["fork", "forkserver", "spawn"]
pytestmark = may_fork


@pytest.fixture
def files(bucket: Bucket, tmp_path: Path) -> Iterator[RemoteFiles]:
    """They have read the first block of `x.tar`."""
    bucket.put("x.tar", CONTENT)
    made = RemoteFiles(StorageSettings(cache_dir=str(tmp_path / "objects"), timeout_s=5.0, first_pause_s=0.01))
    assert read(made, f"{bucket.url}/x.tar", [(5, 10)]) == [CONTENT[5:10]]
    bucket.server.reset()
    with nothing_left(bucket):
        yield made


@contextmanager
def nothing_left(bucket: Bucket) -> Iterator[None]:
    """Check that helper processes are gone a moment after the processes that started them."""
    yield
    until_s = time.monotonic() + PATIENCE_S
    while left := helpers(bucket):
        assert time.monotonic() < until_s, left
        time.sleep(0.05)


def helpers(bucket: Bucket) -> list[int]:
    found: list[int] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if (
                any("helper_objects import serve" in word for word in process.cmdline())
                and process.environ().get("AWS_ENDPOINT_URL") == bucket.server.endpoint
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process.pid)
    return found


def fetched(bucket: Bucket) -> int:
    return sum(request.sent_bytes for request in bucket.server.requests("x.tar"))


@pytest.mark.parametrize("method", METHODS)
def test_workers_read_what_their_parent_has_not_and_nothing_twice(
    files: RemoteFiles, bucket: Bucket, method: str
) -> None:
    bucket.server.delay(0.01)
    url = f"{bucket.url}/x.tar"
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context(method)) as pool:
        found = [pool.submit(digest, files, url, step, backwards=step == 70_000) for step in (50_000, 70_000, SIZE)]
        assert [one.result(60) for one in found] == [WHOLE] * 3
    assert fetched(bucket) < SIZE - BLOCK_BYTES + 5_000  # the parent had one block; sizes are learnt by each process
    assert digest(files, url, SIZE) == WHOLE


@pytest.mark.parametrize("method", METHODS)
def test_failures_are_told_to_workers(files: RemoteFiles, bucket: Bucket, method: str) -> None:
    url = f"{bucket.url}/x.tar"
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        assert pool.submit(read, files, url, [(0, 1)]).result(60) == [CONTENT[:1]]
        bucket.server.inject(Fault("close", sent=0.5, times=2), Fault("status", times=2))
        assert pool.submit(read, files, url, [(BLOCK_BYTES, SIZE)]).result(60) == [CONTENT[BLOCK_BYTES:]]
        with pytest.raises(Exception, match="none: there is no such object"):
            pool.submit(read, files, f"{bucket.url}/none", [(0, 1)]).result(60)


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_worker_leaves_nothing_behind(files: RemoteFiles, bucket: Bucket, method: str) -> None:
    url = f"{bucket.url}/x.tar"
    bucket.server.delay(0.05)
    worker = multiprocessing.get_context(method).Process(target=read_for_ever, args=(files, url))
    worker.start()
    try:
        while fetched(bucket) < 3 * BLOCK_BYTES:
            assert worker.is_alive()
            time.sleep(0.01)
    finally:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        worker.close()
    assert digest(files, url, SIZE) == WHOLE


def fork(child: Any) -> None:
    """Run a function in a forked process, which must return True."""
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(0 if child() else 1))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    process.close()


def test_a_fork_while_others_read(files: RemoteFiles, bucket: Bucket) -> None:
    url = f"{bucket.url}/x.tar"
    bucket.server.delay(0.01)
    over = Event()

    def keep_reading() -> None:
        while not over.is_set():
            files.close()
            digest(RemoteFiles(files.settings), url, 100_000)

    readers = [Thread(target=keep_reading) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(5):
            fork(lambda: digest(files, url, 1_000_000) == WHOLE)
    finally:
        over.set()
        for reader in readers:
            reader.join()


def test_a_fork_of_a_fork(files: RemoteFiles, bucket: Bucket) -> None:
    url = f"{bucket.url}/x.tar"

    def child() -> bool:
        assert read(files, url, [(2 * BLOCK_BYTES, 3 * BLOCK_BYTES)]) == [CONTENT[2 * BLOCK_BYTES : 3 * BLOCK_BYTES]]
        fork(lambda: digest(files, url, SIZE) == WHOLE)
        return digest(files, url, SIZE) == WHOLE

    fork(child)


def test_a_helper_that_is_killed_is_replaced(files: RemoteFiles, bucket: Bucket) -> None:
    url = f"{bucket.url}/x.tar"

    def child() -> bool:
        (found,) = read(files, url, [(BLOCK_BYTES, 2 * BLOCK_BYTES)])
        (helper,) = helpers(bucket)
        os.kill(helper, signal.SIGKILL)
        return found == CONTENT[BLOCK_BYTES : 2 * BLOCK_BYTES] and digest(files, url, SIZE) == WHOLE

    fork(child)


def test_an_answer_that_nobody_waits_for_is_no_failure(
    files: RemoteFiles, bucket: Bucket, capfd: pytest.CaptureFixture[str]
) -> None:
    def child() -> bool:
        connection = helper_process(helper_objects.__name__).connection()
        connection.send((files.settings, "read", (f"{bucket.url}/x.tar", None, None, None, 5.0)))
        connection.close()
        while not fetched(bucket):
            time.sleep(0.01)
        time.sleep(0.3)
        return True

    fork(child)
    assert capfd.readouterr().err == ""


def test_a_child_of_a_process_that_has_read_nothing_needs_no_helper(bucket: Bucket, run_script: Any) -> None:
    bucket.put("x.tar", CONTENT)
    done = run_script(UNTOUCHED, f"{bucket.url}/x.tar")
    assert (done.stdout.split(), done.stderr) == (["[]", "True"], "")


UNTOUCHED = """
import os, sys
import numpy as np
import psutil
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.storage_settings import StorageSettings
files = RemoteFiles(StorageSettings())
zero = np.zeros(1, np.int64)
child = os.fork()
assert len(files.read_spans([sys.argv[1]], zero, zero, zero + 5)[0]) == 5
children = [process.pid for process in psutil.Process().children()]
if child:
    os.waitpid(child, 0)
print(children == [child] if child else children, flush=True)
"""
