"""`energon-grain cache check`: pages that are damaged, or that a server sent wrongly, are found and removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from storage.faults import FaultyServer, running_faulty_server

from energon_grain import StorageSettings, use_storage
from energon_grain.storage.settings import storage_settings
from energon_grain.stores import remote_files
from energon_grain.stores.remote_files import RemoteFiles

PAGE = 256 << 10
CONTENT = np.random.default_rng(0).bytes(5 * PAGE + 777)
URL = "s3://bkt/d/x.tar"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    with running_faulty_server(objects={"d/x.tar": CONTENT, "d/other": b"text"}) as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        use_storage(StorageSettings(cache_dir=str(tmp_path / "cache")))
        yield found


def whole() -> bytes:
    """The object, as a process that has read nothing yet reads it."""
    remote_files._cache_in.cache_clear()  # pyright: ignore[reportPrivateUsage]
    files = RemoteFiles(storage_settings())
    return files.read_spans([URL], np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([len(CONTENT)]))[0]


def check(*arguments: str, code: int = 0) -> Any:
    result = run("cache", "check", *arguments, "--json")
    assert result.exit_code == code
    return json.loads(result.stdout)


def flip(answer: Any) -> None:
    answer.body = answer.body[:-1] + bytes([answer.body[-1] ^ 1])


def test_a_cache_that_is_right(server: FaultyServer) -> None:
    assert whole() == CONTENT
    found = check("--against", "s3://bkt/d")
    assert (found["pages"], found["size_bytes"], found["damaged_pages"]) == (6, len(CONTENT), 0)
    assert (found["compared_objects"], found["compared_pages"], found["wrong"]) == (1, 6, [])
    assert "6 pages" in run("cache", "check").stdout


@pytest.mark.parametrize("page", [0, 2, 5])
def test_a_page_that_is_damaged_on_disk_is_removed(server: FaultyServer, tmp_path: Path, page: int) -> None:
    whole()
    (file,) = (tmp_path / "cache/pages").glob("*/*")
    with file.open("r+b") as opened:
        opened.seek(4096 + page * PAGE + 700)
        opened.write(b"damaged")
    assert check(str(tmp_path / "cache"), code=1)["damaged_pages"] == 1
    found = check()
    assert (found["pages"], found["damaged_pages"]) == (5, 0)
    assert whole() == CONTENT
    assert check()["pages"] == 6


def test_a_page_that_a_server_sent_wrongly_is_found_by_comparing(server: FaultyServer) -> None:
    server.fail(flip, "x.tar bytes")
    assert whole() != CONTENT
    server.fail(None)
    assert check()["damaged_pages"] == 0
    found = check("--against", URL, code=1)
    assert found["wrong"] == [{"url": URL, "start": 5 * PAGE, "stop": len(CONTENT)}]
    assert check("--against", "s3://bkt/d/")["wrong"] == []


def test_files_of_earlier_releases_are_removed(server: FaultyServer, tmp_path: Path) -> None:
    whole()
    (file,) = (tmp_path / "cache/pages").glob("*/*")
    earlier = file.with_name("0" * 38 + "-000000")
    earlier.write_bytes(b"\1" * 256 + bytes(3840) + bytes(PAGE))
    assert check()["earlier_files"] == 1
    assert not earlier.exists()
    assert check()["files"] == 1


def test_what_cannot_be_checked_is_said(server: FaultyServer, tmp_path: Path) -> None:
    assert "has no folder `pages`" in str(run("cache", "check", tmp_path).exception)
    whole()
    nothing = run("cache", "check", "--against", "s3://bkt/none")
    assert "no such object, and no objects below this URL" in str(nothing.exception)
