"""Requests to a real S3 server: whole files and ranges, failures, and what nobody waits for any more."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RunScript
from hypothesis import HealthCheck, given, settings, strategies as st
from object_server import Bucket, Fault
from patience import PATIENCE_S
from remote_reading import read
from slow_stores import until
from stream_hosts import open_share

from energon_grain import StorageSettings, StoreSettings, use_storage
from energon_grain.errors import ConfigError, RangeError, ReadError, StaleIndexError
from energon_grain.storage.cancellation import Cancellation, cancelled_by, current_cancellation, is_cancelled, pause
from energon_grain.storage.remote import Fetched, ObjectRange, read_beginning, read_whole
from energon_grain.storage.settings import storage_settings
from energon_grain.storage.traffic import Traffic
from energon_grain.stores import object_client
from energon_grain.stores.object_bytes import ObjectBytes
from energon_grain.stores.object_client import ObjectClient, shared_client
from energon_grain.stores.object_stores import ObjectError, ObjectStores
from energon_grain.stores.remote_files import RemoteFiles
from energon_grain.testing import make_text_dataset

CONTENT = bytes(range(256)) * 4096
Client = Callable[..., ObjectClient]
PASSING = [
    Fault("status", status=500),
    Fault("status", status=503),
    Fault("status", status=429),
    Fault("close"),
    Fault("reset"),
    Fault("close", sent=0.5),
    Fault("reset", sent=0.5),
    Fault("stall"),
    Fault("stall", sent=0.5),
]


def name_of(fault: Fault) -> str:
    return f"{fault.status if fault.kind == 'status' else fault.kind}{'' if fault.sent is None else ' in the body'}"


def settings_for(fault: Fault) -> dict[str, Any]:
    """Only what stalls is waited for in vain; a busy machine may then need more attempts than one."""
    return {"timeout_s": 0.5, "attempts": 9} if fault.kind == "stall" else {}


@pytest.fixture
def client(tmp_path: Path) -> Client:
    def make(**settings: Any) -> ObjectClient:
        quick = {"timeout_s": 10.0, "attempts": 3, "first_pause_s": 0.01, "longest_pause_s": 0.02}
        return ObjectClient(StorageSettings(**{**quick, "cache_dir": str(tmp_path / "objects"), **settings}))

    return make


@pytest.fixture
def url(bucket: Bucket) -> str:
    bucket.put("a b/ä.tar", CONTENT)
    bucket.server.reset()
    return f"{bucket.url}/a b/ä.tar"


@pytest.mark.parametrize(
    ("start", "stop"), [(None, None), (0, 1), (5, 1000), (1000, None), (-7, None), (len(CONTENT) - 1, len(CONTENT))]
)
def test_ranges_are_those_of_a_slice(client: Client, url: str, start: int | None, stop: int | None) -> None:
    found = client().read(ObjectRange(url, start, stop))
    assert found is not None
    assert found.data == CONTENT[start:stop]


def test_an_object_that_is_not_there_is_none(client: Client, bucket: Bucket) -> None:
    assert client().read(ObjectRange(f"{bucket.url}/nothing")) is None
    assert client().read(ObjectRange(f"{bucket.url}/nothing", 5, 9)) is None


def test_a_range_behind_the_end_is_not_asked_for_again(client: Client, bucket: Bucket, url: str) -> None:
    with pytest.raises(RangeError, match=rf"{url} bytes {len(CONTENT)} to {len(CONTENT) + 5}: the object is shorter"):
        client().read(ObjectRange(url, len(CONTENT), len(CONTENT) + 5))
    assert len(bucket.server.requests("tar")) == 1


def test_what_is_known_is_not_sent(client: Client, bucket: Bucket, url: str) -> None:
    reader = client()
    first = reader.read(ObjectRange(url))
    assert first is not None
    again = reader.read(ObjectRange(url, known=first.generation))
    assert again is not None
    assert (again.data, again.generation) == (None, first.generation)
    assert [request.sent_bytes for request in bucket.server.requests("tar")] == [len(CONTENT), 0]
    bucket.put("a b/ä.tar", b"new")
    changed = reader.read(ObjectRange(url, known=first.generation))
    assert changed is not None
    assert changed.data == b"new"
    assert changed.generation != first.generation


def test_objects_are_written_listed_and_removed(client: Client, bucket: Bucket) -> None:
    writer = client()
    generation = writer.write(f"{bucket.url}/d/x/1", b"one")
    writer.write(f"{bucket.url}/d/y", b"two")
    writer.write(f"{bucket.url}/d0", b"beside")
    assert bucket.get("d/x/1") == b"one"
    read = writer.read(ObjectRange(f"{bucket.url}/d/x/1"))
    assert read is not None
    assert read.generation == generation
    assert writer.list(f"{bucket.url}/d") == ["x/1", "y"]
    writer.delete(f"{bucket.url}/d/y")
    writer.delete(f"{bucket.url}/d/y")
    # Not all stores know the request for many objects.
    assert len(bucket.server.requests(f"/{bucket.name}/d/y", "DELETE")) == 2
    assert not [request for request in bucket.server.requests(bucket.name, "POST") if "delete" in request.path]
    assert writer.list(f"{bucket.url}/d") == ["x/1"]
    assert writer.list(bucket.url) == ["d/x/1", "d0"]


@pytest.mark.parametrize("fault", PASSING, ids=name_of)
@pytest.mark.parametrize(("start", "stop"), [(None, None), (10, len(CONTENT) - 10), (99, None)])
def test_a_failure_that_passes_is_not_noticed(
    client: Client, bucket: Bucket, url: str, fault: Fault, start: int | None, stop: int | None, caplog: Any
) -> None:
    reader = client(**settings_for(fault))
    reader.list(bucket.url)  # makes a connection
    reader.traffic = Traffic()
    bucket.server.reset()
    bucket.server.inject(fault)
    with caplog.at_level(logging.WARNING, "energon_grain"):
        found = reader.read(ObjectRange(url, start, stop))
    assert found is not None
    assert found.data == CONTENT[start:stop]
    assert reader.traffic.bytes_read == len(found.data)
    assert reader.traffic.repeated == reader.traffic.requests - 1
    if fault.kind != "stall":
        assert len(bucket.server.requests("tar")) == 2
        assert reader.traffic.requests == 2
    assert url in caplog.text
    assert f"attempt 2 of {reader.settings.attempts} in " in caplog.text


@pytest.mark.parametrize("fault", PASSING, ids=name_of)
def test_a_failure_that_stays_names_object_range_and_attempts(
    client: Client, bucket: Bucket, url: str, fault: Fault
) -> None:
    reader = client(**{**settings_for(fault), "attempts": 3})
    reader.list(bucket.url)
    reader.traffic = Traffic()
    bucket.server.reset()
    bucket.server.inject(Fault(fault.kind, fault.sent, fault.status, times=None))
    with pytest.raises(ReadError, match=rf"reading {url} bytes 5 to 99999 failed: .* \(3 attempts in [0-9.]+ s\)"):
        reader.read(ObjectRange(url, 5, 99_999))
    assert (reader.traffic.requests, reader.traffic.repeated) == (3, 2)
    if fault.kind != "stall":  # one that was given up may reach a busy server later, or never
        assert len(bucket.server.requests("tar")) == 3


def test_writing_and_listing_are_tried_again_too(client: Client, bucket: Bucket) -> None:
    bucket.server.inject(Fault("status", times=2, method="PUT"), Fault("close", sent=0.5, times=2))
    writer = client()
    writer.write(f"{bucket.url}/x", b"1")
    assert writer.list(bucket.url) == ["x"]
    assert writer.traffic.repeated == 4
    bucket.server.inject(Fault("status", times=None, method="PUT"))
    with pytest.raises(ReadError, match=rf"writing {bucket.url}/y failed: .* \(3 attempts"):
        writer.write(f"{bucket.url}/y", b"1")


def test_pauses_become_longer(client: Client, bucket: Bucket, url: str) -> None:
    bucket.server.inject(Fault("status", times=4))
    began_s = time.monotonic()
    assert client(attempts=5, first_pause_s=0.1, longest_pause_s=0.3).read(ObjectRange(url)) is not None
    assert time.monotonic() - began_s >= 0.5  # half to all of 0.1 + 0.2 + 0.3 + 0.3 s


def test_no_more_requests_than_allowed_are_made_at_a_time(client: Client, bucket: Bucket, url: str) -> None:
    reader = client(requests_in_flight=3)
    bucket.server.delay(0.3)
    wanted = [ObjectRange(url, start, start + 10) for start in range(12)]
    found = reader.map(reader.read, wanted)
    assert [one.data for one in found if one is not None] == [CONTENT[start : start + 10] for start in range(12)]
    assert max(request.concurrent for request in bucket.server.requests("tar")) == 3


def test_after_a_failure_the_rest_is_not_begun(client: Client, bucket: Bucket, url: str) -> None:
    reader = client(requests_in_flight=1)
    bucket.server.inject(Fault("status", status=503, times=3))
    with pytest.raises(ReadError, match="bytes 0 to 10"):
        reader.map(reader.read, [ObjectRange(url, start, start + 10) for start in range(50)])
    assert len(bucket.server.requests("tar")) < 10


def test_what_has_no_first_byte_is_asked_for_a_second_time(
    client: Client, bucket: Bucket, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store loses one request in 40 for ever; each may take minutes before it is an error."""
    monkeypatch.setattr(object_client, "SECOND_REQUEST_SECONDS", 3.0)
    reader = client(timeout_s=10 * PATIENCE_S, requests_in_flight=4)
    lost = [Fault("stall", match=f"bytes={start}-") for start in range(0, 200, 40)]
    bucket.server.inject(*lost)
    wanted = [ObjectRange(url, start, start + 10) for start in range(200)]
    began_s = time.monotonic()
    found = reader.map(reader.read, wanted)
    assert [one.data for one in found if one is not None] == [CONTENT[start : start + 10] for start in range(200)]
    assert time.monotonic() - began_s < 5 * PATIENCE_S
    assert reader.traffic.sent_twice >= len(lost)
    assert reader.traffic.requests == 200 + reader.traffic.sent_twice


