from __future__ import annotations

import os
from pathlib import Path

import pytest

from energon_grain.errors import ConfigError, DatasetNotFoundError, TarError
from energon_grain.prepare.listing import find_shards


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_finds_tars_in_all_folders_in_order(tmp_path: Path) -> None:
    touch(tmp_path, "b.tar", "a-b/x.tar", "a/y.tar", "a/x.tar", "a/x.tar.idx", "readme.txt", ".nv-meta/z.tar", "tar")
    # By folder, as paths compare: "a" before "a-b", although "-" comes before "/".
    assert find_shards(tmp_path) == ("a/x.tar", "a/y.tar", "a-b/x.tar", "b.tar")


def test_exclude(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.tar", "a/2.tar", "b/1.tar")
    assert find_shards(tmp_path, exclude="a/") == ("b/1.tar",)
    assert find_shards(tmp_path, exclude=r"2\.tar$") == ("a/1.tar", "b/1.tar")
    with pytest.raises(ConfigError, match="leaves out all 3"):
        find_shards(tmp_path, exclude="tar")
    with pytest.raises(ConfigError, match="regular expression"):
        find_shards(tmp_path, exclude="(")


def test_linked_folders(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/1.tar", "data/2.tar")
    os.symlink(tmp_path / "elsewhere", tmp_path / "data/linked")
    os.symlink(tmp_path / "data", tmp_path / "data/loop")
    os.symlink(tmp_path / "nowhere.tar", tmp_path / "data/dangling.tar")
    assert find_shards(tmp_path / "data") == ("2.tar", "linked/1.tar")


@pytest.mark.parametrize(
    ("suffix", "tool"),
    [(".tgz", "gzip"), (".tar.gz", "gzip"), (".tar.bz2", "bzip2"), (".txz", "xz"), (".tar.zst", "zstd")],
)
def test_compressed(tmp_path: Path, suffix: str, tool: str) -> None:
    touch(tmp_path, "a.tar", f"b{suffix}", f"c{suffix}")
    with pytest.raises(
        TarError, match=rf"b{suffix} \(and 1 more\): compressed.*{tool} -dc b{suffix} > b.tar"
    ) as caught:
        find_shards(tmp_path)
    exclude = str(caught.value).rpartition("--exclude '")[2].removesuffix("'.")
    assert find_shards(tmp_path, exclude=exclude) == ("a.tar",)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    touch(tmp_path, "a.tar", "caf\udce9.tar")
    with pytest.raises(ConfigError, match=r"^caf\\xe9\.tar: the name is not UTF-8.*--exclude"):
        find_shards(tmp_path)
    assert find_shards(tmp_path, exclude="^caf") == ("a.tar",)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"no \*\.tar"):
        find_shards(tmp_path)
    with pytest.raises(DatasetNotFoundError, match="not a folder"):
        find_shards(tmp_path / "missing")
