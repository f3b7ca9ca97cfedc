"""Copies of small remote files: never half of one, never an old one, however many processes there are."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHONPATH
from object_server import Bucket, Fault
from patience import PATIENCE_S

from energon_grain import StorageSettings, StoreSettings
from energon_grain.errors import ConfigError, ReadError
from energon_grain.storage.mirror import Mirror
from energon_grain.storage.object_client import ObjectClient, ObjectRange
from energon_grain.storage.remote_files import RemoteFiles

MakeMirror = Callable[[str], Mirror]


@pytest.fixture
def mirror_of(tmp_path: Path) -> MakeMirror:
    quick = StorageSettings(attempts=2, first_pause_s=0.01, longest_pause_s=0.01, cache_dir=str(tmp_path / "objects"))
    return lambda url: Mirror(url, ObjectClient(quick))


def files(mirror: Mirror) -> dict[str, bytes]:
    """What is mirrored, without the mirror's own notes."""
    found = (path for path in mirror.folder.rglob("*") if path.is_file())
    named = {path.relative_to(mirror.folder).as_posix(): path.read_bytes() for path in found}
    return {name: data for name, data in named.items() if not name.startswith(".mirror.")}


def test_a_second_look_transfers_only_what_changed(bucket: Bucket, mirror_of: MakeMirror) -> None:
    for name in ("a", "sub/b", "gone"):
        bucket.put(f"set/{name}", name.encode() * 1000)
    mirror = mirror_of(f"{bucket.url}/set/")
    names = ["a", "sub/b", "gone", "never"]
    assert mirror.refresh(names) == {"a": True, "sub/b": True, "gone": True}
    written = (mirror.folder / ".mirror.json").stat().st_ino
    assert mirror.refresh(names) == {"a": False, "sub/b": False, "gone": False}
    assert (mirror.folder / ".mirror.json").stat().st_ino == written  # nothing is, so that a full disk does not matter
    bucket.put("set/sub/b", b"new")
    bucket.delete("set/gone")
    bucket.server.reset()
    assert mirror_of(f"{bucket.url}/set").refresh(names) == {"a": False, "sub/b": True}
    assert files(mirror) == {"a": b"a" * 1000, "sub/b": b"new"}
    statuses = {request.path.partition("?")[0]: request.status for request in bucket.server.requests("set/")}
    assert {path.rpartition("set/")[2]: status for path, status in statuses.items()} == {
        "a": 304,
        "sub/b": 200,
        "gone": 404,
        "never": 404,
    }


