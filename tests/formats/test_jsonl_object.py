"""Indices of JSONL objects: copied from the store, or made of the object's lines, once for each version."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from object_server import Bucket, Fault

from energon_grain import StorageSettings, use_storage
from energon_grain.errors import (
    DatasetNotFoundError,
    DecodingError,
    EmptyDatasetError,
    IndexFileError,
    ReadError,
    StaleIndexError,
)
from energon_grain.formats import jsonl as jsonl_object
from energon_grain.formats.jsonl import JsonlFile, open_jsonl
from energon_grain.prepare.preparation import prepare_jsonl
from energon_grain.sources.jsonl import JsonlSource

LINES = b'\n{"a": 0}\n\n{"a": 1}\r\n  {"a": 2}  \n\n'
STARTS = [0, 11, 21, 35]


@pytest.fixture
def url(bucket: Bucket) -> str:
    bucket.put("some sets/x.jsonl", LINES)
    bucket.server.reset()
    return f"{bucket.url}/some sets/x.jsonl"


def starts(file: JsonlFile) -> list[int]:
    return file.starts().tolist()


def sent(bucket: Bucket) -> int:
    return sum(request.sent_bytes for request in bucket.server.requests("x.jsonl"))


def test_made_once_where_there_is_none(bucket: Bucket, url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "energon_grain"):
        file = open_jsonl(url)
    assert starts(file) == STARTS
    assert f"{url} has no index beside it" in caplog.text
    assert len(bucket.server.requests("x.jsonl", "PUT")) == 0
    bucket.server.reset()
    caplog.clear()
    assert open_jsonl(url) == file
    assert not caplog.text
    assert len(bucket.server.requests("x.jsonl")) <= 3


def test_several_at_once_make_it_once(bucket: Bucket, url: str) -> None:
    content = b'{"text": "' + b"x" * 1000 + b'"}\n'
    bucket.put("some sets/x.jsonl", content * 3000)
    bucket.server.reset()
    found: list[JsonlFile] = []
    threads = [threading.Thread(target=lambda: found.append(open_jsonl(url))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(starts(file)) for file in found] == [3001] * 5
    assert sent(bucket) < 1.1 * 3000 * len(content)


def test_what_was_gone_through_is_not_fetched_again(bucket: Bucket, url: str) -> None:
    content = b"".join(b'{"n": %d, "text": "%s"}\n' % (number, b"x" * 5000) for number in range(4000))
    bucket.put("some sets/x.jsonl", content)
    bucket.server.reset()
    source = JsonlSource(url)
    batch = source.read(np.arange(4000)[::7])
    assert [json.loads(bytes(raw.parts["json"]))["n"] for raw in batch] == list(range(0, 4000, 7))
    assert sent(bucket) < len(content) + 10_000


def test_read_once_where_it_is_beside_the_file(bucket: Bucket, url: str) -> None:
    content = LINES + b'{"long": "' + b"x" * 5_000_000 + b'"}\n'
    bucket.put("some sets/x.jsonl", content)
    prepare_jsonl(url)
    bucket.server.reset()
    file = open_jsonl(url)
    assert starts(file) == [*STARTS, len(content)]
    assert sent(bucket) < 10_000, "the lines are not read"
    bucket.server.reset()
    assert open_jsonl(url) == file
    assert len(bucket.server.requests("x.jsonl")) <= 3


def test_on_the_web_too(bucket: Bucket, url: str) -> None:
    bucket.put("some sets/x.jsonl", LINES, public=True)
    web = url.replace("s3:/", bucket.server.endpoint)
    assert starts(open_jsonl(web)) == STARTS
    bucket.put("some sets/x.jsonl.idx", np.array(STARTS, "<u8").tobytes(), public=True)
    assert starts(open_jsonl(web)) == STARTS
    assert JsonlSource(web).place_of(2) == f"{web}:5"
    bucket.put("some sets/x.jsonl", LINES + b"{}", public=True)
    with pytest.raises(StaleIndexError, match=f"^{web} was indexed with 35 bytes, but it has 37"):
        open_jsonl(web)


def test_a_large_index_comes_in_pieces(bucket: Bucket, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_object, "_COPIED_BYTES", 100_000)
    bucket.put("some sets/x.jsonl", b"{}\n" * 300_000)
    prepare_jsonl(url)
    assert starts(open_jsonl(url)) == list(range(0, 900_001, 3))


def test_an_index_that_was_made_anew_is_read_anew(bucket: Bucket, url: str) -> None:
    made = open_jsonl(url)
    prepare_jsonl(url)
    stored = open_jsonl(url)
    assert made.index != stored.index
    assert starts(stored) == STARTS
    with pytest.raises(StaleIndexError, match=f"{url}: its index on this machine.* is gone"):
        made.starts()
    bucket.put("some sets/x.jsonl", LINES + b"{}")
    with pytest.raises(StaleIndexError, match=f"^{url} was indexed with 35 bytes, but it has 37; .*prepare {url}`"):
        open_jsonl(url)
    prepare_jsonl(url)
    assert starts(open_jsonl(url)) == [*STARTS, 37]
    bucket.delete("some sets/x.jsonl.idx")
    assert starts(open_jsonl(url)) == [*STARTS, 37]


def test_without_an_index_another_version_is_indexed_anew(bucket: Bucket, url: str) -> None:
    assert starts(open_jsonl(url)) == STARTS
    bucket.put("some sets/x.jsonl", LINES.replace(b'{"a": 1}\r\n', b'{"a":11}\n\n'))
    assert starts(open_jsonl(url)) == STARTS
    bucket.put("some sets/x.jsonl", LINES.replace(b'\n\n{"a": 1}', b'\n{"a": 1}\n'))
    assert starts(open_jsonl(url)) == [0, 10, 21, 35]
    assert len(list(open_jsonl(url).index.parent.glob("*.idx"))) == 1


@pytest.mark.parametrize("damaged", [b"", b"\0" * 8, b"\0" * 17, np.array([3, 35], "<u8").tobytes()])
def test_a_damaged_index(bucket: Bucket, url: str, damaged: bytes) -> None:
    bucket.put("some sets/x.jsonl.idx", damaged)
    with pytest.raises(IndexFileError, match=rf"^{url}\.idx: .*damaged; `energon-grain prepare {url}`"):
        open_jsonl(url)


def test_what_is_refused(bucket: Bucket, url: str) -> None:
    with pytest.raises(DatasetNotFoundError, match=f"{bucket.url}/none.jsonl: no such object"):
        open_jsonl(f"{bucket.url}/none.jsonl")
    bucket.put("some sets/x.jsonl", b"\n \n")
    with pytest.raises(EmptyDatasetError, match=f"{url}: has no sample"):
        open_jsonl(url)
    bucket.put("some sets/x.jsonl", b"")
    with pytest.raises(EmptyDatasetError, match=f"{url}: has no sample"):
        open_jsonl(url)
    bucket.put("some sets/x.jsonl", b'{}\n\noops\n{"a": 1\n')
    with pytest.raises(DecodingError, match=rf"{url}: 2 of 4 lines .*: x.jsonl:3: b'oops', x.jsonl:4: "):
        open_jsonl(url)
    use_storage(StorageSettings(attempts=2, first_pause_s=0.001))
    bucket.server.inject(Fault("status", times=None))
    with pytest.raises(ReadError, match=f"{url}.* failed: .*2 attempts"):
        open_jsonl(url)


def test_an_object_that_changes_while_it_is_indexed(
    bucket: Bucket, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_storage(StorageSettings(cache_dir=str(tmp_path / "own")))
    write: Callable[..., int] = jsonl_object.write_jsonl_index

    def replaced_first(path: str, *, target: Path) -> int:
        bucket.put("some sets/x.jsonl", LINES[:-1])
        return write(path, target=target)

    monkeypatch.setattr(jsonl_object, "write_jsonl_index", replaced_first)
    with pytest.raises(StaleIndexError, match="was replaced while it was indexed"):
        open_jsonl(url)
    monkeypatch.undo()
    use_storage(StorageSettings(cache_dir=str(tmp_path / "own")))
    assert not list((tmp_path / "own").rglob("*.idx"))
