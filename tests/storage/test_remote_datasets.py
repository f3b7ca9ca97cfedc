"""Whole datasets in buckets and in containers of Azure: batches and states as here, and each way to sign in."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from azure_server import ACCOUNT, KEY, AzureServer, running_azure_server
from azurite import Azurite, running_azurite
from cli_runs import run
from metadatasets import v2, write_v2
from object_server import Bucket, Fault
from parquet_files import write_numbers
from stream_hosts import open_share, text_batches
from table_forms import write_arrow

from energon_grain import (
    ConfigError,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    EPath,
    SampleDecoder,
    SkipSample,
    StorageSettings,
    StoreSettings,
    Stream,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_train_dataset,
    merge_cursors,
    stateless,
    use_storage,
)
from energon_grain.errors import EnergonGrainError, ReadError, StaleIndexError
from energon_grain.formats import data_folder
from energon_grain.prepare import prepare_dataset
from energon_grain.sources import remote_runs
from energon_grain.storage.settings import storage_settings
from energon_grain.stores.object_client import shared_client
from energon_grain.testing import make_text_dataset, write_tars


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


@pytest.fixture(params=["ours", "azurite"])
def azure(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[AzureServer | Azurite]:
    if request.param == "azurite" and not os.environ.get("AZURITE"):
        pytest.skip("AZURITE names no `azurite-blob` (npm install azurite)")
    with running_azure_server() if request.param == "ours" else running_azurite() as server:
        for name in [name for name in os.environ if name.startswith("AZURE_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server.url)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        forkserver._forkserver._stop()  # else its workers have the environment of another test
        use_storage(StorageSettings(attempts=2, first_pause_s=0.01))
        server.create("box")
        yield server
        forkserver._forkserver._stop()


def test_blobs_are_written_listed_read_and_removed(azure: AzureServer | Azurite, tmp_path: Path) -> None:
    folder = EPath("az://box/a b")
    for name in ("ä.txt", "sub/x", "sub/y", "sub/deep/z", "empty"):
        (folder / name).write_bytes(name.encode() if name != "empty" else b"")
    assert [path.relative_to(folder) for path in folder.walk()] == ["empty", "sub/deep/z", "sub/x", "sub/y", "ä.txt"]
    assert [path.name for path in folder.glob("sub/*")] == ["x", "y"]
    assert (folder.is_dir(), folder.is_file(), (folder / "empty").is_file()) == (True, False, True)
    assert ((folder / "ä.txt").read_text(), (folder / "ä.txt").size()) == ("ä.txt", 6)
    assert (folder / "empty").read_bytes() == b""
    with (folder / "sub/deep/z").open("rb") as file:
        file.seek(-3, os.SEEK_END)
        assert file.read() == b"p/z"
    assert EPath("abfs://box/a b/sub/x").read_bytes() == EPath("azure://box/a b/sub/x").read_bytes() == b"sub/x"
    folder.copy(EPath(tmp_path / "copy"))
    assert (tmp_path / "copy/sub/deep/z").read_text() == "sub/deep/z"
    (folder / "sub/x").unlink()
    (folder / "sub/x").unlink()  # is no error
    assert not (folder / "sub/x").exists()
    with pytest.raises(FileNotFoundError):
        (folder / "sub/x").read_bytes()


def keys(path: Any, steps: int, state: Any = None, workers: int = 0) -> tuple[list[list[str]], Any]:
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=4,
        shuffle_buffer_size=20,
        max_samples_per_sequence=10,
    )
    with Stream.of(dataset) as stream:
        if state is not None:
            stream.restore(state)
        batches = [list(next(stream).__key__) for _ in range(steps)]
        return batches, json.loads(json.dumps(stream.cursor()))


def test_a_dataset_is_prepared_streamed_saved_and_restored(azure: AzureServer | Azurite, tmp_path: Path) -> None:
    make_text_dataset(tmp_path / "set", n=100, shards=5, prepared=False)
    EPath(tmp_path / "set").copy(EPath("az://box/set"))
    options: Any = {"split_ratio": (1, 0, 0), "sample_type": "TextSample", "field_map": {"text": "txt"}}
    prepare_dataset("az://box/set", **options)
    prepare_dataset(tmp_path / "set", **options)
    assert run("info", "az://box/set").exit_code == 0
    assert run("lint", "az://box/set").exit_code == 0
    EPath("az://box/meta.yaml").write_text(json.dumps(v2(train={"path": "set"})))
    expected, _ = keys(tmp_path / "set", 20)
    first, state = keys("az://box/set", 8, workers=2)
    rest, _ = keys("az://box/set", 12, state)
    assert first + rest == expected
    here, _ = keys(tmp_path / "set", 12, state)
    assert here == rest
    assert len(keys("az://box/meta.yaml", 3)[0]) == 3


@stateless
def number_of(sample: CrudeSample) -> TextSample:
    """Of a line, a row or a tar's text, where every third one is left out."""
    number = sample["json"]["n"] if "json" in sample else sample["n"] if "n" in sample else len(sample["txt"])
    if int(number) % 3 == 1:
        raise SkipSample
    return TextSample(**basic_sample_keys(sample), text=str(int(number)))


