"""Datasets in stores as folders of this machine; and files that are put in place together, or not at all."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from arrays import DRIVERS, numbered, write_array, write_group
from conftest import RunScript
from object_server import Bucket
from web_server import running_web_server

from energon_grain import StorageSettings, StoreSettings, Stream, WorkerConfig, get_train_dataset, use_storage
from energon_grain.errors import ConfigError, DatasetNotFoundError, IndexFileError, ReadError, StaleIndexError
from energon_grain.formats import data_folder
from energon_grain.formats.commit_journal import (
    JOURNAL,
    PREPARE_FOLDER,
    commit_staged,
    finish_interrupted_prepare,
    new_staging_folder,
)
from energon_grain.formats.data_folder import look_again, mirror_dataset, naming, open_folder
from energon_grain.formats.local_files import LocalFiles
from energon_grain.formats.nv_meta import read_info
from energon_grain.kinds.arrays.folder import arrays_of, find_array, is_array_folder
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.sources.kinds import kind_at
from energon_grain.storage.settings import storage_settings
from energon_grain.stores.mirror import Mirror
from energon_grain.stores.object_client import shared_client
from energon_grain.stores.remote_files import RemoteFiles
from energon_grain.testing import make_text_dataset

META = ".nv-meta"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_text_dataset(tmp_path / "set", n=30, shards=2)
    (tmp_path / "set" / META / "index.sqlite").write_bytes(b"large")
    return tmp_path / "set"


@pytest.fixture
def url(bucket: Bucket, root: Path) -> str:
    return bucket.upload(root, "a b/set")


def mirrored(folder: Path) -> set[str]:
    """Files of a mirror, below `.nv-meta`."""
    return {path.relative_to(folder / META).as_posix() for path in (folder / META).rglob("*") if path.is_file()}


def forget() -> None:
    """What another process would not know."""
    data_folder._up_to_date.clear()


def test_a_folder_of_this_machine_is_used_as_it_is(root: Path) -> None:
    for path in (root, str(root), f"file://{root}"):
        folder = open_folder(path)
        assert (folder.location, folder.local, folder.is_remote) == (str(root), root, False)
        assert isinstance(folder.store, LocalFiles)
        assert open_folder(folder) is folder
        assert folder.shard("a/b.tar") == f"{root}/a/b.tar"


def test_of_a_dataset_in_a_store_small_files_and_the_index_are_copied(url: str, root: Path) -> None:
    folder = open_folder(f"{url}/")
    assert (folder.location, folder.is_remote) == (url, True)
    assert isinstance(folder.store, RemoteFiles)
    assert folder.shard("a/b.tar") == f"{url}/a/b.tar"
    assert mirrored(folder.local) == {
        name for name in mirrored(root) if not name.endswith((".sqlite", "complete", "digests.json"))
    }
    assert read_info(folder.local) == read_info(root)
    assert open_columnar(folder.local).content_id == open_columnar(root).content_id


def test_it_travels_to_other_processes_without_a_request(url: str, bucket: Bucket) -> None:
    folder = open_folder(url)
    forget()
    bucket.server.reset()
    copy = pickle.loads(pickle.dumps(folder))
    assert copy == folder
    assert isinstance(copy.store, RemoteFiles)
    assert bucket.server.requests() == []


def test_it_is_looked_at_again_by_another_process_and_after_a_while(
    url: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(url)
    bucket.server.reset()
    open_folder(url)
    assert bucket.server.requests() == []
    look_again(folder)
    open_folder(url)
    statuses = [request.status for request in bucket.server.requests(META)]
    assert statuses.count(304) == len(statuses) - 1  # all but the list
    monkeypatch.setattr(data_folder, "_FRESH_SECONDS", 0)
    bucket.server.reset()
    open_folder(url)
    assert bucket.server.requests(META)


def test_files_that_are_gone_go(url: str, bucket: Bucket) -> None:
    bucket.put(f"a b/set/{META}/other.yaml", b"x: 1")
    folder = open_folder(url)
    assert "other.yaml" in mirrored(folder.local)
    bucket.delete(f"a b/set/{META}/other.yaml")
    forget()
    open_folder(url)
    assert "other.yaml" not in mirrored(folder.local)
    for name in (".info.json", "index.uuid"):
        bucket.delete(f"a b/set/{META}/{name}")
    forget()
    assert kind_at(url).name == "invalid"


def test_a_new_generation_of_the_index_takes_the_place_of_the_old_one(url: str, bucket: Bucket, root: Path) -> None:
    folder = open_folder(url)
    old = open_columnar(folder.local)
    expected = old.key(29)
    shutil.rmtree(root)
    make_text_dataset(root, n=44, shards=2, seed=1)
    bucket.upload(root, "a b/set")
    forget()
    assert len(open_columnar(open_folder(url).local)) == 44
    assert (len(old), old.key(29)) == (30, expected)  # whoever has it open goes on to read it


def test_a_copy_that_ended_halfway_is_finished(url: str, bucket: Bucket, root: Path) -> None:
    folder = open_folder(url)
    (generation,) = (path for path in (folder.local / META / "columnar").iterdir() if path.is_dir())
    shutil.rmtree(generation)
    forget()
    assert open_columnar(open_folder(url).local).content_id == open_columnar(root).content_id


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a b/set", "webdataset"),
        ("a b", "invalid"),
        ("nothing", "invalid"),
        ("x.jsonl", "jsonl"),
        ("x.yaml", "metadataset"),
    ],
)
def test_what_lies_at_a_url(url: str, bucket: Bucket, path: str, kind: str) -> None:
    assert kind_at(f"{bucket.url}/{path}").name == kind


def test_errors_name_the_url(url: str, bucket: Bucket) -> None:
    bucket.put(f"a b/set/{META}/.info.json", b"{")
    folder = open_folder(url)
    with pytest.raises(IndexFileError, match=rf"^{url}/{META}/.info.json") as caught, naming(folder):
        read_info(folder.local)
    assert str(folder.local) not in str(caught.value)
    with pytest.raises(ReadError, match="elsewhere"), naming(folder):
        raise ReadError("elsewhere")
    with pytest.raises(ConfigError, match="ftp://host/x: unknown scheme; object stores are"):
        open_folder("ftp://host/x")


def keys(path: object) -> list[object]:
    dataset = get_train_dataset(
        str(path),
        worker_config=WorkerConfig(0, 1, 0),
        batch_size=5,
        shuffle_buffer_size=10,
        max_samples_per_sequence=5,
    )
    with Stream.of(dataset) as stream:
        return [(batch.__key__, batch.text) for batch in (next(stream) for _ in range(12))]


@pytest.mark.parametrize("entity_tags", [True, False])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_plain_web_server_will_do(tmp_path: Path, root: Path, has_index: bool, entity_tags: bool) -> None:
    use_storage(StorageSettings(cache_dir=str(tmp_path / "cache")))
    expected = keys(root)
    with running_web_server(tmp_path) as server:
        server.entity_tags = entity_tags
        if not has_index:
            shutil.rmtree(root / META / "columnar")
        assert keys(f"{server.url}/set") == expected
        assert kind_at(f"{server.url}/set").name == "webdataset"
        assert kind_at(f"{server.url}/nothing").name == "invalid"
        forget()
        assert keys(f"{server.url}/set") == expected
        use_storage(
            StorageSettings(
                cache_dir=str(tmp_path / "cache"),
                stores={
                    "gs://set": StoreSettings(anonymous=True, endpoint=server.url),
                    "msc://web": StoreSettings(location=server.url),
                },
            )
        )
        assert keys("gs://set") == keys("msc://web/set") == expected


def test_a_file_that_is_replaced_on_a_server_without_versions_is_read_anew(tmp_path: Path, root: Path) -> None:
    use_storage(StorageSettings(cache_dir=str(tmp_path / "cache")))
    with running_web_server(tmp_path) as server:
        server.entity_tags = False
        keys(f"{server.url}/set")
        for shard in root.glob("*.tar"):  # of the same size: nothing but its bytes tells
            shard.write_bytes(shard.read_bytes().replace(b"the", b"THE"))
        assert keys(f"{server.url}/set") == keys(root)


def test_a_web_server_that_sends_only_whole_files_is_told_from_others(tmp_path: Path, root: Path) -> None:
    use_storage(StorageSettings(cache_dir=str(tmp_path / "cache")))
    with running_web_server(tmp_path) as server:
        server.ranges = False
        said = r"set/shard_.*not retried\); this web server does not support range requests"
        with pytest.raises(ReadError, match=said):
            keys(f"{server.url}/set")


def test_what_lies_in_the_memory_of_another_process_is_not_mistaken_for_ones_own(
    tmp_path: Path, run_script: RunScript
) -> None:
    script = """
