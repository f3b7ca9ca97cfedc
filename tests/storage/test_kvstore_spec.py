"""URLs as TensorStore's key-value stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from energon_grain.errors import ConfigError
from energon_grain.storage.kvstore_spec import has_lists, kvstore_spec
from energon_grain.storage.storage_settings import StorageSettings, StoreSettings

VARIABLES = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "MSC_CONFIG",
    "RCLONE_CONFIG",
    "XDG_CONFIG_HOME",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def spec(url: str, **stores: StoreSettings) -> tuple[dict[str, Any], str]:
    return kvstore_spec(url, StorageSettings(stores={name.replace("_", "://"): one for name, one in stores.items()}))


@pytest.mark.parametrize(
    ("url", "store", "key"),
    [
        ("s3://bucket", {"driver": "s3", "bucket": "bucket"}, ""),
        ("s3://bucket/a b/ä.tar", {"driver": "s3", "bucket": "bucket"}, "a b/ä.tar"),
        ("gs://bucket/a", {"driver": "gcs", "bucket": "bucket"}, "a"),
        ("https://host:8/a%20b%3Fc", {"driver": "http", "base_url": "https://host:8"}, "/a b?c"),
        ("http://host", {"driver": "http", "base_url": "http://host"}, ""),
        ("memory://a/b", {"driver": "memory"}, "a/b"),
        ("file:///a/b", {"driver": "file"}, "/a/b"),
    ],
)
def test_urls_without_settings(url: str, store: dict[str, Any], key: str) -> None:
    assert spec(url) == (store, key)


def test_settings_of_amazons_and_other_s3_stores() -> None:
    assert spec("s3://b/k", s3_b=StoreSettings(region="eu-1"))[0]["aws_region"] == "eu-1"
    assert spec("s3://b/k", s3_b=StoreSettings(endpoint="http://minio:9000/"))[0] == {
        "driver": "s3",
        "bucket": "b",
        "endpoint": "http://minio:9000",
        "aws_region": "us-east-1",
    }
    assert spec("s3://b/k", s3_b=StoreSettings(anonymous=True))[0]["aws_credentials"] == {"type": "anonymous"}
    assert spec("s3://b/k", s3_b=StoreSettings(requester_pays=True))[0]["requester_pays"] is True


def test_the_usual_variables_say_what_settings_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "r1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert spec("s3://b")[0] == {
        "driver": "s3",
        "bucket": "b",
        "endpoint": "http://one",
        "aws_region": "r1",
        "aws_credentials": {"type": "environment"},
    }
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://two")
    monkeypatch.setenv("AWS_REGION", "r2")
    found = spec("s3://b")[0]
    assert (found["endpoint"], found["aws_region"]) == ("http://two", "r2")
    found = spec("s3://b", s3_b=StoreSettings(endpoint="http://three", region="r3", anonymous=True))[0]
    assert (found["endpoint"], found["aws_region"]) == ("http://three", "r3")
    assert found["aws_credentials"] == {"type": "anonymous"}


def test_a_profile_of_the_settings_comes_before_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").write_text("[mine]\naws_access_key_id = k\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    named = spec("s3://b/k", s3_b=StoreSettings(profile="mine"))[0]
    assert (named["aws_credentials"]["type"], named["aws_credentials"]["profile"]) == ("profile", "mine")
    with pytest.raises(ConfigError, match=r"^s3://b: the profile 'other' of the storage settings"):
        spec("s3://b/k", s3_b=StoreSettings(profile="other"))


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_an_end_point_of_the_environment_must_be_a_url(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "localhost:5678")
    with pytest.raises(ConfigError, match=rf"^{variable} 'localhost:5678': must be a URL; write http://localhost:5678"):
        spec("s3://b/k")


def test_public_buckets_of_google_are_files_of_the_web() -> None:
    anonymous = StoreSettings(anonymous=True)
    assert spec("gs://b/a/c", gs_b=anonymous) == (
        {"driver": "http", "base_url": "https://storage.googleapis.com/b/"},
        "a/c",
    )
    other = StoreSettings(anonymous=True, endpoint="http://gcs:1/")
    assert spec("gs://b/a", gs_b=other)[0]["base_url"] == "http://gcs:1/b/"


@pytest.mark.parametrize(
    ("url", "lists"),
    [("s3://b", True), ("gs://b", True), ("memory://", True), ("https://h/x", False), ("gs://open/x", False)],
)
def test_plain_web_servers_have_no_lists(url: str, lists: bool) -> None:
    assert has_lists(url, StorageSettings(stores={"gs://open": StoreSettings(anonymous=True)})) == lists


@pytest.mark.parametrize(
    ("stores", "url", "store", "key"),
    [
        ({"msc://t": "s3://b/x"}, "msc://t/a", {"driver": "s3", "bucket": "b"}, "x/a"),
        ({"msc://t/": "s3://b/x/"}, "msc://t/a", {"driver": "s3", "bucket": "b"}, "x/a"),
        ({"msc://t": "s3://b"}, "msc://t", {"driver": "s3", "bucket": "b"}, ""),
        ({"msc://t": "s3://"}, "msc://t/b/a", {"driver": "s3", "bucket": "b"}, "a"),
        ({"s3://old": "s3://new/x"}, "s3://old/a", {"driver": "s3", "bucket": "new"}, "x/a"),
        ({"rclone://t": "file:///"}, "rclone://t/d/a", {"driver": "file"}, "/d/a"),
        ({"rclone://t": "file:///d"}, "rclone://t/a", {"driver": "file"}, "/d/a"),
        ({"data://t": "https://h/x"}, "data://t/a", {"driver": "http", "base_url": "https://h"}, "/x/a"),
        ({"data://t": "https://h/x%20"}, "data://t/%2e/a?", {"driver": "http", "base_url": "https://h"}, "/x /%2e/a?"),
        ({"data://t": "memory://x"}, "data://t/a", {"driver": "memory"}, "x/a"),
    ],
)
def test_other_names_stand_for_locations(stores: dict[str, str], url: str, store: dict[str, Any], key: str) -> None:
    settings = StorageSettings(stores={name: StoreSettings(location=location) for name, location in stores.items()})
    assert kvstore_spec(url, settings) == (store, key)


def test_settings_of_the_real_location_count_too() -> None:
    found, key = spec(
        "msc://t/a",
        msc_t=StoreSettings(location="s3://b/x", endpoint="http://near"),
        s3_b=StoreSettings(endpoint="http://far", region="eu-1", location="s3://elsewhere"),
    )
    assert (found["bucket"], key) == ("b", "x/a")
    assert (found["endpoint"], found["aws_region"]) == ("http://near", "eu-1")


def test_settings_without_a_location_add_to_the_profile(home: Path) -> None:
    (home / ".msc_config.yaml").write_text(
        "profiles: {t: {storage_provider: {type: s3, options: {base_path: b, endpoint_url: 'http://x'}}}}"
    )
    assert spec("msc://t/a", msc_t=StoreSettings(anonymous=True)) == (
        {
            "driver": "s3",
            "bucket": "b",
            "endpoint": "http://x",
            "aws_region": "us-east-1",
            "aws_credentials": {"type": "anonymous"},
        },
        "a",
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://", "names no bucket; write s3://bucket/folder"),
        ("gs:///a", "names no bucket; write gs://bucket/folder"),
        (
            "azure://c/a",
            "azure://c/a: object stores are s3://, gs://, http://, https://, memory://, msc://.* that speaks S3",
        ),
        ("data://w/a", r"data://w/a: object stores are .* give a location \(nothing now\); file:// is a path$"),
        ("dss://a@1/b", "NVDATASET_CACHE_DIR"),
        ("msc://t/a", "has a profile 't'"),
    ],
)
def test_urls_that_name_no_store(url: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVDATASET_CACHE_DIR", raising=False)
    with pytest.raises(ConfigError, match=said):
        spec(url)


@pytest.mark.parametrize(
    "store", [StoreSettings(endpoint="http://x"), StoreSettings(region="x"), StoreSettings(profile="x")]
)
def test_what_google_takes_from_the_environment_is_refused(store: StoreSettings) -> None:
    with pytest.raises(
        ConfigError, match=r"gs://b: the storage settings give a (endpoint|region|profile),.*leave it out"
    ):
        spec("gs://b/a", gs_b=store)


@pytest.mark.parametrize("url", ["https://h/a?token=x", "https://h/a#b", "https://me:secret@h/a"])
def test_only_plain_paths_of_the_web(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^https://h/a: only plain paths are read from the web"):
        kvstore_spec(url, StorageSettings())
