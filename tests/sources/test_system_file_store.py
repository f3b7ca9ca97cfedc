"""SystemFileStore: whole files below a folder, and nothing outside of it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from energon_grain import EPath, SourceInfo, SystemFileStore
from energon_grain.errors import ConfigError, DatasetNotFoundError, KeyNotFoundError, ReadError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    base = tmp_path / "files"
    (base / "sub").mkdir(parents=True)
    (base / "a.txt").write_bytes(b"a")
    (base / "sub" / "large.bin").write_bytes(bytes(range(256)) * 1000)
    (base / "empty").write_bytes(b"")
    (base / "link.txt").symlink_to("sub/large.bin")
    (base / "out.txt").symlink_to(tmp_path / "secret.txt")
    (base / "out").symlink_to(tmp_path)
    (base / "circle").symlink_to("circle")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    (tmp_path / "files2").mkdir()
    (tmp_path / "files2" / "near.txt").write_bytes(b"near")
    return base


def test_files_by_their_paths(folder: Path) -> None:
    store = SystemFileStore(folder)
    for key in ("a.txt", "sub/large.bin", "empty", "link.txt", "sub/../a.txt", "./a.txt"):
        assert key in store
        content = (folder / key).read_bytes()
        source = SourceInfo(dataset_path=EPath(folder), index=key, shard_name=str(folder), file_names=(key,))
        assert store[key] == (content, source)
    assert [value for value, _ in store.read(["a.txt", "empty", "a.txt"])] == [b"a", b"", b"a"]
    assert store.get_path() == str(folder)
    assert pickle.loads(pickle.dumps(store)) == store
    assert pickle.loads(pickle.dumps(store)).get("a.txt") == b"a"
    store.close()
    assert store.get("a.txt") == b"a"


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("../secret.txt", "leads out of this folder"),
        ("sub/../../secret.txt", "leads out of this folder"),
        ("../files2/near.txt", "leads out of this folder"),
        ("out.txt", "leads out of this folder"),
        ("out/secret.txt", "leads out of this folder"),
        ("/etc/hostname", "leads out of this folder"),
        ("b.txt", "there is no file 'b.txt'"),
        ("a.txt/b", "there is no file"),
        ("circle", "there is no file"),
        ("x" * 5000, "there is no file"),
        ("sub", "is not a file"),
        (".", "is not a file"),
        ("", "is no file name"),
        ("a\0.txt", "is no file name"),
    ],
)
def test_other_keys_are_key_errors(folder: Path, key: str, says: str) -> None:
    store = SystemFileStore(folder)
    assert key not in store
    with pytest.raises(KeyNotFoundError) as caught:
        store.get(key)
    assert str(caught.value).startswith(f"{folder}: ")
    assert says in str(caught.value)


def test_absolute_paths_are_refused_even_below_the_folder(folder: Path) -> None:
    with pytest.raises(KeyNotFoundError, match="leads out"):
        SystemFileStore(folder).get(str(folder / "a.txt"))


def test_the_folder_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(folder)
    assert SystemFileStore(tmp_path / "alias").get("sub/large.bin") == (folder / "sub" / "large.bin").read_bytes()


def test_few_files_stay_open(folder: Path) -> None:
    store = SystemFileStore(folder)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        (folder / f"{number}.txt").write_text(str(number))
        assert store.get(f"{number}.txt") == str(number).encode()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_a_read_error(folder: Path) -> None:
    (folder / "a.txt").chmod(0)
    with pytest.raises(ReadError, match=r"a\.txt: Permission denied"):
        SystemFileStore(folder).get("a.txt")


def test_there_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="no such folder"):
        SystemFileStore(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"s3://bucket/files: .*ObjectFileStore"):
        SystemFileStore("s3://bucket/files")
    assert SystemFileStore(f"file://{tmp_path}").get_path() == str(tmp_path)