import sys
from pathlib import Path
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import read_info
from energon_grain.stores.mirror import Mirror
from energon_grain.stores.object_client import shared_client
from energon_grain.storage.settings import storage_settings
from energon_grain.testing import make_text_dataset

root = make_text_dataset(Path(sys.argv[1]), n=int(sys.argv[2]), shards=1, seed=int(sys.argv[2]))
client = shared_client(storage_settings())
for path in sorted(root.rglob("*")):
    if path.is_file():
        client.write(f"memory://set/{path.relative_to(root).as_posix()}", path.read_bytes())
folder = open_folder("memory://set")
assert read_info(folder.local) == read_info(root), read_info(folder.local)
"""
    for count in (10, 20):
        done = run_script(script, tmp_path / f"{count}", count, env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
        assert done.returncode == 0, done.stderr


def test_mirrors_are_the_same_for_all_who_ask(url: str) -> None:
    assert mirror_dataset(url).folder == open_folder(url).local == mirror_dataset(f"{url}/").folder
    assert str(open_folder(url).local).startswith(storage_settings().cache_folder)
    assert shared_client(storage_settings()) is shared_client(storage_settings())


def test_an_index_made_here_stays_where_a_web_server_has_none(root: Path) -> None:
    shutil.rmtree(root / META / "columnar")
    with running_web_server(root) as server:
        made = open_columnar(server.url)
        header = open_folder(server.url).local / META / "columnar" / "header.json"
        before = header.read_bytes()
        forget()
        server.asked.clear()
        assert open_columnar(server.url).content_id == made.content_id
        assert header.read_bytes() == before
        assert not [path for path in server.asked if path.endswith(".tar")]


def test_a_mirror_of_another_server_is_not_up_to_date(url: str) -> None:
    one = storage_settings()
    assert kind_at(url).name == "webdataset"
    use_storage(
        msgspec.structs.replace(one, stores={"s3://": StoreSettings(endpoint="http://127.0.0.1:1")}, attempts=1)
    )
    with pytest.raises(ReadError, match="not connect"):
        kind_at(url)


def test_a_dataset_that_is_prepared_anew_meanwhile_is_looked_at_again(
    url: str, bucket: Bucket, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = next((root / META / "columnar").glob("g*")).name
    for path in (root / META / "columnar" / generation).iterdir():
        bucket.delete(f"a b/set/{META}/columnar/{generation}/{path.name}")
    with pytest.raises(ReadError, match=rf"{generation}/\w+\.npy: no such object, but the index lists it"):
        open_folder(url)

    list_files, calls = data_folder._small_files, []

    def prepared_meanwhile(mirror: Mirror) -> list[str]:
        calls.append(mirror.url)
        if len(calls) == 2:
            shutil.rmtree(root / META / "columnar")
            open_columnar(root)
            bucket.upload(root, "a b/set")
        return list_files(mirror)

    monkeypatch.setattr(data_folder, "_small_files", prepared_meanwhile)
    assert len(open_columnar(url)) == 30
    assert len(calls) == 2


def test_stores_at_two_end_points_have_two_mirrors(url: str, bucket: Bucket) -> None:
    here = open_folder(url).local
    use_storage(StorageSettings(stores={bucket.url: StoreSettings(endpoint=f"http://localhost:{bucket.server.port}")}))
    there = open_folder(url).local
    assert here != there
    assert read_info(here) == read_info(there)


@pytest.mark.parametrize("driver", DRIVERS)
def test_arrays_of_a_group(tmp_path: Path, driver: str) -> None:
    path = write_group(tmp_path / "g", driver, b=numbered(9, 2), a=numbered(9), __c=numbered(3))
    (path / "plain folder").mkdir()
    (path / ".hidden").mkdir()
    write_group(path / "nested", driver, d=numbered(4))
    found = arrays_of(str(path))
    assert [(array.name, array.location, array.driver) for array in found] == [
        ("a", str(path / "a"), driver),
        ("b", str(path / "b"), driver),
    ]
    assert kind_at(str(path)).name == "array"


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_array_is_a_group_of_one(tmp_path: Path, driver: str) -> None:
    path = write_array(tmp_path / "some.embeddings.zarr", numbered(9, 2), driver)
    (found,) = arrays_of(str(path))
    assert (found.name, found.location, found.driver) == ("some.embeddings", str(path), driver)
    assert kind_at(str(path)).name == "array"


def test_what_has_no_arrays(tmp_path: Path) -> None:
    path = write_group(tmp_path / "g")
    with pytest.raises(DatasetNotFoundError, match=r"is a group without an array$"):
        arrays_of(str(path))
    write_group(path / "train", a=numbered(3))
    write_group(path / "val", a=numbered(3))
    with pytest.raises(DatasetNotFoundError, match="name one of them: train, val"):
        arrays_of(str(path))
    with pytest.raises(DatasetNotFoundError, match="array or group, found neither"):
        arrays_of(str(tmp_path))


def test_other_folders(tmp_path: Path) -> None:
    assert not is_array_folder(str(tmp_path))
    assert not is_array_folder(str(tmp_path / "nothing"))
    (tmp_path / "attributes.json").write_text('{"colour": "red"}')
    assert kind_at(str(tmp_path)).name == "invalid"
    (tmp_path / "zarr.json").write_text("damaged")
    assert kind_at(str(tmp_path)).name == "array"  # so that reading it says what is wrong


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_attributes_that_are_no_json(tmp_path: Path, number: str) -> None:
    """zarr-python writes them as Python's `json` does."""
    (tmp_path / "zarr.json").write_text(f'{{"node_type": "group", "attributes": {{"missing": {number}}}}}')
    assert find_array(str(tmp_path)) is True