class Numbers(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Packs what is left in fives, so that lanes hold samples."""

    decoder = SampleDecoder()
    cookers = (Cooker(number_of),)

    def select_samples_to_pack(self, samples: list[TextSample]) -> list[list[TextSample]]:
        ordered = sorted(samples, key=lambda sample: int(sample.text))
        return [ordered[at : at + 3] for at in range(0, len(ordered), 3)]

    @stateless
    def pack_selected_samples(self, samples: list[TextSample]) -> TextSample:
        return TextSample(**basic_sample_keys(samples[0]), text=" ".join(f"{s.__key__}={s.text}" for s in samples))


def test_a_blend_of_all_forms_goes_on_on_other_hosts(azure: AzureServer | Azurite, tmp_path: Path) -> None:
    """Tars, prepared or not, Parquet, Arrow and JSONL in one container: saved on two hosts, restored on three."""
    for name in ("bare", "tars"):
        samples = ({"__key__": f"{name}{n:03d}", "txt": "x" * n} for n in range(40))
        write_tars(tmp_path / name, samples, shards=4)
    prepare_dataset(tmp_path / "tars", split_ratio=(1, 0, 0), crude=True, num_workers=0)
    write_numbers(tmp_path / "rows/x.parquet", 40, row_group_size=8)
    write_arrow(tmp_path / "x.arrow", {"n": list(range(40))}, rows=8)
    (tmp_path / "x.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(40)))
    forms = ("bare", "tars", "rows", "x.arrow", "x.jsonl")
    for name in (*forms, write_v2(tmp_path, train={"blend": [{"path": name} for name in forms]}).name):
        EPath(tmp_path / name).copy(EPath(f"az://box/{name}"))

    def opened(hosts: int, path: Any, state: dict[str, Any] | None = None) -> list[Stream[Any]]:
        order = {"shuffle_buffer_size": 8, "max_samples_per_sequence": 4, "packing_buffer_size": 5, "lanes": 6}
        streams: list[Stream[Any]] = []
        for host in range(hosts):
            config = WorkerConfig(rank=host, world_size=hosts, num_workers=0)
            given = {"batch_size": 6 // hosts, "task_encoder": Numbers(), "worker_config": config, **order}
            streams.append(Stream.of(get_train_dataset(path, **given)))
            if state is not None:
                streams[-1].restore(json.loads(json.dumps(state)))
        return streams

    def steps(streams: list[Stream[Any]], count: int) -> list[list[str]]:
        return [sorted(text for stream in streams for text in next(stream).text) for _ in range(count)]

    expected = steps(opened(1, tmp_path / "meta.yaml"), 12)
    two = opened(2, "az://box/meta.yaml")
    assert steps(two, 5) == expected[:5]
    state = merge_cursors([stream.cursor(with_manifest=True) for stream in two])
    assert steps(opened(3, "az://box/meta.yaml", state), 7) == expected[5:]
    named = {key.split("=")[0].rstrip("0123456789") for step in expected for text in step for key in text.split()}
    assert named == {"bare", "tars", "x/", ""}  # keys of lines are numbers


def test_a_blob_that_was_replaced_is_an_error(azure: AzureServer | Azurite, tmp_path: Path) -> None:
    EPath(make_text_dataset(tmp_path / "set", n=20, shards=1)).copy(EPath("az://box/set"))
    dataset = get_train_dataset(
        "az://box/set",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    use_storage(StorageSettings(attempts=1, cache_bytes=0, ahead_bytes=0))
    with Stream.of(dataset) as stream:
        next(stream)
        shard = next(EPath("az://box/set").glob("*.tar"))
        shard.write_bytes(shard.read_bytes())  # the same bytes, and another entity tag
        with pytest.raises(StaleIndexError, match=rf"{shard}: was replaced while it was read"):
            for _ in range(100):
                next(stream)


def read(timeout_s: float, **settings: Any) -> str:
    """By a client of its own: those of equal settings are shared, with the credentials that they found."""
    use_storage(StorageSettings(attempts=1, timeout_s=timeout_s, stores={"az://": StoreSettings(**settings)}))
    return EPath("az://box/x").read_text()


def test_ways_to_sign_in(azure: AzureServer | Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    EPath("az://box/x").write_text("private")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY.replace("E", "F"))
    with pytest.raises(ReadError, match=r"access denied: Auth.*; check the credentials in AZURE_ST"):
        read(61)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", azure.token())
    assert read(62) == "private"
    with pytest.raises(ReadError, match=r"access denied: .*`anonymous: true` for it: remove that"):
        read(63, anonymous=True)
    azure.publish("box")
    assert read(64, anonymous=True) == "private"
    monkeypatch.delenv("AZURE_STORAGE_ENDPOINT")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    assert read(65, anonymous=True, endpoint=azure.url) == "private"


@pytest.mark.parametrize("by_key", [True, False])
def test_keys_of_a_profile(
    azure: AzureServer | Azurite, by_key: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing = f"AccountName={ACCOUNT};AccountKey={KEY}" if by_key else f"SharedAccessSignature={azure.token()}"
    monkeypatch.setenv("MSC_CONFIG", str(tmp_path / "msc.json"))
    provider = {"type": "azure", "options": {"base_path": "box/in", "endpoint_url": azure.url}}
    credentials = {"type": "AzureCredentials", "options": {"connection": signing}}
    profile = {"storage_provider": provider, "credentials_provider": credentials}
    (tmp_path / "msc.json").write_text(json.dumps({"profiles": {"team": profile}}))
    with monkeypatch.context() as other:
        other.setenv("AZURE_STORAGE_ACCOUNT_KEY", "b3RoZXI=")
        EPath("msc://team/x").write_text("private")
        assert [path.name for path in EPath("msc://team").walk()] == ["x"]
    assert EPath("az://box/in/x").read_text() == "private"


def test_what_is_not_there(azure: AzureServer | Azurite) -> None:
    with pytest.raises(ReadError, match=rf"no bucket 'nobox' at {azure.url} .*; check its name and the endpoint"):
        list(EPath("az://nobox/a").walk())
    with pytest.raises(ReadError, match=r"there is no bucket 'nobox'"):
        EPath("az://nobox/a").read_bytes()
    use_storage(StorageSettings(attempts=1, stores={"az://box": StoreSettings(endpoint="http://127.0.0.1:9/a")}))
    with pytest.raises(ReadError, match=r"cannot connect to http://127.0.0.1:9/a: .*AZURE_STORAGE_ACCOUNT_NAME\)$"):
        EPath("az://box/a").read_bytes()


def test_arrays_are_refused(azure: AzureServer | Azurite, tmp_path: Path) -> None:
    from arrays import write_array

    from energon_grain.kinds.arrays.source import ArraySource

    EPath(write_array(tmp_path / "a", np.arange(6), chunk=(2,))).copy(EPath("az://box/a"))
    with pytest.raises(ConfigError, match=r"^az://box/a: arrays cannot be read from Azure; copy them to another store"):
        ArraySource("az://box/a")
