"""`hf://`: datasets of the Hub, against one on loopback that leads to a second host by URLs that expire."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from cli_runs import run
from hub_server import LFS_BYTES, TOKEN, Answer, HubServer, running_hub
from metadatasets import v2
from parquet_files import write_numbers
from patience import PATIENCE_S
from storage import faults
from storage.test_faults import attempted, batches

from energon_grain import (
    ConfigError,
    Cooker,
    DefaultTaskEncoder,
    EPath,
    ReadError,
    StorageSettings,
    StoreSettings,
    Stream,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_train_dataset,
    measure_dataset,
    open_columns,
    use_storage,
)
from energon_grain.errors import EnergonGrainError, FingerprintError, KeyNotFoundError
from energon_grain.prepare import prepare_dataset
from energon_grain.storage.settings import storage_settings
from energon_grain.stores import hub as hub_store
from energon_grain.stores.object_error import ObjectError
from energon_grain.stores.object_stores import LateResponseError, ObjectStores
from energon_grain.testing import make_text_dataset

URL = "hf://datasets/team/texts"
TESTS = Path(__file__).parents[1]
QUICK: dict[str, Any] = {"attempts": 3, "first_pause_s": 0.01}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        forkserver._forkserver._stop()  # else its workers have the environment of another test
        anew()
        yield server
        forkserver._forkserver._stop()


_timeouts = iter(range(60, 10**6))


def anew(**settings: Any) -> None:
    """As another process: by a client of its own."""
    use_storage(StorageSettings(**{**QUICK, "timeout_s": float(next(_timeouts)), **settings}))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_dataset(tmp_path_factory.mktemp("hub") / "texts", n=100, shards=5)


@pytest.fixture(scope="session")
def long_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_dataset(tmp_path_factory.mktemp("hub") / "long", n=48, shards=2, text_bytes=30_000)


def cook(line: Any) -> TextSample:
    return TextSample(**basic_sample_keys(line), text=json.loads(line["json"])["text"])


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Lines become what the samples of shards are."""

    cookers = (Cooker(cook),)


def keys(path: Any, steps: int, state: Any = None, workers: int = 0, **more: Any) -> tuple[list[list[str]], Any]:
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=4,
        task_encoder=Encoder(),
        **{"shuffle_buffer_size": None, "max_samples_per_sequence": None, **more},
    )
    with Stream.of(dataset) as stream:
        if state is not None:
            stream.restore(state)
        batches = [list(next(stream).__key__) for _ in range(steps)]
        return batches, json.loads(json.dumps(stream.cursor(with_manifest=True)))


def test_files_are_listed_and_read(hub: HubServer) -> None:
    files = {"ä b?.txt": b"small", "sub/x": b"x" * LFS_BYTES * 3, "sub/deep/z": b"", "y": bytes(range(250)) * 20}
    first = hub.commit("team/texts", files)
    hub.page = 2
    folder = EPath(URL)
    assert sorted(path.relative_to(folder) for path in folder.walk()) == sorted(files)
    assert {name: (folder / name).read_bytes() for name in files} == files
    assert [path.name for path in folder.glob("sub/*")] == ["x"]
    assert ((folder / "sub").is_dir(), (folder / "sub").is_file(), (folder / "no/x").exists()) == (True, False, False)
    assert (folder / "y").size() == 5000
    with (folder / "y").open("rb") as file:
        file.seek(-5, os.SEEK_END)
        assert file.read() == bytes(range(245, 250))
    with pytest.raises(FileNotFoundError):
        (folder / "none").read_bytes()
    hub.commit("team/texts", {"y": b"other"}, branch="refs/pr/1")
    hub.commit("team/texts", {"y": b"new"}, branch="a/b")
    assert EPath(f"{URL}@{first}/y").size() == 5000
    assert EPath(f"{URL}@refs/pr/1/y").read_bytes() == b"other"
    assert EPath(f"{URL}@a%2Fb/y").read_bytes() == b"new"
    with pytest.raises(ReadError, match=r"writing .*the Hub is read-only .*; write to a folder, .*`hf upload`"):
        (folder / "new").write_bytes(b"")