NEW = {
    "shards/a.tar.idx": "new a",
    "b.tar.idx": "new b",
    ".nv-meta/columnar/g2/keys.npy": "new keys",
    ".nv-meta/split.yaml": "new split",
    ".nv-meta/.info.json": "new info",
    ".nv-meta/columnar/header.json": "new header",
}
PUT = (
    "shards/a.tar.idx",
    "b.tar.idx",
    ".nv-meta/columnar/g2",
    ".nv-meta/split.yaml",
    ".nv-meta/.info.json",
    ".nv-meta/columnar/header.json",
)
REMOVE = (".nv-meta/index.sqlite", ".nv-meta/columnar/g1", ".nv-meta/never-there")
OLD = {
    "shards/a.tar": "data",
    "b.tar": "data",
    "shards/a.tar.idx": "old a",
    ".nv-meta/columnar/g1/keys.npy": "old keys",
    ".nv-meta/columnar/header.json": "old header",
    ".nv-meta/index.sqlite": "old sqlite",
    ".nv-meta/.info.json": "old info",
}
AFTER = {"shards/a.tar": "data", "b.tar": "data", **NEW}


def fill(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def contents(root: Path) -> dict[str, str]:
    files = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}
    return {name: text for name, text in files.items() if not name.startswith(PREPARE_FOLDER)}


