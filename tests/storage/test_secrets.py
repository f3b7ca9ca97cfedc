"""Passwords, keys and signatures in URLs: refused where they are given, and shown and kept nowhere."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run
from metadatasets import v2

from energon_grain import (
    ConfigError,
    EPath,
    MetadatasetV2,
    StorageSettings,
    StoreSettings,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    load_dataset,
    use_storage,
)
from energon_grain.storage.settings import storage_settings

SECRET = "do-not-tell"
USUAL: dict[str, Any] = {"batch_size": 1, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
URLS = [
    f"s3://KEY:{SECRET}@bucket/data",
    f"gs://user:{SECRET}@bucket/data",
    f"az://container/data?sv=2024&sig={SECRET}",
    f"foo://u:{SECRET}@host/data",
    f"s3://bucket/data?X-Amz-Signature={SECRET}",
    f"s3://bucket/data?X-Amz-Security-Token={SECRET}&x=1",
    f"https://user:{SECRET}@host/data",
    f"https://host/data?token={SECRET}",
    f"msc://user:{SECRET}@team/data",
]
OPEN: list[Callable[[str], Any]] = [
    lambda url: get_train_dataset(url, **USUAL),
    lambda url: get_train_dataset(f"{url}/meta.yaml", **USUAL),
    lambda url: get_val_dataset(url, batch_size=1),
    lambda url: get_val_datasets(url, batch_size=1),
    lambda url: get_train_dataset(v2(train={"path": url}), **USUAL),
    lambda url: MetadatasetV2(splits={"train": {"path": url}}),
    lambda url: load_dataset(url),
    lambda url: EPath(url),
    lambda url: StoreSettings(location=url),
    lambda url: StorageSettings(stores={url: StoreSettings()}),
    lambda url: use_storage(url),  # type: ignore[arg-type]
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "ENERGON_GRAIN_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield
    assert [path for path in tmp_path.rglob("*") if SECRET in path.name] == []
    assert [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in repr(storage_settings())


def refusal(call: Callable[[], Any]) -> str:
    """What is said of it, all tracebacks, causes and notes included."""
    with pytest.raises(ConfigError) as caught:
        call()
    said = "".join(traceback.format_exception(caught.value))
    assert SECRET not in said
    return str(caught.value)


@pytest.mark.parametrize("use", OPEN)
@pytest.mark.parametrize("url", URLS)
def test_urls_that_hold_one_are_refused_without_showing_it(url: str, use: Callable[[str], Any]) -> None:
    assert refusal(lambda: use(url))


@pytest.mark.parametrize("url", URLS)
def test_the_rest_of_the_url_is_named(url: str) -> None:
    said = refusal(lambda: get_train_dataset(url, **USUAL))
    assert "/data" in said
    assert "password" in said


@pytest.mark.parametrize("command", ["info", "prepare", "lint", "bench", "which"])
def test_commands(command: str) -> None:
    result = run(command, URLS[0], *(("--step", "1", "--batch-size", "1") if command == "which" else ()))
    assert isinstance(result.exception, ConfigError)  # `main` prints it
    said = result.output + "".join(traceback.format_exception(result.exception))
    assert SECRET not in said
    assert "password" in said


def test_end_points_hold_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for endpoint in (f"http://user:{SECRET}@127.0.0.1:1", f"user:{SECRET}@127.0.0.1:1"):
        said = refusal(lambda endpoint=endpoint: StoreSettings(endpoint=endpoint))
        assert "127.0.0.1:1'" in said
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        said = refusal(lambda: len(get_train_dataset("s3://bucket/data", **USUAL)))  # type: ignore[arg-type]
        assert said.startswith("AWS_ENDPOINT_URL")
        assert "AWS_ACCESS_KEY_ID" in said
    monkeypatch.delenv("AWS_ENDPOINT_URL")


def test_names_that_only_look_like_it_are_read() -> None:
    for url in ("s3://bucket/what?/a@b:c", "s3://bucket/a?x=1", "gs://bucket/key=1"):
        assert str(EPath(url)) == url
