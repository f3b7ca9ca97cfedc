"""The kit for object stores on each of ours, and a store that another package adds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run
from hub_server import running_hub
from object_server import Bucket
from web_server import running_web_server

from energon_grain import (
    ConfigError,
    EPath,
    ReadError,
    StorageSettings,
    StoreSettings,
    WorkerConfig,
    get_train_dataset,
    use_storage,
)
from energon_grain.storage import store
from energon_grain.storage.settings import storage_settings
from energon_grain.stores.remote_files import page_cache
from energon_grain.stream.stream import Stream
from energon_grain.testing import check_object_store, make_text_dataset

CONTENTS = {"a.bin": bytes(range(256)) * 5, "sub/b.bin": b"bb"}
PLUGIN = """
import os
from datetime import UTC, datetime
from pathlib import Path

from energon_grain.storage.store import StoredObject

FAULTS = []  # what the next requests do wrong
READS = []


class Shelf:
    def __init__(self, settings):
        self.root = Path(os.environ["SHELF"])

    def _said(self, path):
        found = (self.root / path).stat()
        version = f"{found.st_mtime_ns}-{found.st_ino}"
        return StoredObject(path=path, size_bytes=found.st_size, version=version, modified=datetime.now(UTC))

    def head(self, path):
        if (self.root / path).is_dir():
            raise FileNotFoundError(path)
        return self._said(path)

    def list(self, folder):
        below = sorted(path for path in (self.root / folder).rglob("*") if path.is_file())
        return [self._said(str(path.relative_to(self.root))) for path in below]

    def read(self, path, start, stop):
        READS.append((path, start, stop))
        if FAULTS:
            raise FAULTS.pop()
        data = (self.root / path).read_bytes()[start:stop]
        return self.head(path), [data[at : at + 1000] for at in range(0, len(data), 1000)]

    def write(self, path, data):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).unlink(missing_ok=True)
        (self.root / path).write_bytes(data)
        return self._said(path)

    def delete(self, path):
        (self.root / path).unlink(missing_ok=True)


class Cut(Shelf):
    def read(self, path, start, stop):
        found, pieces = super().read(path, start, stop)
        return found, pieces[:-1]


class Forgetful(Shelf):
    def list(self, folder):
        return list(super().list(folder))[1:]


class Closed(Shelf):
    def write(self, path, data):
        raise PermissionError("this shelf is closed")
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a store that another package adds: `shelf://`; `cut://`, … break the contract."""
    package = tmp_path / "site" / "shelves-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: shelves\nVersion: 1\n")
    classes = "\n".join(f"{name.lower()} = shelves:{name}" for name in ("Shelf", "Cut", "Forgetful", "Closed"))
    (package / "entry_points.txt").write_text(f"[energon_grain.stores]\n{classes}\ns3 = shelves:Shelf\n")
    (tmp_path / "site" / "shelves.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    monkeypatch.setenv("SHELF", str(tmp_path / "shelf"))
    (tmp_path / "shelf").mkdir()
    for known in (store._entry_points, store.opener_of):
        known.cache_clear()
    quick = {"attempts": 3, "first_pause_s": 0.01, "longest_pause_s": 0.02}
    use_storage(StorageSettings(cache_dir=str(tmp_path / "cache"), **quick))  # type: ignore[arg-type]
    yield tmp_path / "shelf"
    use_storage(None)
    for known in (store._entry_points, store.opener_of):
        known.cache_clear()


def test_our_stores(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_object_store(f"{bucket.url}/checked")
    check_object_store("memory://checked/folder")
    for name, data in CONTENTS.items():
        path = tmp_path / "web" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with running_web_server(tmp_path / "web") as web:
        check_object_store(web.url, CONTENTS)
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.commit("team/checked", CONTENTS)
        check_object_store("hf://datasets/team/checked", CONTENTS)


def test_an_added_store_and_ones_that_break_the_contract(shelf: Path) -> None:
    check_object_store("shelf://checked/folder")
    assert not [path for path in shelf.rglob("*") if path.is_file()]
    with pytest.raises(AssertionError, match=r"forgetful://checked/folder: .*list"):
        check_object_store("forgetful://checked/folder")
    with pytest.raises(ReadError, match="this shelf is closed"):
        check_object_store("closed://checked/folder")
    with pytest.raises(ReadError, match=r"received \d+ bytes instead of 1280"):
        check_object_store("cut://checked/folder")
    with pytest.raises(
        ConfigError, match=r"nowhere://x: unknown scheme; object stores are .*dss://, closed://, cut://.*shelf://"
    ):
        EPath("nowhere://x").is_file()


def stream_of(url: str, workers: WorkerConfig | None = None) -> Stream:
    dataset = get_train_dataset(
        url,
        worker_config=workers or WorkerConfig(0, 1, 0),
        batch_size=4,
        shuffle_buffer_size=10,
        max_samples_per_sequence=4,
    )
    return Stream.of(dataset)


def keys(stream: Stream, steps: int) -> list[list[str]]:
    return [list(next(stream).__key__) for _ in range(steps)]


def test_a_dataset_in_an_added_store(shelf: Path, tmp_path: Path) -> None:
    make_text_dataset(shelf / "texts", n=60, shards=3)
    with stream_of(str(shelf / "texts")) as local:
        expected = keys(local, 6)
    import shelves  # type: ignore[import-not-found]

    shelves.FAULTS[:] = [ConnectionError("the shelf fell over"), TimeoutError("the shelf is busy")]
    with stream_of("shelf://texts") as far:
        assert keys(far, 3) == expected[:3]
        state: Any = far.cursor()
    assert not shelves.FAULTS  # both were met, and the requests repeated
    cache = page_cache(storage_settings())
    assert cache is not None
    assert any(path.is_file() for path in Path(cache.folder).rglob("*"))
    shelves.READS.clear()
    with stream_of("shelf://texts") as again:
        again.restore(state)
        assert keys(again, 3) == expected[3:]
    # Pages on disk hold the samples: only headers and ends of tars are looked at again.
    assert {stop for path, _, stop in shelves.READS if path.endswith(".tar")} <= {None, 512}
    info = json.loads(run("info", "shelf://texts", "--json").output)
    assert info["samples"] == 60
    assert "of 40 samples" in run("preview", "shelf://texts").output
    with stream_of("shelf://texts", WorkerConfig(0, 1, 1, worker_type="process")) as processes:
        assert keys(processes, 6) == expected


def test_settings_may_give_a_location_in_an_added_store(shelf: Path) -> None:
    (shelf / "x").mkdir()
    (shelf / "x" / "a.txt").write_text("a")
    use_storage(StorageSettings(stores={"msc://team": StoreSettings(location="shelf://x")}))
    assert EPath("msc://team/a.txt").read_text() == "a"
    assert [path.name for path in EPath("shelf://x").walk()] == ["a.txt"]