def test_a_dataset_is_streamed_saved_and_restored(hub: HubServer, texts: Path) -> None:
    hub.commit("team/texts", texts)
    expected, _ = keys(texts, 40)
    first, state = keys(URL, 15, workers=2)
    anew()
    rest, _ = keys(f"{URL}@main", 25, state)
    assert first + rest == expected
    here, _ = keys(texts, 25, state)
    assert here == rest
    assert TOKEN not in json.dumps(state)
    # Another process of this machine knows the lists; it asks for the branch, and where the shards are.
    hub.asked.clear()
    anew()
    assert keys(URL, 40)[0] == expected
    assert (hub.count("hub", "/api/"), hub.count("hub", "/api/datasets/team/texts/revision/main")) == (1, 1)
    assert run("info", URL).exit_code == 0
    assert run("which", URL, "--step", "3", "--batch-size", "4").exit_code == 0
    assert run("lint", URL).exit_code == 0
    assert run("preview", URL).exit_code in (0, 2)


def test_requests_of_an_epoch(hub: HubServer, texts: Path) -> None:
    hub.commit("team/texts", texts)
    keys(URL, 25)
    tars = 4
    assert hub.count("hub", "/revision/") == 1
    assert hub.count("hub", "/tree/") == 2
    assert hub.count("hub", ".tar") == tars  # each one is asked for its place once
    assert hub.count("cdn", ".tar") == tars  # each is a page


