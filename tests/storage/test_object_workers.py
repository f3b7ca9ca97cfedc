"""Worker processes, however they were started, read on where their parent has read."""

from __future__ import annotations

import hashlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forking import may_fork
from object_server import Bucket, Fault
from patience import PATIENCE_S
from remote_reading import digest, read

from energon_grain import StorageSettings
from energon_grain.errors import WorkerError
from energon_grain.storage.remote_files import BLOCK_BYTES, RemoteFiles

SIZE = 20 * BLOCK_BYTES + 777
CONTENT = np.random.default_rng(0).bytes(SIZE)
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
        with pytest.raises(Exception, match="none: there is no such object"):
            pool.submit(read, files, f"{bucket.url}/none", [(0, 1)]).result(60)


@may_fork
def test_a_fork_of_a_process_that_has_read_is_told_the_way_out(files: RemoteFiles, bucket: Bucket) -> None:
    said = r"x\.tar: this process was forked .* by 'forkserver' or 'spawn'"
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
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.settings import StorageSettings
files = RemoteFiles(StorageSettings())
zero = np.zeros(1, np.int64)
child = os.fork()
assert len(files.read_spans([sys.argv[1]], zero, zero, zero + 5)[0]) == 5
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