def staged(root: Path) -> Path:
    fill(root, OLD)
    staging = new_staging_folder(root)
    fill(staging, NEW)
    return staging


def write_journal(root: Path, staging: Path, **changes: object) -> None:
    journal = {"version": 1, "staged": staging.name, "put": PUT, "remove": REMOVE, **changes}
    (root / JOURNAL).write_text(json.dumps(journal))


def test_commit_moves_everything(tmp_path: Path) -> None:
    commit_staged(tmp_path, staged(tmp_path), put=PUT, remove=REMOVE)
    assert contents(tmp_path) == AFTER
    assert not list((tmp_path / PREPARE_FOLDER).iterdir())
    assert not finish_interrupted_prepare(tmp_path)


def test_before_the_journal_the_old_state_holds(tmp_path: Path) -> None:
    staged(tmp_path)
    assert not finish_interrupted_prepare(tmp_path)
    assert contents(tmp_path) == OLD


def test_nothing_to_finish(tmp_path: Path) -> None:
    assert not finish_interrupted_prepare(tmp_path)
    assert not finish_interrupted_prepare(tmp_path / "missing")
    (tmp_path / "file").touch()
    assert not finish_interrupted_prepare(tmp_path / "file")


@pytest.mark.parametrize("done", range(len(PUT) + len(REMOVE) + 1))
def test_every_interrupted_state_is_finished(tmp_path: Path, done: int) -> None:
    """A process was killed after `done` of the steps: the next one gets to the same place."""
    staging = staged(tmp_path)
    write_journal(tmp_path, staging)
    for path in PUT[:done]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / path, tmp_path / path)
    for path in REMOVE[: max(0, done - len(PUT))]:
        shutil.rmtree(tmp_path / path) if (tmp_path / path).is_dir() else (tmp_path / path).unlink(missing_ok=True)
    assert finish_interrupted_prepare(tmp_path)
    assert contents(tmp_path) == AFTER
    assert not finish_interrupted_prepare(tmp_path)


