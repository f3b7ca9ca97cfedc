"""Whole datasets in a bucket: the same batches and states as from the same files on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from metadatasets import write_v2
from object_server import Bucket, Fault
from stream_hosts import global_batch, open_share, text_batches

from energon_grain import StorageSettings, use_storage
from energon_grain.errors import EnergonGrainError, ReadError, StaleIndexError
from energon_grain.formats import data_folder
from energon_grain.sources import remote_runs
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.settings import storage_settings
from energon_grain.testing import make_text_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two datasets, one of them without the columnar index, and metadatasets that name them by relative paths."""
    root = tmp_path / "data"
    make_text_dataset(root / "one", n=90, shards=4, text_bytes=3000)
    make_text_dataset(root / "sub" / "two", n=70, shards=3, seed=1)
    shutil.rmtree(root / "sub" / "two" / ".nv-meta" / "columnar")
    write_v2(root / "sub", "two.yaml", train={"path": "two"})
    write_v2(root, "mix.yaml", train={"blend": [{"path": "./one", "weight": 2}, {"path": "sub/two.yaml", "weight": 1}]})
    write_v2(root, "single.yaml", train={"path": "one"})
    return root


@pytest.mark.parametrize(("workers", "kind"), [(0, "thread"), (2, "thread"), (2, "process")])
def test_a_mixture_in_a_bucket_gives_what_it_gives_here(bucket: Bucket, folder: Path, workers: int, kind: str) -> None:
    url = bucket.upload(folder, "data sets")
    with open_share(folder / "mix.yaml") as here, open_share(f"{url}/mix.yaml", workers=workers, kind=kind) as there:
        assert text_batches(there, 60) == text_batches(here, 60)
        assert there.stats()["dropped"] == here.stats()["dropped"]


def test_without_a_block_size_a_store_is_read_in_runs(
    bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_runs, "REMOTE_RUN_BYTES", 20_000)  # three of these samples
    url = f"{bucket.upload(folder)}/one"
    options = {"shuffle_buffer_size": None, "batch_size": 1}
    with (
        open_share(url, max_samples_per_sequence=None, lanes=8, **options) as default,
        open_share(url, max_samples_per_sequence=3, lanes=8, **options) as blocks,
        open_share(url, max_samples_per_sequence=1, lanes=8, **options) as full,
        open_share(folder / "one", max_samples_per_sequence=None, lanes=8, **options) as here,
    ):
        assert [stream.spec.leaves[0].order.block for stream in (default, blocks, full, here)] == [3, 3, 1, None]
        assert text_batches(default, 90) == text_batches(blocks, 90)


def test_states_go_from_here_to_there(bucket: Bucket, folder: Path) -> None:
    url = bucket.upload(folder)
    with open_share(folder / "mix.yaml") as here, open_share(f"{url}/mix.yaml") as there:
        text_batches(here, 17)
        there.restore(here.cursor())
        assert text_batches(there, 20) == text_batches(here, 20)


def test_any_number_of_hosts_gives_the_same_global_batches(bucket: Bucket, folder: Path) -> None:
    url = f"{bucket.upload(folder)}/mix.yaml"
    one, three = [open_share(url)], [open_share(url, host=host, hosts=3) for host in range(3)]
    assert [global_batch(one) for _ in range(20)] == [global_batch(three) for _ in range(20)]
    for stream in (*one, *three):
        stream.close()


@pytest.mark.parametrize(
    "faults",
    [
        [Fault("status", status=503, times=5), Fault("status", status=500, times=3, match=".tar")],
        [Fault("reset", times=3), Fault("reset", sent=0.5, times=5, match=".tar")],
        [Fault("close", sent=0.9, times=3), Fault("close", sent=0.1, times=4, match=".tar")],
    ],
    ids=["errors", "drops", "truncation"],
)
def test_failures_that_pass_do_not_change_the_stream(bucket: Bucket, folder: Path, faults: list[Fault]) -> None:
    url = bucket.upload(folder)
    use_storage(StorageSettings(attempts=12, first_pause_s=0.001, longest_pause_s=0.01))
    bucket.server.inject(*faults)
    with open_share(folder / "mix.yaml") as here, open_share(f"{url}/mix.yaml", workers=2) as there:
        assert text_batches(there, 60) == text_batches(here, 60)
        assert there.stats()["dropped"] == here.stats()["dropped"]


