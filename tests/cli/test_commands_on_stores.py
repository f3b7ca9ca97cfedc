"""Commands on URLs: they say of a dataset in a bucket what they say of the same one on a disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_runs import run
from metadatasets import write_v2
from object_server import Bucket, Fault
from typer.testing import Result
from web_server import running_web_server

from energon_grain import StorageSettings, use_storage
from energon_grain.errors import ConfigError, EnergonGrainError, ReadError
from energon_grain.testing import make_captioning_dataset, make_text_dataset

NAMES = {"set", "text", "mix.yaml", "lines.jsonl"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("commands")
    make_captioning_dataset(root / "set", n=24, shards=4, broken={3, 20})
    make_text_dataset(root / "text", n=20, shards=2)
    for name in ("set", "text"):
        (root / name / ".nv-meta/index.sqlite").unlink()  # which is not looked at in a store
    (root / "lines.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n{"a": 3\n')
    blend = [{"path": "set", "weight": 3}, {"path": "./text", "weight": 1}]
    write_v2(root, "mix.yaml", train={"blend": blend})
    return root


@pytest.fixture
def url(bucket: Bucket, folder: Path) -> str:
    return bucket.upload(folder, "a b")


@pytest.mark.parametrize(
    "arguments",
    [
        ("info", "set"),
        ("info", "set", "--json"),
        ("info", "mix.yaml"),
        ("info", "mix.yaml", "--json"),
        ("lint", "set"),
        ("lint", "text", "--split-parts", "train"),
        ("lint", "lines.jsonl"),
        ("which", "set", "--step", "2", "--batch-size", "3"),
        ("which", "mix.yaml", "--step", "2", "--batch-size", "3", "--json"),
        ("lint", "mix.yaml"),
        ("lint", "mix.yaml", "--json"),
    ],
    ids=" ".join,
)
def test_a_url_is_as_good_as_a_path(folder: Path, url: str, arguments: tuple[str, ...]) -> None:
    def at(root: str) -> Result:
        return run(*(f"{root}/{argument}" if argument in NAMES else argument for argument in arguments))

    here, there = at(str(folder)), at(url)
    assert (there.exit_code, there.output.replace(url, "")) == (here.exit_code, here.output.replace(str(folder), ""))
    assert str(folder) not in there.output


COMMANDS = [
    ("info",),
    ("lint",),
    ("which", "--step", "1", "--batch-size", "2"),
    ("bench",),
    ("prepare", "--non-interactive"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("name", ["nothing", "nothing.jsonl", "nothing.yaml"])
def test_what_is_not_there_is_named_as_it_was_written(bucket: Bucket, command: tuple[str, ...], name: str) -> None:
    options = () if command[0] == "prepare" and "." in name else command[1:]
    done = run(command[0], f"{bucket.url}/{name}", *options)
    assert isinstance(done.exception, EnergonGrainError)
    assert f"{bucket.url}/{name}" in str(done.exception)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_urls_of_no_store_are_refused(command: tuple[str, ...]) -> None:
    done = run(command[0], "wasb://container/set", *command[1:])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith("wasb://container/set")
    assert "object stores are s3://" in str(done.exception)


def test_lint_does_not_fetch_a_database(bucket: Bucket, url: str) -> None:
    bucket.put("a b/text/.nv-meta/index.sqlite", b"x" * 100_000)
    bucket.server.reset()
    assert run("lint", f"{url}/text").exit_code == 0
    assert sum(request.sent_bytes for request in bucket.server.requests("index.sqlite")) < 1000


def test_lint_names_what_is_wrong_with_shards(bucket: Bucket, url: str, folder: Path, tmp_path: Path) -> None:
    content = (folder / "text/shard_001.tar").read_bytes()
    bucket.put("a b/text/shard_001.tar", content.replace(b"000010.txt", b"999999.txt"))
    bucket.delete("a b/text/shard_000.tar")
    bucket.delete("a b/set/shard_000.tar.idx")
    done = run("lint", f"{url}/text")
    assert done.exit_code == 1
    first, second, *_ = done.output.splitlines()
    assert first == (
        "shard_000.tar: the file is missing, but .info.json lists it; prepare again with --force-overwrite"
    )
    assert second.startswith("shard_001.tar: ")
    done = run("lint", f"{url}/set")
    assert "shard_000.tar: shard_000.tar.idx is missing; write it with --tar-index-only" in done.output


def test_info_makes_an_index_where_there_is_none(bucket: Bucket, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "text", tmp_path / "text")
    shutil.rmtree(tmp_path / "text/.nv-meta/columnar")
    url = bucket.upload(tmp_path / "text", "text")
    shown = json.loads(run("info", url, "--json").output)
    assert (shown["path"], shown["samples"], shown["has_sqlite"]) == (url, 20, False)
    bucket.put("text/.nv-meta/index.sqlite", b"database")
    assert json.loads(run("info", url, "--json").output)["has_sqlite"] is True


def test_a_store_that_stays_away_is_no_finding(bucket: Bucket, url: str) -> None:
    use_storage(StorageSettings(attempts=1))
    for command in (["info"], ["lint"], ["which", "--step", "1", "--batch-size", "2"]):
        bucket.server.inject(Fault("status", times=None))
        done = run(command[0], f"{url}/text", *command[1:])
        assert isinstance(done.exception, ReadError)
        bucket.server.reset()


def test_a_web_server_will_do(folder: Path, tmp_path: Path) -> None:
    use_storage(StorageSettings(cache_dir=str(tmp_path)))
    with running_web_server(folder) as server:
        for command in (["info"], ["lint"]):
            here, there = run(*command, folder / "set"), run(*command, f"{server.url}/set")
            assert there.output.replace(server.url, "") == here.output.replace(str(folder), "")