def test_killed_while_a_folder_was_removed(tmp_path: Path) -> None:
    staging = staged(tmp_path)
    write_journal(tmp_path, staging)
    for path in PUT:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / path, tmp_path / path)
    (tmp_path / ".nv-meta/columnar/g1/keys.npy").unlink()  # rmtree had come this far
    assert finish_interrupted_prepare(tmp_path)
    assert contents(tmp_path) == AFTER


def test_several_finish_at_once(tmp_path: Path) -> None:
    for attempt in range(20):
        root = tmp_path / str(attempt)
        root.mkdir()
        write_journal(root, staged(root))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(finish_interrupted_prepare, [root] * 4))
        assert contents(root) == AFTER


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../outside.tar.idx",
        "shards/../../outside.tar.idx",
        ".nv-meta/../data.json",
        ".nv-meta/.prepare/commit.json",
        ".nv-meta",
        "",
        "shards/a.tar",
        "train.py",
    ],
)
@pytest.mark.parametrize("field", ["put", "remove"])
def test_foreign_paths_are_refused(tmp_path: Path, path: str, field: str) -> None:
    write_journal(tmp_path, staged(tmp_path), **{field: [path]})
    with pytest.raises(IndexFileError, match="does not own"):
        finish_interrupted_prepare(tmp_path)
    assert contents(tmp_path) == OLD


def test_tar_indices_are_never_removed(tmp_path: Path) -> None:
    write_journal(tmp_path, staged(tmp_path), remove=["shards/a.tar.idx"])
    with pytest.raises(IndexFileError, match="does not own"):
        finish_interrupted_prepare(tmp_path)


@pytest.mark.parametrize("name", ["../staged-x", "staged-/../..", "other"])
def test_foreign_staging_folders_are_refused(tmp_path: Path, name: str) -> None:
    write_journal(tmp_path, staged(tmp_path), staged=name)
    with pytest.raises(IndexFileError, match="does not own"):
        finish_interrupted_prepare(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": "1", "staged": "", "put": []}'])
def test_damaged_journal(tmp_path: Path, text: str) -> None:
    staged(tmp_path)
    (tmp_path / JOURNAL).write_text(text)
    with pytest.raises(IndexFileError, match="not a commit journal"):
        finish_interrupted_prepare(tmp_path)


def test_newer_journal(tmp_path: Path) -> None:
    write_journal(tmp_path, staged(tmp_path), version=2)
    with pytest.raises(IndexFileError, match="version 2"):
        finish_interrupted_prepare(tmp_path)


def test_lost_staged_file(tmp_path: Path) -> None:
    staging = staged(tmp_path)
    write_journal(tmp_path, staging)
    (staging / ".nv-meta/split.yaml").unlink()
    with pytest.raises(IndexFileError, match=r"split\.yaml.*is missing"):
        finish_interrupted_prepare(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_dataset(tmp_path: Path) -> None:
    write_journal(tmp_path, staged(tmp_path))
    (tmp_path / "shards").chmod(0o500)
    try:
        with pytest.raises(StaleIndexError, match="has no write permission"):
            finish_interrupted_prepare(tmp_path)
    finally:
        (tmp_path / "shards").chmod(0o700)