def test_a_store_that_stays_away_is_an_error_and_skips_nothing(bucket: Bucket, folder: Path) -> None:
    url = bucket.upload(folder)
    use_storage(StorageSettings(attempts=3, first_pause_s=0.001, longest_pause_s=0.01, cache_bytes=0, ahead_bytes=0))
    with open_share(folder / "single.yaml") as here, open_share(f"{url}/single.yaml") as there:
        assert text_batches(there, 3) == text_batches(here, 3)
        bucket.server.inject(Fault("status", times=None))
        with pytest.raises(ReadError, match=rf"reading {url}/one/shard_00.\.tar bytes \d+ to \d+ failed: .*3 attempts"):
            text_batches(there, 60)
        bucket.server.reset()
        there.restore(here.cursor())
        assert text_batches(there, 60) == text_batches(here, 60)


def test_a_shard_that_is_replaced_is_an_error(bucket: Bucket, folder: Path) -> None:
    url = bucket.upload(folder)
    use_storage(StorageSettings(cache_bytes=0, ahead_bytes=0))
    with open_share(f"{url}/single.yaml") as stream:
        text_batches(stream, 2)
        for shard in sorted((folder / "one").glob("*.tar")):
            content = bytearray(shard.read_bytes())
            content[600] ^= 1
            bucket.put(f"one/{shard.name}", bytes(content))
        with pytest.raises(StaleIndexError, match=rf"{url}/one/shard_00.\.tar: was replaced"):
            text_batches(stream, 60)


def test_a_dataset_that_was_prepared_anew_is_read_anew(
    bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.upload(folder)
    monkeypatch.setattr(data_folder, "_FRESH_SECONDS", 0)  # for so long a process does not look again
    with open_share(f"{url}/single.yaml") as stream:
        text_batches(stream, 2)
    make_text_dataset(folder / "one", n=55, shards=4, seed=7)
    for key in bucket_keys(bucket, "one/"):
        bucket.delete(key)
    bucket.upload(folder)
    with open_share(folder / "single.yaml") as here, open_share(f"{url}/single.yaml") as there:
        assert text_batches(there, 30) == text_batches(here, 30)


def bucket_keys(bucket: Bucket, prefix: str) -> list[str]:
    return [prefix + key for key in shared_client(storage_settings()).list(f"{bucket.url}/{prefix}".rstrip("/"))]


def test_a_second_opening_fetches_no_index_again_and_a_second_pass_nothing(bucket: Bucket, folder: Path) -> None:
    url = bucket.upload(folder)
    with open_share(f"{url}/single.yaml") as stream:
        text_batches(stream, 60)
    bucket.server.reset()
    with open_share(f"{url}/single.yaml") as stream:
        text_batches(stream, 60)
    sent = {request.path: request.sent_bytes for request in bucket.server.requests()}
    assert sum(sent.values()) < 30_000, sent


def test_what_a_pass_asks_for_and_fetches(bucket: Bucket, tmp_path: Path) -> None:
    """Of a store that is well, with a cache for each host. The figures are those of one file an object."""
    make_text_dataset(tmp_path / "set", n=3200, shards=4, text_bytes=10_000)
    url = bucket.upload(tmp_path / "set", "set")
    bytes_of_sample = sum(shard.stat().st_size for shard in (tmp_path / "set").glob("*.tar")) / 3200
    for hosts, most_requests, most_times in ((1, 21, 1.01), (8, 720, 7.6)):
        readers: list[Any] = []
        for host in range(hosts):
            cache = str(tmp_path / f"cache of {host} of {hosts}")
            use_storage(StorageSettings(cache_dir=cache, ahead_bytes=(64 << 20) // hosts))
            options = {"batch_size": 4, "max_samples_per_sequence": 100, "shuffle_buffer_size": 100, "repeat": False}
            readers.append(open_share(url, host=host, hosts=hosts, **options))
        bucket.server.reset()
        read = 0
        for _ in range(3200 // 4 // hosts):
            read += sum(len(getattr(next(stream, None), "__key__", ())) for stream in readers)
        requests = bucket.server.requests(".tar")
        for stream in readers:
            stream.close()
        assert read > 2000
        assert len(requests) <= most_requests
        assert sum(request.sent_bytes for request in requests) <= most_times * read * bytes_of_sample


def test_a_bucket_without_the_dataset_says_so(bucket: Bucket) -> None:
    with pytest.raises(EnergonGrainError, match=rf"{bucket.url}/nothing"):
        open_share(f"{bucket.url}/nothing")