def test_a_store_that_is_slow_for_all_is_not_asked_twice_for_everything(
    client: Client, bucket: Bucket, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_client, "SECOND_REQUEST_SECONDS", 0.1)
    reader = client()
    bucket.server.delay(0.5)
    found = reader.map(reader.read, [ObjectRange(url, start, start + 10) for start in range(40)])
    assert [one.data for one in found if one is not None] == [CONTENT[start : start + 10] for start in range(40)]
    assert reader.traffic.sent_twice <= 8
    assert reader.traffic.bytes_read == 400  # the later of two answers is not read


def test_what_is_being_sent_is_not_asked_for_a_second_time(
    client: Client, bucket: Bucket, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_client, "SECOND_REQUEST_SECONDS", 0.3)
    reader = client(timeout_s=2.0, attempts=1)
    bucket.server.inject(Fault("stall", sent=0.5, times=None))
    with pytest.raises(ReadError, match="no response within 2 s"):
        reader.read(ObjectRange(url))
    assert reader.traffic.sent_twice == 0


@pytest.mark.parametrize("answered", [0, 2])
def test_a_second_request_that_is_refused_does_not_end_the_first(
    client: Client, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """A store that is too busy refuses the second one at once; the first, if it is lost, is sent once more."""
    monkeypatch.setattr(object_client, "SECOND_REQUEST_SECONDS", 0.1)
    asked, refused = itertools.count(), threading.Event()

    def answer(*given: Any) -> Fetched:
        number = next(asked)
        if number == 1:
            refused.set()
            raise ObjectError("slow down", temporary=True)
        if number != answered:
            time.sleep(PATIENCE_S)
        assert refused.wait(PATIENCE_S)
        time.sleep(0.2)
        return Fetched([b"text"], b"1", 4)

    monkeypatch.setattr(ObjectStores, "read", answer)
    reader = client(attempts=1, timeout_s=PATIENCE_S)
    found = reader.read(ObjectRange("memory://x"))
    assert found is not None
    assert found.data == b"text"
    assert reader.traffic.repeated == reader.traffic.sent_twice == reader.traffic.requests - 1 >= 1


def test_what_a_store_says_for_good_counts_whichever_request_it_answers(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_client, "SECOND_REQUEST_SECONDS", 0.1)
    asked, over = itertools.count(), threading.Event()

    def answer(*given: Any) -> Fetched:
        if next(asked) == 0:
            assert over.wait(PATIENCE_S)
        raise ObjectError("never", temporary=False)

    monkeypatch.setattr(ObjectStores, "read", answer)
    try:
        with pytest.raises(ReadError, match="never"):
            client(attempts=1, timeout_s=PATIENCE_S).read(ObjectRange("memory://x"))
    finally:
        over.set()


def test_both_requests_refused_are_one_failure(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_client, "SECOND_REQUEST_SECONDS", 0.1)
    both = threading.Barrier(2)

    def answer(*given: Any) -> Fetched:
        both.wait(PATIENCE_S)
        raise ObjectError("slow down", temporary=True)

    monkeypatch.setattr(ObjectStores, "read", answer)
    with pytest.raises(ReadError, match="slow down"):
        client(attempts=1, timeout_s=PATIENCE_S).read(ObjectRange("memory://x"))


def test_an_answer_that_breaks_off_is_a_failure_though_a_second_request_goes_on(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_client, "SECOND_REQUEST_SECONDS", 0.1)
    asked, second, over = itertools.count(), threading.Event(), threading.Event()

    def answer(*given: Any) -> Fetched:
        if next(asked) == 0:
            assert second.wait(PATIENCE_S)
            given[-1]()  # the first byte
            raise ObjectError("broken off", temporary=True)
        second.set()
        assert over.wait(PATIENCE_S)
        given[-1]()
        raise AssertionError

    monkeypatch.setattr(ObjectStores, "read", answer)
    try:
        with pytest.raises(ReadError, match="broken off"):
            client(attempts=1, timeout_s=PATIENCE_S).read(ObjectRange("memory://x"))
    finally:
        over.set()


def test_a_thread_that_cannot_be_started_hinders_no_later_request(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = client(attempts=1)
    held, may_end, start = threading.Event(), threading.Event(), threading.Thread.start

    def hold(*given: Any) -> None:
        held.set()
        assert may_end.wait(PATIENCE_S)

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "object-request":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(ObjectStores, "list", hold)
    first = threading.Thread(target=reader.list, args=("memory://x",))
    first.start()
    assert held.wait(PATIENCE_S)
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="can't start new thread"):
        patched.setattr(threading.Thread, "start", refuse)
        reader.list("memory://x")
    may_end.set()
    first.join(PATIENCE_S)
    both = threading.Barrier(2)
    monkeypatch.setattr(ObjectStores, "list", lambda *given: both.wait(20.0))
    reader.map(reader.list, ["memory://x"] * 2)


STALLS = """
import sys, time
from energon_grain.errors import ReadError
from energon_grain.stores.object_client import ObjectClient, ObjectRange
from energon_grain.storage.settings import StorageSettings
client = ObjectClient(StorageSettings(timeout_s=1, attempts=2, first_pause_s=0.01, requests_in_flight=2))
try:
    client.read(ObjectRange(sys.argv[1]))
except ReadError:
    time.sleep(2)
    print(len(client.read(ObjectRange(sys.argv[1])).data))
"""


def test_stalled_requests_do_not_keep_their_place(bucket: Bucket, url: str, run_script: RunScript) -> None:
    bucket.server.inject(Fault("stall", times=2))
    done = run_script(STALLS, url)
    assert done.stdout.split() == [str(len(CONTENT))], done.stderr


def test_credentials_that_do_not_do_are_said_at_once(client: Client, bucket: Bucket, url: str) -> None:
    anonymous = {bucket.url: StoreSettings(anonymous=True)}
    with pytest.raises(ReadError, match=r"not retried.*credentials"):
        client(stores=anonymous).read(ObjectRange(url))
    assert len(bucket.server.requests("tar")) == 1


def test_public_objects_are_read_without_credentials(
    client: Client, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("x", CONTENT, public=True)
    settings = StoreSettings(anonymous=True, endpoint=bucket.server.endpoint, region="us-east-1")
    for name in bucket.server.environment:
        monkeypatch.delenv(name)
    found = client(stores={bucket.url: settings}).read(ObjectRange(f"{bucket.url}/x", 5, 9))
    assert found is not None
    assert found.data == CONTENT[5:9]


def test_objects_of_the_web_are_read_by_range(client: Client, bucket: Bucket) -> None:
    bucket.put("x", CONTENT, public=True)
    url = f"{bucket.server.endpoint}/{bucket.name}/x"
    found = client().read(ObjectRange(url, 5, 9))
    assert found is not None
    assert found.data == CONTENT[5:9]
    assert bucket.server.requests("/x")[-1].range == "bytes=5-8"


def test_a_prefix_can_be_another_name_of_a_folder(client: Client, bucket: Bucket) -> None:
    bucket.put("team/x", CONTENT)
    found = client(stores={"msc://team": StoreSettings(location=f"{bucket.url}/team")}).read(
        ObjectRange("msc://team/x")
    )
    assert found is not None
    assert found.data == CONTENT


def test_threads_without_requests_end(client: Client, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_client, "_IDLE_SECONDS", 0.05)
    there = set(threading.enumerate())
    for _ in range(2):
        assert client().read(ObjectRange(f"{bucket.url}/none")) is None
        for thread in set(threading.enumerate()) - there:
            if thread.name == "object-request":
                thread.join(PATIENCE_S)
                assert not thread.is_alive()


def client_for(**stores: StoreSettings) -> ObjectClient:
    settings = {name.replace("_", "://"): store for name, store in stores.items()}
    return ObjectClient(StorageSettings(stores=settings, attempts=2, first_pause_s=0.01))


def refused(ask: Any, url: str) -> str:
    with pytest.raises(ReadError) as failure:
        ask(url)
    return str(failure.value)


def test_a_bucket_that_is_not_there(bucket: Bucket) -> None:
    bucket.server.reset()
    way_out = "check its name, its region and the endpoint (`endpoint` of this store in the storage settings, else "
    for ask, doing in ((client_for().list, "listing"), (lambda url: client_for().write(url, b""), "writing")):
        assert refused(ask, "s3://teem/data") == (
            f"{doing} s3://teem/data failed: there is no bucket 'teem' at {bucket.server.endpoint} (not retried); "
            f"{way_out}AWS_ENDPOINT_URL)"
        )
    assert len(bucket.server.requests("teem")) == 1
    assert len(bucket.server.requests("teem", "PUT")) == 1


def test_nobody_at_the_end_point(bucket: Bucket) -> None:
    lost = client_for(**{bucket.url.replace("://", "_"): StoreSettings(endpoint="http://127.0.0.1:9")})
    said = refused(lost.list, bucket.url)
    assert f"listing {bucket.url} failed: cannot connect to http://127.0.0.1:9: no response (2 att" in said
    assert said.endswith("check the endpoint (`endpoint` of this store in the storage settings, else AWS_ENDPOINT_URL)")
    said = refused(lambda url: lost.read(ObjectRange(url)), "http://127.0.0.1:9/x")
    assert "cannot connect to http://127.0.0.1:9: no response (2 att" in said
    assert said.endswith("check the network, and the address")
    far = client_for(s3_far=StoreSettings(endpoint="http://nobody.invalid"))
    assert "cannot connect to http://nobody.invalid: unknown host name" in refused(far.list, "s3://far")


def test_credentials_that_are_refused(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("x", b"private")
    name = bucket.url.replace("://", "_")

    def read(store: StoreSettings) -> str:
        return refused(lambda url: client_for(**{name: store}).read(ObjectRange(url)), f"{bucket.url}/x")

    assert read(StoreSettings(anonymous=True)) == (
        f"reading {bucket.url}/x failed: access denied: Forbidden (HTTP 403) (not retried); no credentials are "
        "sent, because the storage settings set `anonymous: true` for it: remove that"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    said = read(StoreSettings())
    assert "access denied: Forbidden (HTTP 403) (not retried); no credentials were found in the" in said
    assert said.endswith(
        "if it has one; set them there, or set `anonymous: true` for it in the storage settings if it is public"
    )


def test_a_bucket_of_no_possible_name() -> None:
    with pytest.raises(ConfigError, match=r'^s3://Te/x: invalid S3 bucket name "Te": a name has 3 to 63'):
        client_for().list("s3://Te/x")


def test_what_the_store_said_is_kept(bucket: Bucket) -> None:
    bucket.put("x", b"1")
    bucket.server.inject(Fault("status", status=503, times=None))
    said = refused(lambda url: client_for().read(ObjectRange(url)), f"{bucket.url}/x")
    assert f"reading {bucket.url}/x failed: SlowDown (HTTP 503) (2 attempts" in said


LONG_S = 2 * PATIENCE_S


def test_what_is_wanted_until_an_event() -> None:
    outer, inner = Cancellation(), Cancellation()
    with cancelled_by(outer):
        inner.set()
        with cancelled_by(inner):
            assert is_cancelled()
            began_s = time.monotonic()
            pause(LONG_S)
            assert time.monotonic() - began_s < PATIENCE_S
        assert current_cancellation() is outer
        assert not is_cancelled()
    assert current_cancellation() is None


@pytest.mark.parametrize("fault", [Fault("stall", times=None), Fault("status", times=None)], ids=["stall", "status"])
def test_requests_of_a_thread_and_of_those_that_work_for_it(bucket: Bucket, fault: Fault) -> None:
    client = ObjectClient(StorageSettings(timeout_s=LONG_S, first_pause_s=LONG_S, longest_pause_s=LONG_S))
    bucket.put("x", b"text")
    bucket.server.inject(fault)
    over = Cancellation()
    threading.Timer(0.5, over.set).start()
    began_s = time.monotonic()
    with (
        cancelled_by(over),
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
    first, second = Cancellation(), Cancellation()

    def read(over: Cancellation) -> None:
        with cancelled_by(over), pytest.raises(ReadError, match="its result is no longer needed"):
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
    first, second = Cancellation(), Cancellation()

    def fetch(over: Cancellation) -> None:
        with cancelled_by(over), pytest.raises(ReadError, match=r"x.*: its result is no longer needed"):
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


Put = Callable[[bytes], str]


@pytest.fixture(params=["path", "s3", "memory"])
def put(request: pytest.FixtureRequest, tmp_path: Path, bucket: Bucket) -> Put:
    """Puts a file at a location, and gives that."""

    def make(content: bytes) -> str:
        if request.param == "path":
            (tmp_path / "file").write_bytes(content)
            return str(tmp_path / "file")
        if request.param == "s3":
            bucket.put("a/file", content)
            return f"{bucket.url}/a/file"
        shared_client(storage_settings()).write(f"memory://{bucket.name}/file", content)
        return f"memory://{bucket.name}/file"

    return make


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 40])
def test_whole_and_beginnings(put: Put, content: bytes) -> None:
    location = put(content)
    assert read_whole(location) == content
    for size in (1, len(content) or 1, len(content) + 1, len(content) + 1000):
        assert read_beginning(location, size) == content[:size]


def test_what_is_not_there(put: Put, tmp_path: Path) -> None:
    location = put(b"") + "s"
    with pytest.raises(FileNotFoundError, match=location):
        read_whole(location)
    assert read_beginning(location, 10) == b""
    assert read_beginning(str(tmp_path), 10) == b""


def test_failures_name_the_object(bucket: Bucket) -> None:
    bucket.put("x", b"text")
    use_storage(StorageSettings(attempts=1))
    for reading in (read_whole, lambda url: read_beginning(url, 3)):
        bucket.server.inject(Fault("status", times=None))
        with pytest.raises(ReadError, match=f"reading {bucket.url}/x"):
            reading(f"{bucket.url}/x")
    with pytest.raises(ConfigError, match="ftp://host/x: unknown scheme; object stores are s3://"):
        read_whole("ftp://host/x")
    with pytest.raises(ConfigError, match="ftp://host/x"):
        read_beginning("ftp://host/x", 3)


SIZE = (20 << 20) + 777
TEXT = np.random.default_rng(0).bytes(SIZE)
STEPS = st.tuples(
    st.sampled_from(["read_random", "read_sequential", "fill"]),
    st.integers(0, SIZE),
    st.sampled_from([1, 512, 300_000]),
)


@pytest.fixture
def opened(bucket: Bucket) -> Callable[[], ObjectBytes]:
    bucket.put("x.tar", TEXT)
    return lambda: ObjectBytes(f"{bucket.url}/x.tar")


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=8))
def test_any_steps_give_the_bytes_of_the_object(
    opened: Callable[[], ObjectBytes], steps: list[tuple[str, int, int]]
) -> None:
    data = opened()
    assert data.size_bytes == SIZE
    for how, offset, size in steps:
        if how == "fill":
            buffer = bytearray(size)
            found = bytes(buffer[: data.fill(memoryview(buffer), offset)])
        else:
            found = getattr(data, how)(offset, size)
        assert found == TEXT[offset : offset + size]


def test_a_walk_through_small_members_fetches_each_byte_once(opened: Callable[[], ObjectBytes], bucket: Bucket) -> None:
    data = opened()
    bucket.server.reset()
    for offset in range(0, SIZE, 10_000):
        data.read_sequential(offset, 512)
    requests = bucket.server.requests("x.tar")
    assert sum(request.sent_bytes for request in requests) <= SIZE
    assert len(requests) <= 12
    assert max(request.concurrent for request in requests) > 1


def test_a_walk_through_large_members_passes_over_them(opened: Callable[[], ObjectBytes], bucket: Bucket) -> None:
    data = opened()
    bucket.server.reset()
    for offset in range(0, SIZE, 1 << 20):
        data.read_random(offset, 512)
        data.read_random(offset + 2048, 512)  # a small member behind a large one comes in the same request
    requests = bucket.server.requests("x.tar")
    assert len(requests) <= 20
    assert sum(request.sent_bytes for request in requests) <= 20 * (16 << 10)


def test_many_small_members_behind_a_large_one_take_few_requests(
    opened: Callable[[], ObjectBytes], bucket: Bucket
) -> None:
    data = opened()
    data.read_random(8 << 20, 512)
    bucket.server.reset()
    for place in range(20):
        data.read_random((8 << 20) + place * 10_000, 512)
    assert len(bucket.server.requests("x.tar")) <= 4


def test_an_object_that_changes_is_an_error(opened: Callable[[], ObjectBytes], bucket: Bucket) -> None:
    data = opened()
    bucket.put("x.tar", TEXT[::-1])
    with pytest.raises(StaleIndexError, match=r"x\.tar: was replaced while it was read"):
        data.read_random(8 << 20, 512)
    data = opened()
    bucket.put("x.tar", TEXT[:1000])
    with pytest.raises(StaleIndexError, match="replaced by a shorter one"):
        data.read_sequential(8 << 20, 512)


def test_what_is_not_there_is_an_error(bucket: Bucket) -> None:
    with pytest.raises(ReadError, match=r"none\.tar: no such object"):
        ObjectBytes(f"{bucket.url}/none.tar")


def test_an_empty_object_has_no_bytes(bucket: Bucket) -> None:
    bucket.put("empty", b"")
    data = ObjectBytes(f"{bucket.url}/empty")
    assert (data.size_bytes, data.read_random(0, 512), data.read_sequential(0, 512)) == (0, b"", b"")
