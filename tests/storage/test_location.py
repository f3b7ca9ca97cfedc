"""Locations: what a URL is, and how names and folders are taken from it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path, PurePosixPath

import pytest

from energon_grain.errors import ConfigError
from energon_grain.storage.location import (
    METADATASET_ENDINGS,
    absolute,
    folder_of,
    is_file_of,
    is_url,
    join,
    located,
    name_of,
    no_such_path,
    scheme_of,
)


@pytest.mark.parametrize(
    ("path", "scheme"),
    [
        ("s3://bucket", "s3"),
        ("GS://bucket/a", "gs"),
        ("https://host:1/a?b", "https"),
        ("file:///a", "file"),
        ("/data/s3://x", None),
        ("s3:/bucket", None),
        ("data/set", None),
        ("", None),
        ("C:\\data", None),
        ("://a", None),
    ],
)
def test_a_url_is_told_by_its_protocol(path: str, scheme: str | None) -> None:
    assert scheme_of(path) == scheme
    assert is_url(path) == (scheme is not None)


@pytest.mark.parametrize(
    ("written", "folder", "found"),
    [
        ("a", "/data", "/data/a"),
        ("../a", "/data/sets", "/data/a"),
        ("./a//b/.", "/data", "/data/a/b"),
        ("/x/../a", "/data", "/a"),
        ("a", "s3://bucket", "s3://bucket/a"),
        ("../a", "s3://bucket/sets", "s3://bucket/a"),
        (".", "s3://bucket/sets", "s3://bucket/sets"),
        ("a b/ä", "gs://bucket", "gs://bucket/a b/ä"),
        ("/data/a", "s3://bucket/sets", "/data/a"),
        ("s3://other/a/", "/data", "s3://other/a"),
        ("gs://other/a", "s3://bucket", "gs://other/a"),
        ("file:///data/a", "s3://bucket", "/data/a"),
        ("file:///data/../a", "/x", "/a"),
        ("msc://default/data/a", "s3://bucket", "/data/a"),
        ("a", "memory://", "memory://a"),
    ],
)
def test_relative_paths_resolve_where_they_are_written(written: str, folder: str, found: str) -> None:
    assert absolute(written, folder) == found


def test_what_programs_give_is_text_or_a_path(tmp_path: Path) -> None:
    assert located("s3://bucket/a//") == "s3://bucket/a"
    assert located("memory://") == "memory://"
    assert located("a/") == "a/"
    assert located(PurePosixPath("/a/b")) == "/a/b"
    assert located(f"file://{tmp_path}/x/") == f"{tmp_path}/x"
    assert located("file://a") == os.path.abspath("a")
    assert pickle.loads(pickle.dumps(located("FILE:///a"))) == "/a"


@pytest.mark.parametrize(
    ("location", "name", "folder"),
    [
        ("/data/a.tar", "a.tar", "/data"),
        ("/data/a/", "a", "/data/a"),
        ("s3://bucket/a/b.tar", "b.tar", "s3://bucket/a"),
        ("s3://bucket/a/", "a", "s3://bucket"),
    ],
)
def test_names_and_folders(location: str, name: str, folder: str) -> None:
    assert (name_of(location), folder_of(location)) == (name, folder)


@pytest.mark.parametrize("folder", ["/data", "/data/", "s3://bucket", "s3://bucket/", "memory://"])
def test_what_is_joined_comes_apart_again(folder: str) -> None:
    joined = join(folder, "parts/a.tar")
    assert joined.endswith("parts/a.tar")
    assert name_of(joined) == "a.tar"
    assert join(folder_of(folder_of(joined)), "parts/a.tar") == joined or folder == "memory://"


def test_names_in_urls_of_the_web_are_encoded() -> None:
    assert join("https://h/a%20b/", "c d/e?.tar") == "https://h/a%20b/c%20d/e%3F.tar"
    assert join("s3://b/a b", "c d?.tar") == "s3://b/a b/c d?.tar"


def test_a_relative_path_stays_in_its_bucket() -> None:
    assert absolute("../../b", "s3://bucket/a/c") == "s3://bucket/b"
    assert absolute("../..", "s3://bucket/a/c") == "s3://bucket"
    assert absolute("a", "s3://bucket") == "s3://bucket/a"
    with pytest.raises(ConfigError, match=r"^s3://bucket/\.\./b: `..` leads out of the bucket"):
        absolute("../b", "s3://bucket")
    with pytest.raises(ConfigError, match=r"^https://host/a/../../b: `..` leads out"):
        absolute("../../b", "https://host/a")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/data/a", None),
        ("c:/data", None),
        ("s3:/bucket/a", "s3://bucket/a"),
        (Path("s3://bucket/a"), "s3://bucket/a"),
        ("/home/me/gs:/bucket", "gs://bucket"),
    ],
)
def test_paths_that_were_meant_as_urls(path: str | Path, meant: str | None) -> None:
    advice = "" if meant is None else f". Did you mean {meant}? (pathlib takes slashes away: give text)"
    assert no_such_path(path) == f"{path}: no such file or folder{advice}"


@pytest.mark.parametrize("path", ["data/*", "data/lines-{00..07}.jsonl"])
def test_a_pattern_is_told_what_patterns_are_expanded(path: str) -> None:
    assert no_such_path(path).endswith("Patterns end in .tar, .parquet or .arrow; else give the folder")


def test_files_by_their_ending(tmp_path: Path) -> None:
    assert is_file_of("missing.yaml", METADATASET_ENDINGS)
    assert is_file_of("s3://bucket/mix.yml", METADATASET_ENDINGS)
    assert is_file_of("lines.jsonl", ".jsonl")
    assert not is_file_of("lines.jsonl", METADATASET_ENDINGS)
    folder = tmp_path / "shards.yaml"
    folder.mkdir()
    assert not is_file_of(str(folder), METADATASET_ENDINGS), "a folder that is called like a file"
