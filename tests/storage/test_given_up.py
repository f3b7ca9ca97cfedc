"""Requests that nobody waits for any more: given up at once, however long the store takes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from object_server import Bucket, Fault
from patience import PATIENCE_S
from remote_reading import read
from slow_stores import until
from stream_hosts import open_share

from energon_grain import StorageSettings, use_storage
from energon_grain.errors import ReadError
from energon_grain.storage.given_up import Over, given_up, pause, wanted_for, wanted_until
from energon_grain.storage.object_client import ObjectClient, ObjectRange
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.testing import make_text_dataset

LONG_S = 2 * PATIENCE_S


def test_what_is_wanted_until_an_event() -> None:
    outer, inner = Over(), Over()
    with wanted_until(outer):
        inner.set()
        with wanted_until(inner):
            assert given_up()
            began_s = time.monotonic()
            pause(LONG_S)
            assert time.monotonic() - began_s < PATIENCE_S
        assert wanted_for() is outer
        assert not given_up()
    assert wanted_for() is None


@pytest.mark.parametrize("fault", [Fault("stall", times=None), Fault("status", times=None)], ids=["stall", "status"])
def test_requests_of_a_thread_and_of_those_that_work_for_it(bucket: Bucket, fault: Fault) -> None:
    client = ObjectClient(StorageSettings(timeout_s=LONG_S, first_pause_s=LONG_S, longest_pause_s=LONG_S))
    bucket.put("x", b"text")
    bucket.server.inject(fault)
    over = Over()
    threading.Timer(0.5, over.set).start()
    began_s = time.monotonic()
    with (
        wanted_until(over),
        pytest.raises(ReadError, match="x failed: its result is no longer needed"),
    ):
        client.map(client.read, [ObjectRange(f"{bucket.url}/x")] * 2)
    assert time.monotonic() - began_s < PATIENCE_S


@pytest.mark.parametrize("ahead_bytes", [0, 1 << 20])
def test_a_stream_that_is_closed_while_a_store_stalls(bucket: Bucket, tmp_path: Path, ahead_bytes: int) -> None:
    make_text_dataset(tmp_path / "set", n=100, shards=4, text_bytes=20_000)
    url = bucket.upload(tmp_path / "set", "set")
    use_storage(StorageSettings(timeout_s=LONG_S, cache_bytes=0, ahead_bytes=ahead_bytes))
    with open_share(url, workers=2) as stream:
        bucket.server.reset()
        bucket.server.inject(Fault("stall", times=None, match=".tar"))
        stream.start_prefetch()
        while not bucket.server.requests(".tar"):
            time.sleep(0.05)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < PATIENCE_S


@pytest.mark.parametrize("times", [1, 2])
def test_what_waits_for_its_turn_is_given_up_too(bucket: Bucket, times: int) -> None:
    """A single request waits for one of those in flight, several also for one of the threads that make them."""
    client = ObjectClient(StorageSettings(timeout_s=LONG_S, requests_in_flight=1))
    bucket.put("x", b"text")
    bucket.server.inject(Fault("stall", times=None))
    first, second = Over(), Over()

    def read(over: Over) -> None:
        with wanted_until(over), pytest.raises(ReadError, match="its result is no longer needed"):
            client.map(client.read, [ObjectRange(f"{bucket.url}/x")] * times)

    threads = [threading.Thread(target=read, args=(over,)) for over in (first, second)]
    threads[0].start()
    while not bucket.server.requests("x"):
        time.sleep(0.05)
    threads[1].start()
    second.set()
    threads[1].join(30)
    alive = [thread.is_alive() for thread in threads]
    first.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert alive == [True, False]


def test_what_another_thread_fetches_is_not_waited_for_any_more(bucket: Bucket, tmp_path: Path) -> None:
    """A reader that is closed must not wait for the requests of another one of the same pages."""
    files = RemoteFiles(StorageSettings(timeout_s=LONG_S, cache_dir=str(tmp_path)))
    bucket.put("x", bytes(100))
    url = f"{bucket.url}/x"
    files.size(url)
    bucket.server.inject(Fault("stall", times=None))
    first, second = Over(), Over()

    def fetch(over: Over) -> None:
        with wanted_until(over), pytest.raises(ReadError, match=r"x.*: its result is no longer needed"):
            read(files, url, [(0, 100)])

    threads = [threading.Thread(target=fetch, args=(over,)) for over in (first, second)]
    threads[0].start()
    until(lambda: bucket.server.requests("x"))
    threads[1].start()
    try:
        threads[1].join(0.5)
        assert threads[1].is_alive()
        second.set()
        threads[1].join(30)
        assert [thread.is_alive() for thread in threads] == [True, False]
    finally:
        first.set()
        for thread in threads:
            thread.join(PATIENCE_S)
