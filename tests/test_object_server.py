"""The S3 server that other tests rely on."""

from __future__ import annotations

import http.client
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from object_server import Bucket, Fault
from patience import PATIENCE_S

CONTENT = bytes(range(256)) * 1024


@pytest.fixture
def filled(bucket: Bucket) -> Bucket:
    bucket.put("a/x.tar", CONTENT)
    return bucket


def test_objects_are_put_read_replaced_and_deleted(bucket: Bucket) -> None:
    for content in (b"1", b"22"):
        bucket.put("a b/ä.txt", content)
        assert bucket.get("a b/ä.txt") == content
    bucket.delete("a b/ä.txt")
    with pytest.raises(OSError, match="NoSuchKey"):
        bucket.get("a b/ä.txt")


def test_one_connection_serves_many_requests_and_ranges(filled: Bucket) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", filled.server.port, timeout=PATIENCE_S)
    path = f"/{filled.name}/a/x.tar"
    filled.put("a/x.tar", CONTENT, public=True)
    connection.connect()
    socket = connection.sock
    for first, last in ((0, 9), (1000, 1999), (len(CONTENT) - 5, len(CONTENT) + 100)):
        connection.request("GET", path, headers={"Range": f"bytes={first}-{last}"})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (206, CONTENT[first : last + 1])
        assert connection.sock is socket
    connection.request("HEAD", path)
    answer = connection.getresponse()
    assert (answer.status, answer.read(), answer.getheader("Content-Length")) == (200, b"", str(len(CONTENT)))
    connection.close()


def test_requests_at_the_same_time_are_counted_and_delayed(filled: Bucket) -> None:
    filled.server.delay(1.0)
    began_s = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(filled.get, ["a/x.tar"] * 4)) == [CONTENT] * 4
    assert time.monotonic() - began_s >= 1.0
    assert sorted(request.concurrent for request in filled.server.requests()) == [1, 2, 3, 4]


def test_bursts_of_errors_end(filled: Bucket) -> None:
    filled.server.inject(Fault("status", status=503, times=2, match="x.tar"), Fault("status", status=500, times=1))
    filled.put("other", b"1")
    for status in (503, 503, 500):
        with pytest.raises(OSError, match="SlowDown") as caught:
            filled.get("a/x.tar")
        assert caught.value.errno == status
    assert filled.get("a/x.tar") == CONTENT
    assert [request.status for request in filled.server.requests("x.tar")] == [503, 503, 500, 200]


def test_connections_are_closed_and_reset_and_bodies_are_cut(filled: Bucket) -> None:
    cut = (ConnectionResetError, http.client.IncompleteRead)
    for fault, error in (
        (Fault("close"), http.client.RemoteDisconnected),
        (Fault("reset"), ConnectionResetError),
        (Fault("reset", sent=0.5), cut),
        (Fault("close", sent=0.5), cut),
    ):
        filled.server.inject(fault)
        with pytest.raises(error):
            filled.get("a/x.tar")
    filled.server.inject(Fault("short", sent=0.5))
    assert filled.get("a/x.tar") == CONTENT[: len(CONTENT) // 2]
    requests = filled.server.requests("x.tar")
    assert [request.status for request in requests] == [0, 0, 200, 200, 200]
    assert {request.sent_bytes for request in requests} == {0, len(CONTENT) // 2}


@pytest.mark.parametrize("sent", [None, 0.5])
def test_stalls_last_until_the_server_is_reset(filled: Bucket, sent: float | None) -> None:
    filled.server.inject(Fault("stall", sent=sent))
    connection = http.client.HTTPConnection("127.0.0.1", filled.server.port, timeout=0.3)
    filled.put("a/x.tar", CONTENT, public=True)
    connection.request("GET", f"/{filled.name}/a/x.tar")
    with pytest.raises(TimeoutError):
        connection.getresponse().read()
    filled.server.reset()
    connection.close()
    assert filled.get("a/x.tar") == CONTENT