def test_mixed_with_local_data_and_from_a_metadataset_in_the_dataset(
    hub: HubServer, texts: Path, tmp_path: Path
) -> None:
    files = {f"sets/texts/{path.relative_to(texts).as_posix()}": path for path in texts.rglob("*") if path.is_file()}
    content = {name: path.read_bytes() for name, path in files.items()}
    lines = "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(200)).encode()
    blend = {"blend": [{"path": "sets/texts", "weight": 1}, {"path": "./lines.jsonl", "weight": 1}]}
    content |= {"lines.jsonl": lines, "meta.yaml": json.dumps(v2(train=blend)).encode()}
    hub.commit("team/mix", content)
    for name, data in content.items():
        (tmp_path / "mix" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mix" / name).write_bytes(data)
    local = get_keys(tmp_path / "mix/meta.yaml")
    assert get_keys("hf://datasets/team/mix/meta.yaml") == local
    (tmp_path / "both.yaml").write_text(
        json.dumps(v2(train={"blend": [{"path": str(texts)}, {"path": "hf://datasets/team/mix/sets/texts"}]}))
    )
    assert len(get_keys(tmp_path / "both.yaml")) == 40
    hub.commit("team/mix", {"meta.yaml": json.dumps(v2(train={"path": "../other"})).encode()}, branch="out")
    with pytest.raises(ConfigError, match=r"`\.\.` leads out of the dataset"):
        get_keys("hf://datasets/team/mix@out/meta.yaml")


def get_keys(path: Any) -> list[Any]:
    return keys(path, 40)[0]


@pytest.mark.parametrize("form", ["bare tars", "parquet"])
def test_what_nobody_prepared(hub: HubServer, texts: Path, form: str) -> None:
    if form == "parquet":
        buffer = io.BytesIO()
        rows = [f"row {number} " * 20 for number in range(200)]
        pyarrow.parquet.write_table(pyarrow.table({"text": rows}), buffer, row_group_size=50)
        hub.commit("team/texts", {"train.parquet": buffer.getvalue()})
    else:
        hub.commit("team/texts", {path.name: path.read_bytes() for path in texts.glob("*.tar")})

    def crude(steps: int, state: Any = None) -> tuple[list[list[str]], Any]:
        dataset = get_train_dataset(
            URL,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
            batch_size=4,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
        )
        with Stream.of(dataset) as stream:
            if state is not None:
                stream.restore(state)
            batches = [list(next(stream)["__key__"]) for _ in range(steps)]
            return batches, json.loads(json.dumps(stream.cursor(with_manifest=True)))

    expected, _ = crude(20)
    first, state = crude(10)
    anew()
    hub.asked.clear()
    assert first + crude(10, state)[0] == expected
    assert [each.path for each in hub.asked] == ["/api/datasets/team/texts/revision/main"]


def test_tars_of_two_datasets_or_beside_parquet_files_are_refused(hub: HubServer, texts: Path) -> None:
    tar = next(texts.glob("*.tar"))
    for repo in ("team/texts", "team/others"):
        hub.commit(repo, {"a.tar": tar.read_bytes(), "a.parquet": b"PAR1"})
    others = URL.replace("texts", "others")
    with pytest.raises(ConfigError, match=r"one store; these are in hf://datasets/team/others@.* and in .*/texts@"):
        keys([f"{URL}/a.tar", f"{others}/a.tar"], 1)
    with pytest.raises(ConfigError, match=r"tars and Parquet files; name the files to read: hf://.*/\*\*/\*\.tar"):
        keys(URL, 1)


def test_a_branch_that_moves(hub: HubServer, texts: Path, tmp_path: Path) -> None:
    before = hub.commit("team/texts", texts)
    expected, _ = keys(texts, 40)
    dataset = get_train_dataset(
        URL,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    with Stream.of(dataset) as stream:
        batches = [list(next(stream).__key__) for _ in range(5)]
        other = make_text_dataset(tmp_path / "texts", n=120, shards=5)
        after = hub.commit("team/texts", other)
        batches += [list(next(stream).__key__) for _ in range(20)]
        state = json.loads(json.dumps(stream.cursor(with_manifest=True)))
    assert batches == expected[:25]
    # This process goes on with what it began with.
    assert keys(URL, 3)[0] == expected[:3]
    anew()
    with pytest.raises(FingerprintError, match=rf"commit: saved '{URL}@{before}', now '{URL}@{after}'"):
        keys(URL, 1, state)
    assert keys(f"{URL}@{before}", 15, state)[0] == expected[25:]
    # A commit that changes nothing of the data is no other stream, and nothing is fetched again.
    hub.commit("team/texts", {**files_of(texts), "README.md": b"Texts."})
    anew()
    hub.asked.clear()
    assert keys(URL, 15, state)[0] == expected[25:]
    assert not hub.count("cdn")


def test_what_is_kept_of_commits_goes_when_nobody_opens_them(hub: HubServer, texts: Path, tmp_path: Path) -> None:
    commits = [hub.commit("team/texts", {"README.md": b"", **files_of(texts), "x": bytes(i)}) for i in range(3)]
    expected = keys(texts, 3)[0]
    for commit in commits[:2]:
        assert keys(f"{URL}@{commit}", 3)[0] == expected
    kept = tmp_path / "cache/energon-grain/objects"
    mirrors, lists = set((kept / "hub-mirror").iterdir()), set((kept / "hub").iterdir())
    assert len(mirrors) == 2
    for path in {*mirrors, *lists}:
        os.utime(path, (0, 0))
    anew()
    assert keys(f"{URL}@{commits[1]}", 3)[0] == expected  # which is still used
    anew()
    hub.asked.clear()
    assert keys(f"{URL}@{commits[2]}", 3)[0] == expected
    assert len(mirrors & set((kept / "hub-mirror").iterdir())) == 1
    assert 0 < len(lists & set((kept / "hub").iterdir())) < len(lists)
    anew()
    assert keys(f"{URL}@{commits[0]}", 3)[0] == expected


def files_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_signatures_that_expire(hub: HubServer, texts: Path) -> None:
    hub.commit("team/texts", texts)
    expected, _ = keys(texts, 20, max_samples_per_sequence=4)
    anew(cache_bytes=0, ahead_bytes=0)
    dataset = get_train_dataset(
        URL,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=4,
    )
    with Stream.of(dataset) as stream:
        batches: list[list[str]] = []
        for _ in range(20):
            hub.expire()
            batches.append(list(next(stream).__key__))
    assert batches == expected
    hub.instead = lambda of, path: (403, {}, b"no") if of == "cdn" else None
    said = r"localhost, to which the Hub redirects, responded with HTTP 403, even with a new sig"
    with pytest.raises(ReadError, match=said):
        (EPath(URL) / "shard_000.tar").read_bytes()


def test_the_token_goes_to_the_hub_alone_and_is_told_nowhere(
    hub: HubServer, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.commit("team/texts", texts)
    hub.private.add("team/texts")
    with pytest.raises(ReadError, match=r"no dataset team/texts at .*, or it is private .*set HF_TOKEN .*`hf auth log"):
        keys(URL, 1)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    anew()
    with pytest.raises(
        ReadError, match=r"access denied: Invalid cred.* \(Bearer …\) .*; check the permissions of the token in HF_TOK"
    ):
        keys(URL, 1)
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/token").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    anew()
    hub.asked.clear()
    hub.limited, hub.limit_headers = 1, {"Retry-After": "0", "X-Error-Message": f"slow down, {TOKEN}"}
    _, state = keys(URL, 30)
    sent = {(each.of, each.headers.get("Authorization")) for each in hub.asked}
    assert sent == {("hub", f"Bearer {TOKEN}"), ("cdn", None)}
    kept = [path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert kept
    told = [caplog.text.encode(), json.dumps(state).encode(), pickle.dumps(EPath(URL)), *kept]
    assert "too many requests" in caplog.text
    assert not any(secret in text for text in told for secret in (TOKEN.encode(), b"hf_wrong"))
    anew(stores={URL: StoreSettings(anonymous=True)})
    with pytest.raises(ReadError, match=r"or it is private .*`anonymous: true` for it: remove that"):
        keys(URL, 1)


def test_what_the_hub_refuses(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit("team/texts", {"x": b"1"})
    hub.gated.add("team/texts")
    with pytest.raises(
        ReadError, match=r"access denied: team/texts is gated .*request access at .*/datasets/team/texts"
    ):
        (EPath(URL) / "x").read_bytes()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    anew()
    assert (EPath(URL) / "x").read_bytes() == b"1"
    with pytest.raises(ReadError, match=r"team/texts has no such revision: Invalid rev id: v2.*check the name after @"):
        EPath(f"{URL}@v2/x").read_bytes()
    with pytest.raises(
        ReadError, match=r"there is no dataset team/none at .*check the permissions of the token in HF_TOKEN"
    ):
        EPath("hf://datasets/team/none/x").read_bytes()
    hub.instead = lambda of, path: (503, {}, b"")
    hub.asked.clear()
    with pytest.raises(ReadError, match=r"\(HTTP 503\) \(3 attempts"):
        EPath(f"{URL}@v3/x").read_bytes()
    assert hub.count("hub") == 3
    anew(stores={"hf://": StoreSettings(endpoint="http://127.0.0.1:9")})
    with pytest.raises(ReadError, match=r"cannot connect to 127\.0\.0\.1.*: no response \(3 attempts"):
        (EPath(URL) / "x").read_bytes()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("hf://team/texts", "not a dataset of the Hub; write hf://datasets/OWNER/NAME"),
        ("hf://datasets/texts", "not a dataset of the Hub; write hf://datasets/OWNER/NAME"),
        ("hf://datasets/team/texts@/x", "not a dataset of the Hub; write hf://datasets/OWNER/NAME"),
        ("hf://datasets/../texts", "not a dataset of the Hub; write hf://datasets/OWNER/NAME"),
    ],
)
def test_urls_that_name_no_dataset(hub: HubServer, url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EPath(url).read_bytes()
    anew(stores={"hf://": StoreSettings(region="here")})
    with pytest.raises(ConfigError, match="the storage settings set a region, which the Hub does not support"):
        EPath(f"{URL}/x").read_bytes()
    assert not hub.asked


def test_too_many_requests_are_waited_for(hub: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    hub.commit("team/texts", {"x": b"1"})
    for headers in ({"Retry-After": "1"}, {"RateLimit": '"resolvers";r=0;t=1', "RateLimit-Policy": "x;q=9;w=300"}):
        anew()
        caplog.clear()
        hub.limited, hub.limit_headers = 1, headers
        assert EPath(f"{URL}/x").read_bytes() == b"1"
        assert "too many requests to 127.0.0.1" in caplog.text
        assert "attempt 2 of 3 in 1 s" in caplog.text
    hub.limited, hub.limit_headers = 1, {"Retry-After": "86400"}
    anew()
    with pytest.raises(ReadError, match=r"127\.0\.0\.1.* requests a delay of 86400 s \(not retried\)"):
        EPath(f"{URL}/x").read_bytes()


def test_offline(hub: HubServer, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.commit("team/texts", texts)
    hub.commit("team/more", texts)
    content = (EPath(URL) / "shard_000.tar").read_bytes()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    anew()
    hub.asked.clear()
    assert EPath(f"{URL}/shard_000.tar").size() == len(content)
    assert EPath(f"{URL}@{commit}/shard_000.tar").size() == len(content)
    with pytest.raises(ReadError, match=r"HF_HUB_OFFLINE is set, but the commit of team/more@main is not cached"):
        EPath("hf://datasets/team/more/x").size()
    with pytest.raises(ReadError, match=r"HF_HUB_OFFLINE is set, but the requested data are not cached"):
        EPath(f"{URL}/shard_001.tar").read_bytes()
    assert not hub.asked


def test_an_epoch_again_without_the_hub(hub: HubServer, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit("team/texts", texts)
    expected, _ = keys(URL, 40)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    anew()
    hub.asked.clear()
    assert keys(URL, 40)[0] == expected
    assert not hub.asked


TREE = "/api/datasets/team/texts/tree/"


def listing(*entries: dict[str, Any], link: str = "") -> Answer:
    headers = {"Content-Type": "application/json"} | ({"Link": f'<{link}>; rel="next"'} if link else {})
    return 200, headers, json.dumps([{"type": "file", "oid": "1", "size": 4, **each} for each in entries]).encode()


@pytest.mark.parametrize(
    ("part", "answer", "said"),
    [
        (
            "/revision/",
            (200, {"Content-Type": "text/html"}, b"<html>Sign in</html>"),
            "does not respond like the Hub .tex",
        ),
        ("/revision/", (200, {}, b'{"sha": "../../etc"}'), r"returned '\.\./\.\./etc' instead of a commit"),
        ("/revision/", (200, {}, b'{"sha": 5}'), "does not respond like the Hub"),
        ("/revision/", (302, {"Location": "http://localhost:9/"}, b""), "redirects to another host, localhost"),
        ("/revision/", (302, {"Location": "?again"}, b""), "redirects more than 5 times"),
        (
            "/revision/",
            (302, {"Location": "file:///etc/passwd"}, b""),
            "redirects to the unsupported scheme 'file'",
        ),
        (TREE, (200, {}, b"[" * 10000), "does not respond like the Hub"),
        (TREE, listing({"path": "../../x"}), r"lists '\.\./\.\./x', which is not in the dataset"),
        (TREE, listing({"path": "/etc/passwd"}), "lists '/etc/passwd', which is not in the dataset"),
        (TREE, listing({"path": "a/./x"}), "lists 'a/./x', which is not in the dataset"),
        (TREE, listing({"path": "x", "size": -1}), "lists 'x' with -1 bytes"),
        (TREE, listing({"path": "x"}, link="?cursor=1"), "the list of 127.* does not end"),
        (TREE, listing({"path": "x"}, link="http://localhost:9/x"), "the list of 127.* continues at localhost"),
        ("/resolve/", (200, {}, b"x"), r"the list has a size of 4 bytes, but 127.* reports 1 "),
        (
            "/resolve/",
            (200, {"Content-Encoding": "gzip"}, b"xxxx"),
            "sent a compressed response, which was not requested",
        ),
        (
            "/resolve/",
            (206, {"Content-Range": "bytes 0-3/9"}, b"xxxx"),
            "the list has a size of 4 bytes, but .* reports 9",
        ),
        (
            "/resolve/",
            (206, {"Content-Range": "bytes 1-4/4"}, b"xxxx"),
            "sent bytes 1-4/4 for bytes 0 to 4 .3 attempts",
        ),
        (
            "/resolve/",
            (206, {"Content-Range": "bytes 0-3/4", "Content-Length": "9", "Connection": "close"}, b"xx"),
            "sent 9 bytes for bytes 0 to 4",
        ),
        ("/resolve/", (302, {"Location": "//localhost", "X-Linked-Size": "7"}, b""), "lists 4, but redirects to 7"),
        (
            "/resolve/",
            (302, {"Location": "//localhost", "X-Linked-Etag": '"8"'}, b""),
            "lists .*, but redirects to 8",
        ),
        ("/resolve/", (404, {}, b""), "no such object|No such file|is nothing"),
    ],
)
def test_hostile_answers(hub: HubServer, part: str, answer: Answer, said: str) -> None:
    hub.commit("team/texts", {"x": b"1234"})
    hub.instead = lambda of, path: answer if part in path or ("?again" in path and "?again" in str(answer)) else None
    with pytest.raises((ReadError, FileNotFoundError), match=said):
        (EPath(URL) / "x").read_bytes()
    assert not [each for each in hub.asked if each.of == "cdn"]


def test_what_would_write_to_the_hub_says_so_before_it_reads(hub: HubServer, texts: Path) -> None:
    hub.commit("team/texts", texts)
    with pytest.raises(ConfigError, match=r"^hf://datasets/team/texts: the Hub is read-only: download the dataset"):
        prepare_dataset(URL, crude=True)
    assert not hub.asked


def length(parts: dict[str, Any]) -> int:
    return sum(len(part) for part in parts.values() if isinstance(part, bytes))


def test_columns_are_kept_on_this_machine_and_outlive_a_commit(
    hub: HubServer, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(json.dumps({"text": "x" * number}) + "\n" for number in range(100)).encode()
    write_numbers(tmp_path / "rows.parquet")
    tars = {f"bare/{path.name}": path.read_bytes() for path in texts.rglob("*.tar")}
    prepared = {
        f"set/{path.relative_to(texts).as_posix()}": path.read_bytes() for path in texts.rglob("*") if path.is_file()
    }
    content = tars | prepared | {"x.jsonl": lines, "rows.parquet": (tmp_path / "rows.parquet").read_bytes()}
    hub.commit("team/texts", content)
    folders = [f"{URL}/{name}" for name in ("set", "bare", "x.jsonl", "rows.parquet")]
    for path in folders:
        (note,) = measure_dataset(path, {"length": length}, num_workers=0).notes
        assert "on this machine only" in note
    measured = [open_columns(path)["length"].tolist() for path in folders]
    state = keys(f"{URL}/set", 5, where="length >= 60")[1]
    hub.commit("team/texts", content | {"README.md": b"new"})
    anew()
    assert [open_columns(path)["length"].tolist() for path in folders] == measured
    assert [open_columns(path)["length"].tolist() for path in [f"{URL}@main/set"]] == measured[:1]
    assert keys(f"{URL}/set", 5, state, where="length >= 60")[0]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another host"))
    for path in folders:
        with pytest.raises(KeyNotFoundError, match="so each machine stores its own columns: measure on every host"):
            open_columns(path)["length"]
    measure_dataset(f"{URL}/set", attach={"length": np.arange(100)})
    with pytest.raises(FingerprintError, match=r"where\.columns\.length"):
        keys(f"{URL}/set", 5, state, where="length >= 60")


def test_a_few_of_the_hostile_answers_of_hub_fuzzing() -> None:
    command = [sys.executable, str(TESTS / "hub_fuzzing.py"), "7", "60"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert sum(count for said, count in outcomes.items() if "as it is" in said) > 5
    assert sum(count for said, count in outcomes.items() if "ReadError" in said) > 5


def test_more_bytes_than_were_asked_for_are_refused_or_not_read(hub: HubServer) -> None:
    hub.commit("team/texts", {"x": b"1234", "whole": bytes(range(200))})

    def instead(of: str, path: str) -> Answer | None:
        if path.endswith("/x"):
            return 206, {"Content-Range": "bytes 0-3/4", "Content-Length": "400"}, b"1234" * 100
        return (200, {}, bytes(range(200))) if path.endswith("/whole") else None

    hub.instead = instead
    anew(attempts=2)
    with pytest.raises(ReadError, match=r"sent 400 bytes for bytes 0 to 4 \(2 attempts"):
        (EPath(URL) / "x").read_bytes()
    anew(cache_bytes=0)
    with (EPath(URL) / "whole").open("rb") as file:  # of a server that knows no ranges
        file.seek(150)
        assert file.read(3) == bytes([150, 151, 152])


def test_responses_that_are_not_read_are_closed(hub: HubServer, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped response that stays open is a ResourceWarning, at the next garbage collection."""
    hub.commit("team/texts", texts)
    anew(cache_bytes=0)
    responses: list[Any] = []
    send = hub_store._Hub.send_unsigned

    def recorded(of: Any, url: str, headers: dict[str, str]) -> Any:
        responses.append(send(of, url, headers))
        return responses[-1]

    def late() -> None:
        raise LateResponseError

    monkeypatch.setattr(hub_store._Hub, "send_unsigned", recorded)
    stores, url = ObjectStores(storage_settings()), f"{URL}/shard_000.tar"
    fetched = stores.read(url, 0, 1000, None)
    assert fetched is not None
    open_before = len(responses)
    with pytest.raises(LateResponseError):
        stores.read(url, 0, 1000, None, on_first_byte=late)
    assert len(responses) > open_before
    hub.instead = lambda of, path: (429, {"Retry-After": "86400"}, b"x" * 100)
    with pytest.raises(ObjectError, match="requests a delay of 86400 s"):
        stores.list(f"{URL}/more")
    assert all(response.closed for response in responses)


def test_parquet(hub: HubServer, tmp_path: Path) -> None:
    """By folder and by pattern, pinned as all is."""
    folder = write_numbers(tmp_path / "data", 60, files=3, row_group_size=5)
    hub.commit("team/rows", {f"data/{path.name}": path.read_bytes() for path in folder.iterdir()})
    for path in ("hf://datasets/team/rows", "hf://datasets/team/rows/data/train-*.parquet"):
        dataset = get_train_dataset(
            path,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
            batch_size=4,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            repeat=False,
        )
        with Stream.of(dataset) as stream:
            assert sorted(int(n) for batch in stream for n in batch["n"]) == list(range(60))


@pytest.mark.parametrize("cache_bytes", [None, 0], ids=["cache", "no cache"])
@pytest.mark.parametrize("name", faults.FAULTS)
def test_faults_of_the_content_network(hub: HubServer, name: str, cache_bytes: int | None, long_texts: Path) -> None:
    """As in test_faults.py: the batches of the local files, or an error, and never other batches."""
    local, repository = batches(long_texts), long_texts.name
    hub.commit(f"team/{repository}", long_texts)
    ended, asked, hits = threading.Event(), itertools.count(1), list[int]()

    def sent(connection: BaseHTTPRequestHandler, of: str, answer: Answer) -> bool:
        if of != "cdn" or ".tar?" not in connection.path or next(asked) % 3:
            return False
        status, headers, body = answer
        whole = (long_texts / unquote(urlsplit(connection.path).path).split("/", 4)[4]).read_bytes()
        span = re.fullmatch(r"bytes (\d+)-(\d+)/\d+", headers.get("Content-Range", ""))
        of_file = None if span is None else (int(span[1]), int(span[2]) + 1)
        wrong = faults.Answer(status, dict(headers), body, whole, of_file)
        faults.FAULTS[name](wrong)
        hits.append(status)
        with contextlib.suppress(ConnectionError):
            faults.send(connection, wrong, ended)
        return True

    hub.sent = sent
    stalls = name.startswith("stall")
    quick: dict[str, Any] = {"timeout_s": 0.3 + next(_timeouts) * 1e-6, "attempts": 8} if stalls else {}
    anew(**{"retry_s": PATIENCE_S, "request_bytes": 1 << 18, **quick, "cache_bytes": cache_bytes})
    found = attempted(f"hf://datasets/team/{repository}")
    ended.set()
    assert hits
    assert found == local or isinstance(found, EnergonGrainError), found
    if cache_bytes is None:
        hub.sent = lambda connection, of, answer: False
        anew()
        assert batches(f"hf://datasets/team/{repository}") == local  # over what is in the cache by now
