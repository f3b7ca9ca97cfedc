"""Preparing in a bucket: the same files as on a disk, in an order that readers can live with, from few bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cli_runs import run
from object_server import Bucket, Fault
from patience import PATIENCE_S

from energon_grain import StorageSettings, StoreSettings, WorkerConfig, get_train_dataset, use_storage
from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    DecodingError,
    DuplicateKeyError,
    ReadError,
    RefusedError,
    StaleIndexError,
    TarError,
)
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import read_info
from energon_grain.kinds.jsonl.prepare import prepare_jsonl
from energon_grain.prepare import PrepareProgress, prepare_dataset
from energon_grain.prepare.writing import preparation_lock
from energon_grain.storage.remote import ObjectRange
from energon_grain.storage.settings import storage_settings
from energon_grain.stores.object_client import shared_client
from energon_grain.testing import write_tars

HEADER = ".nv-meta/columnar/header.json"
FIELDS = {"text": "txt"}


def write(root: Path, count: int = 40, shards: int = 5, size: int = 100) -> Path:
    samples = (
        {"__key__": f"{i:05d}", "bin": random.Random(i).randbytes(size), "txt": f"text {i}"} for i in range(count)
    )
    write_tars(root, list(samples), shards=shards, name="parts/s-{}.tar")
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


@pytest.fixture
def url(bucket: Bucket, root: Path) -> str:
    return bucket.upload(root, "sets/one")


def objects(url: str) -> dict[str, bytes]:
    client = shared_client(storage_settings())
    found = {name: client.read(ObjectRange(f"{url}/{name}")) for name in client.list(url)}
    return {name: fetched.data or b"" for name, fetched in found.items() if fetched is not None}


def comparable(files: dict[str, bytes]) -> dict[str, bytes]:
    """Without digests, which are of local files, and what is random: the id, and the generation of the columns."""
    generation = json.loads(files[HEADER])["generation"]
    plain = {name.replace(generation, "generation"): data for name, data in files.items()}
    plain[HEADER] = plain[HEADER].replace(generation.encode(), b"generation")
    return {name: data for name, data in plain.items() if not name.endswith(("index.uuid", "digests.json"))}


def on_disk(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def generations(url: str) -> set[str]:
    listed = shared_client(storage_settings()).list(f"{url}/.nv-meta/columnar")
    return {name.split("/")[0] for name in listed if "/" in name}


def trained_on(where: str | Path) -> set[str]:
    config = WorkerConfig(0, 1, 0)
    batches = iter(
        get_train_dataset(
            where, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=4, worker_config=config
        )
    )
    return {key for _ in range(20) for key in next(batches).__key__}


def test_the_files_are_those_of_a_disk(root: Path, url: str) -> None:
    options = {"split_ratio": (3, 1, 1), "sample_type": "TextSample", "field_map": FIELDS, "shuffle_tars": True}
    here, there = prepare_dataset(root, **options), prepare_dataset(url, **options)
    assert there.root == url
    for field in ("shard_counts", "size_bytes", "part_names", "split_parts", "notes"):
        assert getattr(there, field) == getattr(here, field)
    assert sorted(there.written) == sorted(here.written)
    assert comparable(objects(url)) == comparable(on_disk(root))
    shutil.rmtree(open_folder(url).local)  # what preparing left there
    assert trained_on(url) == trained_on(root)


def test_the_order_of_writing(bucket: Bucket, url: str) -> None:
    bucket.server.reset()
    prepare_dataset(url, crude=True)
    names = [request.path.partition("/sets/one/")[2] for request in bucket.server.requests(method="PUT")]
    meta = names.index(".nv-meta/dataset.yaml"), names.index(".nv-meta/split.yaml"), names.index(".nv-meta/index.uuid")
    seen_from = min(meta)
    unseen = [n for n, name in enumerate(names) if name.endswith((".npy", ".idx", ".sqlite"))]
    assert len(unseen) >= 5 + 1 + 7
    assert max(unseen) < seen_from
    assert names[-2:] == [".nv-meta/columnar/header.json", ".nv-meta/.info.json"]


def test_preparing_again(url: str, bucket: Bucket, tmp_path: Path) -> None:
    prepare_dataset(url)
    with pytest.raises(ConfigError, match=r"s3://\S+: already prepared"):
        prepare_dataset(url)
    first = generations(url)
    more = write(tmp_path / "more", count=60, shards=6)
    bucket.upload(more, "sets/one")
    prepare_dataset(url, force_overwrite=True, sqlite=False)
    assert sum(read_info(open_folder(url).local).shard_counts.values()) == 60
    second = generations(url)
    assert first < second, "readers that are just opening the dataset find the old columns"
    assert ".nv-meta/index.sqlite" not in objects(url)
    prepare_dataset(url, tar_index_only=True)
    third = generations(url)
    assert first & third == set()
    assert len(third) == 2


def test_shards_that_were_scanned_are_not_scanned_again(url: str, bucket: Bucket) -> None:
    good = bucket.get("sets/one/parts/s-3.tar")
    bucket.put("sets/one/parts/s-3.tar", good[:700])
    with pytest.raises(TarError, match=r"s-3\.tar"):
        prepare_dataset(url)
    assert ".nv-meta/.info.json" not in objects(url)
    bucket.put("sets/one/parts/s-3.tar", good)
    bucket.put("sets/one/parts/s-1.tar", bucket.get("sets/one/parts/s-2.tar")[:-512] + bytes(512))
    bucket.put("sets/one/parts/s-2.tar", bucket.get("sets/one/parts/s-2.tar"))  # the same bytes: the same version
    with pytest.raises(DuplicateKeyError):
        prepare_dataset(url)
    bucket.delete("sets/one/parts/s-1.tar")
    report = prepare_dataset(url)
    assert report.shards_reused == 4
    assert len(report.shard_counts) == 4


KILLED = """
import os, signal, sys
from energon_grain.prepare import prepare_dataset
def progress(now):
    if now.stage == sys.argv[2] and (now.stage != "scan" or now.shards_done == 3):
        os.kill(os.getpid(), signal.SIGKILL)