def test_a_copy_that_was_removed_is_made_again(bucket: Bucket, mirror_of: MakeMirror) -> None:
    bucket.put("set/a", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    mirror.refresh(["a"])
    (mirror.folder / "a").unlink()
    assert mirror.refresh(["a"]) == {"a": True}
    (mirror.folder / ".mirror.json").write_text("{broken")
    assert mirror.refresh(["a"]) == {"a": False}  # it is read again, and is the same
    assert files(mirror) == {"a": b"text"}


@pytest.mark.parametrize("damage", [b"\0" * 4, b"tExt", b""])
def test_a_copy_that_was_damaged_is_made_again(bucket: Bucket, mirror_of: MakeMirror, damage: bytes) -> None:
    bucket.put("set/a", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    mirror.refresh(["a"])
    (mirror.folder / "a").write_bytes(damage)
    assert mirror.refresh(["a"]) == {"a": True}
    assert files(mirror) == {"a": b"text"}
    bucket.server.reset()
    mirror.refresh(["a"])
    assert [request.status for request in bucket.server.requests("set/a")] == [304]


def test_nothing_is_written_through_a_link(bucket: Bucket, mirror_of: MakeMirror, tmp_path: Path) -> None:
    """Others may have written to a shared cache folder: `.mirror.lock` -> a file of the user's."""
    bucket.put("set/a", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    own = tmp_path / "own"
    own.write_text("precious")
    mirror.folder.mkdir(parents=True)
    (mirror.folder / ".mirror.lock").symlink_to(own)
    with pytest.raises(ConfigError, match="cannot be mirrored in"), mirror.locked():
        pass
    (mirror.folder / ".mirror.lock").unlink()
    for name in (".mirror.json", "a"):
        (mirror.folder / name).symlink_to(own)
    with mirror.locked():
        assert mirror.refresh(["a"]) == {"a": True}
    assert own.read_text() == "precious"
    (mirror.folder / ".mirror.json").unlink()
    (mirror.folder / ".mirror.json").symlink_to("/dev/zero")
    with mirror.locked():
        assert mirror.refresh(["a"]) == {"a": False}
    assert files(mirror) == {"a": b"text"}


def test_an_object_without_bytes_is_a_file_without_bytes(bucket: Bucket, mirror_of: MakeMirror) -> None:
    bucket.put("set/empty", b"")
    mirror = mirror_of(f"{bucket.url}/set")
    assert mirror.refresh(["empty"]) == {"empty": True}
    assert files(mirror) == {"empty": b""}


def test_what_was_copied_before_a_failure_is_not_copied_again(bucket: Bucket, mirror_of: MakeMirror) -> None:
    for name in "ab":
        bucket.put(f"set/{name}", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    mirror.refresh(["a"])
    bucket.server.inject(Fault("status", times=None, match="set/b"))
    with pytest.raises(ReadError, match=rf"reading {bucket.url}/set/b failed"):
        mirror.refresh(["a", "b"])
    assert files(mirror) == {"a": b"text"}
    bucket.server.reset()
    assert mirror.refresh(["a", "b"]) == {"a": False, "b": True}


def test_two_places_never_share_a_folder(mirror_of: MakeMirror) -> None:
    steps = ["a", "a/b", "a/b//b", "./a/b", "../a/b", "a%2Fb", "%/a/b", "a b", ".", "..", "ä", "A", "...", "a?b", "a:b"]
    urls = [f"{scheme}://{step}" for scheme in ("s3", "gs") for step in [*steps, "\u4e00" * 300, "\u4e00" * 299 + "x"]]
    mirrors = [mirror_of(url) for url in urls]
    assert len({os.path.normpath(mirror.folder) for mirror in mirrors}) == len(urls)
    above = mirror_of("s3://bucket").folder.parent
    assert all(Path(os.path.normpath(mirror.folder)).parent == above for mirror in mirrors)
    for mirror in mirrors:
        with mirror.locked():  # its folder can be made
            pass


def test_one_name_for_two_places_has_two_folders_and_two_names_for_one_place_have_one(tmp_path: Path) -> None:
    def folder(url: str, **stores: str) -> Path:
        named = {f"{name}://set": StoreSettings(location=location) for name, location in stores.items()}
        return Mirror(url, ObjectClient(StorageSettings(cache_dir=str(tmp_path), stores=named))).folder

    assert folder("data://set/a", data="s3://one/set") != folder("data://set/a", data="s3://two/set")
    assert folder("data://set/a", data="http://one/set") != folder("data://set/a", data="http://two/set")
    assert folder("data://set/a", data="s3://one/set") == folder("s3://one/set/a")
    assert folder("data://set/a b", data="http://one/set") == folder("http://one/set/a%20b")


def test_columns_are_on_the_disk_before_they_appear(
    bucket: Bucket, mirror_of: MakeMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(file: Any) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}"))
        sync(file)

    monkeypatch.setattr(os, "fsync", noted)
    for name in "ab":
        bucket.put(f"set/columns/{name}", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    mirror.copy_folder("columns", {"a": 4, "b": 4})
    temporary = str(mirror.folder / ".columns.tmp")
    assert synced == [f"{temporary}/a", f"{temporary}/b", temporary, str(mirror.folder)]


def test_a_folder_of_known_sizes_is_copied_whole(bucket: Bucket, mirror_of: MakeMirror) -> None:
    contents = {"large": os.urandom(20 << 20), "small": b"x", "empty": b""}
    for name, content in contents.items():
        bucket.put(f"set/columns/{name}", content)
    mirror = mirror_of(f"{bucket.url}/set")
    sizes = {name: len(content) for name, content in contents.items()}
    mirror.copy_folder("columns", sizes)
    assert files(mirror) == {f"columns/{name}": content for name, content in contents.items()}
    bucket.server.reset()
    mirror.copy_folder("columns", sizes)
    assert bucket.server.requests() == []
    (mirror.folder / "columns/small").unlink()
    mirror.copy_folder("columns", sizes)
    assert files(mirror).keys() == {f"columns/{name}" for name in contents}


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"a": 4, "b": 1}, "/columns/b: there is no such object, though the index names it"),
        ({"a": 9}, "ends before"),
        ({"a": 3}, r"/columns/a: has 4 bytes, and the index says 3"),
    ],
)
def test_a_folder_that_is_not_as_said_does_not_appear(
    bucket: Bucket, mirror_of: MakeMirror, sizes: dict[str, int], said: str
) -> None:
    bucket.put("set/columns/a", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    with pytest.raises(ReadError, match=said):
        mirror.copy_folder("columns", sizes)
    assert files(mirror) == {}


def test_a_disk_that_becomes_full_in_the_middle_of_a_write_is_an_error(
    bucket: Bucket, mirror_of: MakeMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel then writes what fits, and says how much that was."""
    bucket.put("set/columns/a", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    monkeypatch.setattr(os, "pwritev", lambda file, pieces, start: os.pwrite(file, b"".join(pieces)[:2], start))
    with pytest.raises(ConfigError, match=r"cannot be mirrored.*No space left on device"), mirror.locked():
        mirror.copy_folder("columns", {"a": 4})
    assert files(mirror) == {}


def test_what_comes_after_a_failure_is_written_nowhere_else(
    bucket: Bucket, mirror_of: MakeMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late answer must not go to a file that was opened meanwhile, and has the number of one that was closed."""
    late, written = threading.Event(), threading.Event()
    read = ObjectClient.read

    def slow(client: ObjectClient, wanted: ObjectRange) -> Any:
        if wanted.url.endswith("/b"):
            late.wait(PATIENCE_S)
        return read(client, wanted)

    def noted(*given: Any) -> int:
        try:
            return pwrite(*given)
        finally:
            written.set()

    pwrite = os.pwrite
    monkeypatch.setattr(ObjectClient, "read", slow)
    monkeypatch.setattr(os, "pwrite", noted)
    bucket.put("set/columns/b", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    with pytest.raises(ReadError, match="columns/a: there is no such object"):
        mirror.copy_folder("columns", {"a": 4, "b": 4})
    others = [tmp_path / f"other{number}" for number in range(20)]
    opened = [path.open("w+b") for path in others]
    late.set()
    written.wait(2)  # or it gives up before
    assert all(os.fstat(file.fileno()).st_size == 0 for file in opened)
    for file in opened:
        file.close()


MIRRORING = """
import hashlib, sys
from energon_grain.storage.mirror import Mirror
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.settings import storage_settings

mirror = Mirror(sys.argv[1], shared_client(storage_settings()))
sizes = {"a": int(sys.argv[2]), "b": int(sys.argv[2])}
print("begins", flush=True)
while True:
    with mirror.locked():
        mirror.refresh(["small"])
        mirror.copy_folder("columns", sizes)
    digests = [hashlib.sha256((mirror.folder / "columns" / name).read_bytes()).hexdigest() for name in sizes]
    print((mirror.folder / "small").read_text(), *digests, flush=True)
    if sys.argv[3] == "once":
        break
    import shutil
    with mirror.locked():
        shutil.rmtree(mirror.folder / "columns")
"""


def started(url: str, size: int, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", MIRRORING, url, str(size), how],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        start_new_session=True,
    )


@pytest.fixture
def large_folder(bucket: Bucket) -> tuple[str, int, str]:
    """A folder, the size of its two columns, and what a process that mirrors it prints."""
    columns = {name: os.urandom(3 << 20) for name in "ab"}
    for name, content in columns.items():
        bucket.put(f"set/columns/{name}", content)
    bucket.put("set/small", b"text")
    bucket.server.reset()
    digests = " ".join(hashlib.sha256(content).hexdigest() for content in columns.values())
    return f"{bucket.url}/set", 3 << 20, f"text {digests}\n"


def test_processes_at_once_copy_a_folder_once(bucket: Bucket, large_folder: tuple[str, int, str]) -> None:
    url, size, expected = large_folder
    processes = [started(url, size, "once") for _ in range(3)]
    for process in processes:
        assert process.communicate(timeout=PATIENCE_S)[0] == f"begins\n{expected}"
    assert len(bucket.server.requests("columns/a")) == len(bucket.server.requests("columns/b")) == 1


def test_a_killed_process_leaves_nothing_that_disturbs(large_folder: tuple[str, int, str]) -> None:
    url, size, expected = large_folder
    for turn in range(4):
        process = started(url, size, "again and again")
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            time.sleep(0.1 * turn)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        with started(url, size, "once") as last:
            assert last.communicate(timeout=PATIENCE_S)[0] == f"begins\n{expected}"


def test_what_could_not_be_written_is_copied_again(bucket: Bucket, mirror_of: MakeMirror) -> None:
    bucket.put("set/sub/a", b"old")
    mirror = mirror_of(f"{bucket.url}/set")
    mirror.refresh(["sub/a"])
    bucket.put("set/sub/a", b"new")
    (mirror.folder / "sub").rename(mirror.folder / "away")
    (mirror.folder / "sub").symlink_to("away/none")  # where no file can be written
    said = re.escape(f"{mirror.url} cannot be mirrored in {mirror.folder}: ")
    with pytest.raises(ConfigError, match=said), mirror.locked():
        mirror.refresh(["sub/a"])
    (mirror.folder / "sub").unlink()
    (mirror.folder / "away").rename(mirror.folder / "sub")
    assert mirror.refresh(["sub/a"]) == {"sub/a": True}
    assert files(mirror) == {"sub/a": b"new"}


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = StorageSettings(cache_dir=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cache_dir"), Mirror("s3://b/a", ObjectClient(settings)).locked():
        pass
    with pytest.raises(ConfigError, match="cache_dir"):
        RemoteFiles(settings)
