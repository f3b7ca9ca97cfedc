"""Digests of shards: what a store sends with wrong bytes, under right headers, is no sample."""

from __future__ import annotations

import logging
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
from cli_runs import run
from patience import PATIENCE_S
from storage.faults import UNSEEN, FaultyServer, running_faulty_server
from storage.test_faults import QUICK, URL, attempted, batches

from energon_grain import StorageSettings, use_storage
from energon_grain.errors import ConfigError, EnergonGrainError, ReadError, StaleIndexError
from energon_grain.prepare import prepare_dataset
from energon_grain.stores.cache_check import check_sums
from energon_grain.testing import make_text_dataset

DIGESTS = ".nv-meta/columnar/digests.json"
PAGE_BYTES = 256 << 10


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "set"
    make_text_dataset(folder, n=48, shards=2, text_bytes=30_000)
    prepare_dataset(folder, digest=True, tar_index_only=True)
    return folder


@pytest.fixture
def server(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    with running_faulty_server() as found:
        found.upload(data, "set")
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


def verifying(folder: Path, **given: Any) -> StorageSettings:
    settings: dict[str, Any] = {
        **QUICK,
        "timeout_s": PATIENCE_S,
        "attempts": None,
        "verify": True,
        "cache_dir": str(folder),
        **given,
    }
    return StorageSettings(**settings)


def test_the_file_holds_the_digests_of_shards_and_pages(data: Path) -> None:
    found = msgspec.json.decode((data / DIGESTS).read_bytes())
    assert {name: found[name] for name in ("version", "algorithm", "page_bytes")} == {
        "version": 1,
        "algorithm": "xxh3-128",
        "page_bytes": PAGE_BYTES,
    }
    assert sorted(found["shards"]) == sorted(path.name for path in data.glob("*.tar"))
    for name, kept in found["shards"].items():
        content = (data / name).read_bytes()
        assert kept["size_bytes"] == len(content)
        assert kept["digest"] == xxhash.xxh3_128_hexdigest(content)
        pages = [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]
        assert msgspec.convert(kept["pages"], bytes, strict=False) == b"".join(map(xxhash.xxh3_64_digest, pages))


@pytest.mark.parametrize("cache_bytes", [None, 0, 1 << 20], ids=["cache", "no cache", "small cache"])
@pytest.mark.parametrize("name", UNSEEN)
def test_bytes_that_differ_are_asked_for_again(
    server: FaultyServer, data: Path, tmp_path: Path, name: str, cache_bytes: int | None
) -> None:
    use_storage(verifying(tmp_path, cache_bytes=cache_bytes))
    server.fail(UNSEEN[name], ".tar bytes", every=4)
    assert batches(URL) == batches(data)
    assert server.hits


@pytest.mark.parametrize("cache_bytes", [None, 0], ids=["cache", "no cache"])
@pytest.mark.parametrize("name", UNSEEN)
def test_bytes_that_stay_wrong_are_an_error_that_names_the_shard(
    server: FaultyServer, data: Path, tmp_path: Path, name: str, cache_bytes: int | None
) -> None:
    def of_pages(answer: Any) -> None:  # a look at a header takes less
        if len(answer.body) > 1 << 16:
            UNSEEN[name](answer)

    use_storage(verifying(tmp_path, cache_bytes=cache_bytes))
    server.fail(of_pages, ".tar bytes")
    with pytest.raises(
        EnergonGrainError, match=r"shard_00\d\.tar.* differ from the shard that was prepared.*3 times.*upload"
    ):
        batches(URL)
    if cache_bytes is None:
        assert check_sums(str(tmp_path / "pages")).pages == 0
    server.fail(None)
    assert batches(URL) == batches(data)


def test_without_digests_or_the_setting_wrong_bytes_are_delivered(
    server: FaultyServer, data: Path, tmp_path: Path
) -> None:
    """So the tests above show something, and pages that nothing was compared with are not taken by those who verify."""

    def in_text(answer: Any) -> None:
        if len(answer.body) > 1 << 16:
            at = answer.body.index(b"a", len(answer.body) // 2)
            answer.body = answer.body[:at] + b"b" + answer.body[at + 1 :]

    use_storage(verifying(tmp_path, verify=False))
    server.fail(in_text, ".tar bytes")
    assert attempted(URL) != batches(data)
    server.fail(None)
    use_storage(verifying(tmp_path))
    assert batches(URL) == batches(data)


def test_a_dataset_without_digests_is_read_with_a_warning(
    server: FaultyServer, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    del server.objects[f"set/{DIGESTS}"]
    use_storage(verifying(tmp_path))
    with caplog.at_level(logging.WARNING, "energon_grain"):
        assert batches(URL) == batches(data)
    assert "has no digests to verify its shards; run `energon-grain prepare --digest`" in caplog.text


def test_a_shard_of_another_size_is_an_error(server: FaultyServer, data: Path, tmp_path: Path) -> None:
    digests = msgspec.json.decode(server.objects[f"set/{DIGESTS}"])
    for kept in digests["shards"].values():
        kept["size_bytes"] += 512
    server.objects[f"set/{DIGESTS}"] = msgspec.json.encode(digests)
    use_storage(verifying(tmp_path))
    with pytest.raises(StaleIndexError, match=r"shard_00\d\.tar: has \d+ bytes, but had \d+ when it was prepared"):
        batches(URL)
    server.objects[f"set/{DIGESTS}"] = b"{}"
    with pytest.raises((EnergonGrainError, ReadError), match=r"digests\.json"):
        batches(URL)


def test_digests_reach_other_processes_by_the_name_of_their_file(server: FaultyServer, tmp_path: Path) -> None:
    from energon_grain.formats.data_folder import open_folder

    use_storage(verifying(tmp_path))
    store: Any = open_folder(URL).store
    copy: Any = pickle.loads(pickle.dumps(store))
    assert len(pickle.dumps(store)) < 2000
    assert copy.digests.get(f"{URL}/shard_000.tar") == store.digests.get(f"{URL}/shard_000.tar") is not None


def test_append_goes_on_keeping_digests_and_preparing_again_need_not(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    make_text_dataset(folder, n=8, shards=2, prepared=False)
    made = [path.name for path in sorted(folder.glob("*.tar"))]
    (folder / made[1]).rename(tmp_path / made[1])
    prepare_dataset(folder, digest=True, split_ratio={"train": 1})
    first = msgspec.json.decode((folder / DIGESTS).read_bytes())["shards"]
    assert [*first] == made[:1]
    shutil.move(tmp_path / made[1], folder / made[1])
    prepare_dataset(folder, append=True)
    grown = msgspec.json.decode((folder / DIGESTS).read_bytes())["shards"]
    assert [*grown] == made
    assert grown[made[0]] == first[made[0]]
    prepare_dataset(folder, force_overwrite=True, split_ratio={"train": 1}, digest=False)
    assert not (folder / DIGESTS).exists()
    told = run("prepare", folder, "--tar-index-only", "--digest")
    assert told.exit_code == 0, told.output
    assert msgspec.json.decode((folder / DIGESTS).read_bytes())["shards"] == grown


def test_digests_are_not_made_of_what_a_store_sends(server: FaultyServer, tmp_path: Path) -> None:
    use_storage(verifying(tmp_path))
    with pytest.raises(ConfigError, match="before the upload"):
        prepare_dataset(URL, digest=True, tar_index_only=True)