prepare_dataset(sys.argv[1], progress=progress, num_workers=1)
"""


@pytest.mark.parametrize(("stage", "reused"), [("scan", 3), ("commit", 5)])
def test_a_killed_run_goes_on(url: str, root: Path, stage: str, reused: int) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, url, stage], timeout=PATIENCE_S)
    assert killed.returncode == -signal.SIGKILL
    assert not any(".nv-meta" in name for name in objects(url))
    assert prepare_dataset(url).shards_reused >= reused
    prepare_dataset(root)
    assert comparable(objects(url)) == comparable(on_disk(root))


KILLED_LATE = """
import os, signal, sys
from energon_grain.prepare import prepare_dataset
from energon_grain.stores.object_client import ObjectClient
ObjectClient.delete = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
prepare_dataset(sys.argv[1], sqlite=False)
"""


def test_the_same_call_goes_on_behind_a_kill_at_the_end(url: str) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED_LATE, url], timeout=600)
    assert killed.returncode == -signal.SIGKILL
    assert ".nv-meta/.info.json" in objects(url)
    with pytest.raises(RefusedError, match="already prepared"):
        prepare_dataset(url, split_ratio=[1])
    assert prepare_dataset(url, sqlite=False).shards_reused == 5
    with pytest.raises(RefusedError, match="already prepared"):
        prepare_dataset(url, sqlite=False)


def test_a_commit_that_fails_leaves_the_old_state_and_can_be_repeated(url: str, root: Path, bucket: Bucket) -> None:
    use_storage(StorageSettings(attempts=1))
    bucket.server.inject(Fault(kind="status", status=500, match="header.json", method="PUT"))
    with pytest.raises(ReadError, match=r"writing s3://\S+/header\.json"):
        prepare_dataset(url)
    with pytest.raises(DatasetNotFoundError, match=r"s3://\S+: "):
        trained_on(url)
    assert prepare_dataset(url).shards_reused == 5
    prepare_dataset(root)
    assert comparable(objects(url)) == comparable(on_disk(root)), "and nothing is left of the first attempt"


def test_a_shard_that_changes_meanwhile_is_refused(url: str, bucket: Bucket) -> None:
    def change(now: PrepareProgress) -> None:
        if now.stage == "index":
            bucket.put("sets/one/parts/s-2.tar", bucket.get("sets/one/parts/s-1.tar"))

    with pytest.raises(StaleIndexError, match=r"s3://\S+/s-2\.tar: changed since its scan"):
        prepare_dataset(url, progress=change)
    assert not any(".nv-meta" in name for name in objects(url))


@pytest.mark.parametrize("habits", [["bare"], ["unconditional"], ["bare", "unconditional"]])
def test_stores_with_habits_of_their_own(url: str, root: Path, bucket: Bucket, habits: list[str]) -> None:
    """Entity tags without quotes, which TensorStore cannot send back, and answers whatever If-None-Match says."""
    bucket.server.behave(*habits)  # type: ignore[arg-type]
    prepare_dataset(url, sample_type="TextSample", field_map=FIELDS, split_ratio=[1])
    bucket.put("sets/one/parts/s-3.tar", bucket.get("sets/one/parts/s-4.tar")[:-512] + bytes(512))
    bucket.delete("sets/one/parts/s-4.tar")
    shutil.copy(root / "parts/s-4.tar", root / "parts/s-3.tar")
    (root / "parts/s-4.tar").unlink()
    prepare_dataset(url, force_overwrite=True, split_ratio=[1])
    prepare_dataset(root, sample_type="TextSample", field_map=FIELDS, split_ratio=[1])
    assert trained_on(url) == trained_on(root)

    def change(now: PrepareProgress) -> None:
        if now.stage == "index":
            bucket.put("sets/one/parts/s-2.tar", bucket.get("sets/one/parts/s-1.tar"))

    with pytest.raises(StaleIndexError, match=r"s-2\.tar: changed since its scan"):
        prepare_dataset(url, progress=change, force_overwrite=True)


def test_of_large_members_little_is_fetched(bucket: Bucket, tmp_path: Path) -> None:
    root = write(tmp_path / "large", count=60, shards=2, size=1_000_000)
    url = bucket.upload(root)
    bucket.server.reset()
    prepare_dataset(url, split_ratio=(1, 0, 0))
    fetched = sum(request.sent_bytes for request in bucket.server.requests(".tar"))
    assert fetched < 0.05 * sum(path.stat().st_size for path in root.rglob("*.tar"))


def test_shards_are_scanned_side_by_side(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.upload(write(tmp_path / "many", count=64, shards=32))
    bucket.server.reset()
    bucket.server.delay(0.03)
    prepare_dataset(url, sqlite=False)
    requests = bucket.server.requests(".tar")
    assert max(request.concurrent for request in requests) > 8


def test_any_executor_scans(url: str, root: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        prepare_dataset(url, executor=executor)
    prepare_dataset(root)
    assert comparable(objects(url)) == comparable(on_disk(root))


def test_settings_reach_the_workers_of_an_executor(bucket: Bucket, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    use_storage(StorageSettings(stores={bucket.url: StoreSettings(endpoint=endpoint)}))
    with ThreadPoolExecutor(1) as executor:
        assert prepare_dataset(url, executor=executor).samples == 40


def test_what_cannot_be_prepared(bucket: Bucket, url: str) -> None:
    (open_folder(url).local / ".nv-meta").mkdir(parents=True)
    with pytest.raises(DatasetNotFoundError, match=r"s3://\S+/none: no \*\.tar files.* no other files either"):
        prepare_dataset(f"{bucket.url}/none")
    with pytest.raises(DatasetNotFoundError, match=r"x\.tar: listed as a shard"):
        prepare_dataset(url, shards=["x.tar"])
    with pytest.raises(DatasetNotFoundError, match=rf"{url}: "):
        prepare_dataset(url, tar_index_only=True)
    with preparation_lock(open_folder(url).local / ".nv-meta"), pytest.raises(ConfigError, match=rf"{url}: another"):
        prepare_dataset(url)
    with pytest.raises(ConfigError, match="web servers are read-only"):
        prepare_dataset("https://example.org/data")
    with pytest.raises(DatasetNotFoundError, match=r"no \*\.array_record files"):
        prepare_dataset(url, records="raw")


def command(*arguments: str, answers: str = "") -> str:
    done = run("prepare", *arguments, answers=answers)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.output


def test_the_command(url: str) -> None:
    printed = command(url, "--non-interactive", "--split-ratio=3,1,1", "--crude")
    assert "Found 5 tar files" in printed
    assert f"Prepared {url}: 40 samples in 5 shards" in printed
    assert "dataset.yaml" not in printed
    printed = command(url, "--force-overwrite", "--non-interactive", "--split-ratio=1,0,0", "--skip-dataset-yaml")
    assert "40 samples" in printed


def test_the_command_asks(url: str) -> None:
    printed = command(url, answers="3,1,1\ny\nTextSample\ntxt\n")
    assert "Sample '00000' of parts/s-0.tar: bin (100 bytes), txt (6 bytes)" in printed
    assert b"TextSample" in objects(url)[".nv-meta/dataset.yaml"]
    printed = command(url, "--skip-dataset-yaml", "--split-ratio=1,0,0", answers="y\n")
    assert "Prepare it again" in printed


@pytest.fixture
def lines(bucket: Bucket) -> Callable[[bytes], str]:
    def put(content: bytes) -> str:
        bucket.put("x.jsonl", content)
        return f"{bucket.url}/x.jsonl"

    return put


def test_a_jsonl_object_is_read_once(lines: Callable[[bytes], str], bucket: Bucket, tmp_path: Path) -> None:
    content = b"".join(b'{"i": %d, "text": "%s"}\n' % (i, b"x" * (i % 700)) for i in range(60_000))
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    url = lines(content)
    bucket.server.reset()
    assert f"Prepared {url}: 60,000 samples" in command(url)
    fetched = sum(request.sent_bytes for request in bucket.server.requests("x.jsonl"))
    assert fetched < 1.05 * len(content) + (1 << 20)
    command(str(path))
    assert bucket.get("x.jsonl.idx") == Path(f"{path}.idx").read_bytes()


def test_lines_that_are_wrong_are_named(lines: Callable[[bytes], str]) -> None:
    with pytest.raises(DecodingError, match=r"x\.jsonl: 1 of 3 lines contain no JSON object: x\.jsonl:2: b'oops'"):
        prepare_jsonl(lines(b'{"a": 1}\noops\n{"b": 2}\n'))
    with pytest.raises(ReadError, match="no such object"):
        prepare_jsonl(lines(b"{}\n").replace("x.jsonl", "none.jsonl"))


def test_threads_end(url: str) -> None:
    prepare_dataset(url)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("scan")]
