"""Reading from a store that answers wrongly: the batches of the local files, or an error, and never other batches."""

from __future__ import annotations

import hashlib
import logging
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S
from storage.faults import FAULTS, KEY, SECRET, FaultyServer, running_faulty_server

from energon_grain import EPath, StorageSettings, Stream, get_train_dataset, use_storage
from energon_grain.errors import EnergonGrainError, ReadError
from energon_grain.storage.remote import ObjectRange
from energon_grain.storage.traffic import traffic
from energon_grain.stores.cache_check import check_sums
from energon_grain.stores.object_client import ObjectClient
from energon_grain.testing import make_text_dataset

BATCHES = 12
QUICK: dict[str, Any] = {
    "timeout_s": 0.3,
    "attempts": 6,
    "first_pause_s": 0.001,
    "longest_pause_s": 0.01,
    "request_bytes": 1 << 18,
}
EQUAL = {
    *("cut", "short", "longer", "longer by one", "longer and cut", "stall", "stall in the body", "drip", "reset"),
    *("reset in the body", "500", "503", "429 with Retry-After", "nothing of what was announced"),
}
"""Faults of some answers that a further attempt makes good."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "set"
    make_text_dataset(folder, n=48, shards=2, text_bytes=30_000)
    return folder


@pytest.fixture
def server(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    with running_faulty_server() as found:
        found.upload(data, "set")
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


URL = "s3://bkt/set"


def batches(path: Any) -> list[Any]:
    dataset = get_train_dataset(path, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=4)
    with Stream.of(dataset) as stream:
        texts = [next(stream) for _ in range(BATCHES)]
    return [(batch.__key__, [hashlib.md5(text.encode()).digest() for text in batch.text]) for batch in texts]


def attempted(path: Any) -> Any:
    try:
        return batches(path)
    except EnergonGrainError as error:
        return error


@pytest.mark.parametrize("cache_bytes", [None, 0], ids=["cache", "no cache"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_gives_the_local_batches_or_an_error(
    server: FaultyServer, data: Path, tmp_path: Path, name: str, cache_bytes: int | None
) -> None:
    local = batches(data)
    # Where nothing stalls a busy machine is waited for.
    given: dict[str, Any] = {**QUICK, "timeout_s": 0.3 if name.startswith("stall") else PATIENCE_S, "attempts": None}
    use_storage(StorageSettings(**given, cache_dir=str(tmp_path), cache_bytes=cache_bytes))
    server.fail(FAULTS[name], ".tar", every=3)
    found = attempted(URL)
    assert server.hits
    assert found == local or (isinstance(found, EnergonGrainError) and name not in EQUAL), found
    assert SECRET not in str(found)
    if cache_bytes is None:
        server.fail(None)
        assert batches(URL) == local  # over what is in the cache by now


@pytest.mark.parametrize("name", ["cut", "longer", "503", "wrong total", "HTML as a part", "no HTTP", "huge header"])
def test_a_fault_that_stays_is_an_error(server: FaultyServer, tmp_path: Path, name: str) -> None:
    use_storage(StorageSettings(**QUICK, cache_dir=str(tmp_path)))
    server.fail(FAULTS[name], ".tar bytes")
    with pytest.raises(EnergonGrainError, match=r"\.tar"):
        batches(URL)
    assert check_sums(str(tmp_path / "pages")).pages == 0


def test_a_redirect_to_another_host_gets_no_credentials(server: FaultyServer, tmp_path: Path) -> None:
    use_storage(StorageSettings(**QUICK, cache_dir=str(tmp_path)))
    with running_faulty_server(objects=server.objects) as other:

        def leads_away(answer: Any) -> None:
            answer.status, answer.body = 307, b""
            answer.headers = {"Location": f"http://localhost:{other.port}/bkt/set/text-000000.tar"}

        server.fail(leads_away, ".tar")
        with pytest.raises(ReadError, match=r"redirects to another host, which would receive credentials.*not retried"):
            batches(URL)
        assert not other.requests
    assert any(SECRET in str(headers) for _, headers in server.requests)  # its own host gets them


def test_a_redirect_of_azure_to_another_host_gets_no_signature(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Referer` would hold the URL with the signature."""
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{server.endpoint}/account")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"sv=2024-01-01&sig={SECRET}")
    with running_faulty_server() as other:

        def leads_away(answer: Any) -> None:
            answer.status, answer.body = 307, b""
            answer.headers = {"Location": f"http://localhost:{other.port}/x"}

        server.fail(leads_away)
        with pytest.raises(ReadError, match=r"redirects to another host.*not retried"):
            client(tmp_path).read(ObjectRange("az://container/x"))
        assert SECRET in server.requests[0][0]
        assert not other.requests


def test_without_credentials_a_redirect_is_followed(server: FaultyServer, tmp_path: Path) -> None:
    use_storage(StorageSettings(**QUICK, cache_dir=str(tmp_path)))
    with running_faulty_server(objects={"x": b"text"}) as other:

        def leads_away(answer: Any) -> None:
            answer.status, answer.body = 302, b""
            answer.headers = {"Location": f"http://localhost:{other.port}/bkt/x"}

        server.fail(leads_away, "/bkt/x")
        assert EPath(f"{server.endpoint}/bkt/x").read_bytes() == b"text"
        assert not any({"authorization", "x-amz-security-token"} & {*map(str.lower, of)} for _, of in other.requests)


def client(tmp_path: Path, **given: Any) -> ObjectClient:
    settings: dict[str, Any] = {**QUICK, "cache_dir": str(tmp_path), "attempts": None, **given}
    return ObjectClient(StorageSettings(**settings))


def test_a_busy_store_is_waited_for(server: FaultyServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server.objects["x"] = b"text"
    server.fail(FAULTS["503"], "/bkt/x", times=24)
    random.seed(5)
    state, lost_s = random.getstate(), traffic().lost_s
    reader = client(tmp_path, timeout_s=PATIENCE_S, first_pause_s=0.05, longest_pause_s=0.1)
    began_s = time.monotonic()
    with caplog.at_level(logging.WARNING, "energon_grain"):
        found = reader.map(reader.read, [ObjectRange("s3://bkt/x", 0, 4)] * 3)
    assert [each.data for each in found if each is not None] == [b"text"] * 3
    assert len(server.requests) == 24 + 3
    said, *more = [record.getMessage() for record in caplog.records]
    assert len(more) <= (time.monotonic() - began_s) / 10
    assert "reading s3://bkt/x bytes 0 to 4 failed (Fault: on request (HTTP 503)); attempt 2 in " in said
    assert "failing since" in said
    assert random.getstate() == state
    assert traffic().lost_s - lost_s > 24 * 0.025


def test_what_stays_busy_is_an_error_after_the_time(server: FaultyServer, tmp_path: Path) -> None:
    server.objects["x"] = b"text"
    server.fail(FAULTS["503"])
    began_s = time.monotonic()
    with pytest.raises(ReadError, match=r"\(\d+ attempts in [0-9.]+ s\)"):
        client(tmp_path, timeout_s=PATIENCE_S, retry_s=0.5, longest_pause_s=0.05).read(ObjectRange("s3://bkt/x"))
    assert 0.5 < time.monotonic() - began_s < PATIENCE_S


@pytest.mark.parametrize("name", ["403", "301 to nowhere", "400", "huge header"])
def test_what_another_attempt_would_meet_again_is_an_error_at_once(
    server: FaultyServer, tmp_path: Path, name: str
) -> None:
    server.objects["x"] = b"text"
    server.fail(FAULTS[name])
    with pytest.raises(ReadError, match="not retried"):
        client(tmp_path, timeout_s=PATIENCE_S).read(ObjectRange("s3://bkt/x"))
    assert len(server.requests) == 1


def test_a_stream_is_closed_while_its_store_is_busy(server: FaultyServer, tmp_path: Path) -> None:
    use_storage(StorageSettings(cache_dir=str(tmp_path), first_pause_s=PATIENCE_S, longest_pause_s=PATIENCE_S))
    dataset = get_train_dataset(URL, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=4)
    with Stream.of(dataset) as stream:
        server.fail(FAULTS["503"], ".tar")
        failed = threading.Event()

        def ask() -> None:
            with pytest.raises(BaseException):  # noqa: B017, PT011 (of several kinds: it is given up)
                next(stream)
            failed.set()

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        while not any(".tar" in path for path, _ in server.requests):
            time.sleep(0.01)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < PATIENCE_S / 2
    assert failed.wait(PATIENCE_S / 2)


def test_a_store_that_never_answered_is_given_up_sooner(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("energon_grain.stores.retries.UNREACHABLE_SECONDS", 0.2)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(ReadError, match=r"no response \(\d+ attempts in"):
        client(tmp_path, timeout_s=PATIENCE_S).read(ObjectRange("s3://bkt/x"))


@pytest.mark.parametrize("start", [0, 5])
def test_a_range_without_a_total_is_read(server: FaultyServer, tmp_path: Path, start: int) -> None:
    server.objects["x"] = b"some text"
    server.fail(FAULTS["Content-Range without total"])
    reader = client(tmp_path)
    for stop in (None, 7):
        found = reader.read(ObjectRange("s3://bkt/x", start, stop))
        assert found is not None
        assert (found.data, found.size_bytes) == (b"some text"[start:stop], 9)
    found = reader.read(ObjectRange("s3://bkt/x", -4))
    assert found is not None
    assert found.data == b"text"


def listed(*keys: str, token: str = "") -> Any:
    rows = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><Size>3</Size></Contents>"
        for key in keys
    )
    further = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    body = f"<ListBucketResult><IsTruncated>{str(bool(token)).lower()}</IsTruncated>{rows}{further}</ListBucketResult>"

    def change(answer: Any) -> None:
        answer.body = body.encode()

    return change


def test_a_list_that_is_a_page_to_sign_in_at_is_no_empty_folder(server: FaultyServer, tmp_path: Path) -> None:
    server.fail(FAULTS["HTML"], "list-type")
    with pytest.raises(ReadError, match=r"listing s3://bkt/none failed: .* the response is not a list \(text/html\)"):
        client(tmp_path).list("s3://bkt/none")
    server.fail(None)
    assert client(tmp_path).list("s3://bkt/none") == []


def test_a_list_that_is_cut_without_a_token_is_continued(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("energon_grain.stores.object_stores._FULL_PAGE", 2)
    answers = [listed("d/a", "d/b"), listed("d/c")]

    def cut(answer: Any) -> None:
        answers.pop(0)(answer)

    server.fail(cut, "list-type")
    assert client(tmp_path).list("s3://bkt/d") == ["a", "b", "c"]
    assert [path.partition("start-after=")[2] for path, _ in server.requests] == ["", "d%2Fb"]


def test_a_list_that_repeats_itself_ends(server: FaultyServer, tmp_path: Path) -> None:
    server.fail(listed("d/a", token="again"), "list-type")
    with pytest.raises(ReadError, match="its list does not end"):
        client(tmp_path, timeout_s=PATIENCE_S).list("s3://bkt/d")
    assert len(server.requests) < 50


def test_an_endless_list_of_nothing_is_not_asked_for_any_more(server: FaultyServer, tmp_path: Path) -> None:
    server.fail(listed(token="again"), "list-type")
    with pytest.raises(ReadError, match=r"no (complete list|response) within"):
        client(tmp_path, attempts=1).list("s3://bkt/d")
    asked, end_s = -1, time.monotonic() + PATIENCE_S
    while asked != len(server.requests):  # those under way on a busy machine
        assert time.monotonic() < end_s
        asked = len(server.requests)
        time.sleep(0.3)


def test_credentials_are_in_no_message_state_or_statistics(
    server: FaultyServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    use_storage(StorageSettings(**QUICK, cache_dir=str(tmp_path)))
    server.fail(FAULTS["503"], ".tar", every=2)
    dataset = get_train_dataset(URL, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=4)
    with caplog.at_level(logging.DEBUG), Stream.of(dataset) as stream:
        next(stream)
        said = [
            stream.cursor(with_manifest=True),
            stream.stats().as_dict(),
            str(stream.stats()),
            repr(dataset),
            caplog.text,
        ]
    server.fail(FAULTS["403"])
    said.append(repr(attempted(URL)))
    written = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "pages" not in path.parts
    )
    assert "attempt 2" in caplog.text
    for secret in (SECRET, KEY):
        assert not any(secret in str(each) for each in said)
        assert secret.encode() not in written
