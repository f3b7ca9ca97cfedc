"""Locations: what a URL is and where it leads, by settings, environment and profiles; and how one signs in there."""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from object_server import Bucket

from energon_grain import EPath, StorageSettings, StoreSettings, use_storage
from energon_grain.errors import ConfigError
from energon_grain.storage.location import (
    METADATASET_ENDINGS,
    absolute,
    folder_of,
    is_file_of,
    is_url,
    join,
    located,
    name_of,
    no_such_path,
    scheme_of,
)
from energon_grain.stores.addresses import _profile, address_of, aws_section, has_lists, open_store

VARIABLES = (
    *("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "NVDATASET_CACHE_DIR"),
    *("MSC_CONFIG", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"),
)
KEYS = "aws_access_key_id = k\naws_secret_access_key = s\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    from multistorageclient.rclone import read_rclone_config

    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    for read in (read_rclone_config, _profile):  # they read their files once
        read.cache_clear()


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def found(url: str, **stores: StoreSettings) -> dict[str, Any]:
    """What is known of an address, without what is open."""
    settings = StorageSettings(stores={name.replace("_", "://"): one for name, one in stores.items()})
    address = address_of(url, settings)
    known = {name: getattr(address.store, name) for name in StoreSettings.__struct_fields__ if name != "location"}
    place = {"kind": address.kind, "bucket": address.bucket, "key": address.key}
    return {name: value for name, value in {**place, **known}.items() if value}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", {"kind": "s3", "bucket": "bucket"}),
        ("s3://bucket/a b/ä.tar", {"kind": "s3", "bucket": "bucket", "key": "a b/ä.tar"}),
        ("gs://bucket/a/", {"kind": "gcs", "bucket": "bucket", "key": "a"}),
        ("https://host:8/a%20b%3Fc", {"kind": "http", "key": "a b?c", "endpoint": "https://host:8"}),
        ("http://host", {"kind": "http", "endpoint": "http://host"}),
        ("memory://a/b", {"kind": "memory", "key": "a/b"}),
        ("file:///a/b", {"kind": "file", "key": "/a/b"}),
        (
            "abfss://box@lab.dfs.core.windows.net/a/b",
            {"kind": "azure", "bucket": "box", "key": "a/b", "endpoint": "https://lab.blob.core.windows.net"},
        ),
    ],
)
def test_urls_without_settings(url: str, expected: dict[str, Any]) -> None:
    assert found(url) == expected


def test_settings_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("s3://b", s3_b=StoreSettings(endpoint="http://minio:9/", anonymous=True, requester_pays=True)) == {
        "kind": "s3",
        "bucket": "b",
        "endpoint": "http://minio:9",
        "region": "us-east-1",
        "anonymous": True,
        "requester_pays": True,
    }
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "r1")
    assert found("s3://b") == {"kind": "s3", "bucket": "b", "endpoint": "http://one", "region": "r1"}
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://two")
    monkeypatch.setenv("AWS_REGION", "r2")
    assert found("s3://b") == {"kind": "s3", "bucket": "b", "endpoint": "http://two", "region": "r2"}
    own = found("s3://b", s3_b=StoreSettings(endpoint="http://three", region="r3"))
    assert (own["endpoint"], own["region"]) == ("http://three", "r3")


@pytest.mark.parametrize("scheme", ["az", "azure", "abfs", "abfss"])
def test_accounts_of_azure(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "lab")
    url = f"{scheme}://box/a"
    expected = {"kind": "azure", "bucket": "box", "key": "a"}
    assert found(url) == {**expected, "endpoint": "https://lab.blob.core.windows.net"}
    own = StoreSettings(endpoint="https://other.blob.core.windows.net/")
    settings = StorageSettings(stores={url: own})
    address = address_of(url, settings)
    assert address.store.endpoint == "https://other.blob.core.windows.net"
    assert open_store(address, url, 1).config["account_name"] == "other"
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:10000/emulated")
    assert open_store(address_of(url, StorageSettings()), url, 1).config["account_name"] == "emulated"
    monkeypatch.delenv("AZURE_STORAGE_ENDPOINT")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(
        ConfigError, match=rf"^{url}: the storage account is unknown; set AZURE_STORAGE_ACCOUNT_NAME, or"
    ):
        EPath(url).read_bytes()


@pytest.mark.parametrize(
    "variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]
)
def test_an_end_point_of_the_environment_must_be_a_url(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "localhost:5678")
    with pytest.raises(
        ConfigError, match=rf"^{variable} 'localhost:5678': expected a URL; write http://localhost:5678"
    ):
        found("az://b/k" if "AZURE" in variable else "s3://b/k")


def test_public_buckets_of_google_are_files_of_the_web() -> None:
    public = found("gs://b/a/c", gs_b=StoreSettings(anonymous=True))
    assert public == {"kind": "http", "key": "a/c", "endpoint": "https://storage.googleapis.com/b"}
    other = found("gs://b/a", gs_b=StoreSettings(anonymous=True, endpoint="http://gcs:1/"))
    assert other["endpoint"] == "http://gcs:1/b"


@pytest.mark.parametrize(
    ("url", "lists"),
    [("s3://b", True), ("gs://b", True), ("memory://", True), ("https://h/x", False), ("gs://open/x", False)],
)
def test_plain_web_servers_have_no_lists(url: str, lists: bool) -> None:
    assert has_lists(url, StorageSettings(stores={"gs://open": StoreSettings(anonymous=True)})) == lists


@pytest.mark.parametrize(
    ("name", "location", "url", "expected"),
    [
        ("msc://t", "s3://b/x", "msc://t/a", "s3 b x/a"),
        ("msc://t/", "s3://b/x/", "msc://t/a", "s3 b x/a"),
        ("msc://t", "s3://b", "msc://t", "s3 b "),
        ("msc://t", "s3://", "msc://t/b/a", "s3 b a"),
        ("s3://old", "s3://new/x", "s3://old/a", "s3 new x/a"),
        ("rclone://t", "file:///", "rclone://t/d/a", "file  /d/a"),
        ("rclone://t", "file:///d", "rclone://t/a", "file  /d/a"),
        ("data://t", "https://h/x", "data://t/a", "http  x/a"),
        ("data://t", "https://h/x%20", "data://t/%2e/a?", "http  x /%2e/a?"),
        ("data://t", "memory://x", "data://t/a", "memory  x/a"),
    ],
)
def test_other_names_stand_for_locations(name: str, location: str, url: str, expected: str) -> None:
    address = address_of(url, StorageSettings(stores={name: StoreSettings(location=location)}))
    assert f"{address.kind} {address.bucket} {address.key}" == expected


def test_settings_of_the_real_location_count_too() -> None:
    assert found(
        "msc://t/a",
        msc_t=StoreSettings(location="s3://b/x", endpoint="http://near"),
        s3_b=StoreSettings(endpoint="http://far", region="eu-1", location="s3://elsewhere"),
    ) == {"kind": "s3", "bucket": "b", "key": "x/a", "endpoint": "http://near", "region": "eu-1"}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://", "has no bucket; write s3://bucket/folder"),
        ("gs:///a", "has no bucket; write gs://bucket/folder"),
        (
            "data://w/a",
            r"data://w/a: unknown scheme; object stores are s3://, .*az://.* \(none now\); file:// is a local path$",
        ),
        ("dss://a@1/b", "set NVDATASET_CACHE_DIR to the folder that holds dss:// datasets; it is not set"),
        ("dss://a/b", "dss://a/b: has no version; write dss://name@version/path"),
        ("msc://t/a", r"has a profile 't'; add it there, or to .* `stores: \{'msc://t': \{location: 's3://bucket"),
        ("https://h/a?token=x", r"^https://h/a: web URLs must be plain paths"),
        ("https://h/a#b", r"^https://h/a: web URLs must be plain paths"),
    ],
)
def test_urls_that_name_no_store(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        found(url)


@pytest.mark.parametrize("name", ["endpoint", "region", "profile"])
def test_what_google_takes_from_the_environment_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"gs://b: the storage settings set a {name},.*remove it"):
        found("gs://b/a", gs_b=StoreSettings(**{name: "http://x"}))


# Profiles of the Multi-Storage Client


def msc(kind: str, credentials: dict[str, Any] | None = None, **options: Any) -> str:
    profile: dict[str, Any] = {"storage_provider": {"type": kind, "options": options}}
    return yaml.safe_dump(
        {"profiles": {"team": profile | ({"credentials_provider": credentials} if credentials else {})}}
    )


@pytest.mark.parametrize(
    ("text", "url", "expected"),
    [
        (
            msc("s3", base_path="bucket/folder/", endpoint_url="http://minio:9000", region_name="eu-1"),
            "msc://team/a",
            {"kind": "s3", "bucket": "bucket", "key": "folder/a", "endpoint": "http://minio:9000", "region": "eu-1"},
        ),
        (
            msc("s3", base_path="bucket", signature_version="UNSIGNED", profile_name="mine"),
            "rclone://team/a",
            {"kind": "s3", "bucket": "bucket", "key": "a", "profile": "mine", "anonymous": True},
        ),
        (msc("s8k", base_path=""), "msc://team/bucket/a", {"kind": "s3", "bucket": "bucket", "key": "a"}),
        (
            msc("gcs_s3", base_path="bucket"),
            "msc://team",
            {"kind": "s3", "bucket": "bucket", "endpoint": "https://storage.googleapis.com", "region": "us-east-1"},
        ),
        (
            msc("gcs", base_path="bucket", project_id="x", endpoint_url="http://x"),
            "msc://team/a",
            {"kind": "gcs", "bucket": "bucket", "key": "a"},
        ),
        (
            msc("azure", base_path="box/x", endpoint_url="https://lab.blob.core.windows.net"),
            "msc://team/a",
            {"kind": "azure", "bucket": "box", "key": "x/a", "endpoint": "https://lab.blob.core.windows.net"},
        ),
        (msc("file", base_path="/data/sets"), "msc://team/a", {"kind": "file", "key": "/data/sets/a"}),
        (msc("file", base_path="/"), "msc://team/a", {"kind": "file", "key": "/a"}),
    ],
)
def test_profiles_of_the_client(home: Path, text: str, url: str, expected: dict[str, Any]) -> None:
    put(home / ".msc_config.yaml", text)
    assert found(url) == expected


def test_settings_add_to_a_profile_and_variables_are_filled_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSC_CONFIG", str(home / "named.json"))
    monkeypatch.setenv("TEAM_BUCKET", "bucket")
    put(
        home / "named.json",
        json.dumps(yaml.safe_load(msc("s3", base_path="${TEAM_BUCKET}/x", endpoint_url="http://m"))),
    )
    assert found("msc://team/a", msc_team=StoreSettings(anonymous=True)) == {
        "kind": "s3",
        "bucket": "bucket",
        "key": "x/a",
        "endpoint": "http://m",
        "region": "us-east-1",
        "anonymous": True,
    }


def test_remotes_of_rclone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    put(home / "xdg/rclone/rclone.conf", "[team]\ntype = s3\nendpoint = minio:9000\nregion = eu-1\n")
    expected = {"kind": "s3", "bucket": "bucket", "key": "a", "endpoint": "https://minio:9000", "region": "eu-1"}
    assert found("rclone://team/bucket/a") == found("msc://team/bucket/a") == expected
    with pytest.warns(FutureWarning, match=r"rclone://team/b/\.\./a: rclone:// is deprecated, write msc:// instead"):
        assert str(EPath("rclone://team/b/../a")) == "msc://team/a"


@pytest.mark.parametrize("name", ["default", "__filesystem__"])
def test_the_profile_of_this_machine_needs_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "multistorageclient.config", None)
    assert str(EPath(f"msc://{name}/data")) == "/data"
    with pytest.raises(ConfigError, match=r"^reading msc://team needs .*energon-grain\[msc\]' .*, or set its location"):
        found("msc://team/a")


def test_datasets_of_the_service_lie_below_its_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVDATASET_CACHE_DIR", str(home))
    for name in ("name/1/x/b.txt", "name/1/a.txt"):
        put(home / name, name)
    folder = EPath("dss://name@1")
    assert (folder.display_name, str(folder.local_path())) == ("name@1", f"{home}/name/1")
    assert sorted(map(str, folder.glob("**/*.txt"))) == ["dss://name@1/a.txt", "dss://name@1/x/b.txt"]
    path = EPath("dss://name@1/y/../x") / "b.txt"
    assert str(path) == path.url == "dss://name@1/x/b.txt" == str(EPath(path)) == str(pickle.loads(pickle.dumps(path)))
    assert path.relative_to(folder) == "x/b.txt"
    assert path.parent == EPath("dss://name@1/x") == folder / "x"
    assert Path(path).read_text() == path.read_text() == "name/1/x/b.txt"
    with pytest.raises(ConfigError, match="has no version; write dss://name@version/path"):
        EPath("dss://name")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (msc("huggingface", base_path="x"), "'team' has type 'huggingface', not one of s3, .*; add it to the storage"),
        (
            "profiles: [do-not-tell",
            r"cannot read its configuration \(ValueError\); run `msc config validate` for details",
        ),
        ("profiles: {team: {do-not-tell: 3}}", r"cannot read its configuration \(RuntimeError\)"),
        (msc("s3", base_path="${DO_NOT_TELL}"), r"cannot read its configuration \(ValueError\)"),
        (msc("s3", {"type": "S3Credentials", "options": {}}, base_path="x"), r"configuration \(KeyError\)"),
    ],
)
def test_profiles_that_cannot_be_read(home: Path, text: str, said: str) -> None:
    put(home / ".msc_config.yaml", text)
    with pytest.raises(ConfigError, match=f"^msc://team: .*{said}") as failure:
        found("msc://team/x")
    assert "do-not-tell" not in "".join(traceback.format_exception(failure.value)).replace("_", "-").lower()


def test_keys_of_a_profile_are_sent(home: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of something else")
    options = {"base_path": bucket.name, "endpoint_url": bucket.server.endpoint}
    keys = {"access_key": "do-not-tell", "secret_key": "do-not-tell"}
    put(home / ".msc_config.yaml", msc("s3", {"type": "S3Credentials", "options": keys}, **options))
    EPath("msc://team/x").write_text("private")
    assert bucket.get("x") == b"private"
    address = address_of("msc://team/x", StorageSettings())
    sent = open_store(address, "", 1).credential_provider()
    assert (sent["access_key_id"], sent["token"]) == ("do-not-tell", None)
    assert "tell" not in repr(address)


def test_keys_of_other_profiles(home: Path) -> None:
    def keys(kind: str, credentials: str, **options: Any) -> dict[str, Any]:
        _profile.cache_clear()
        provider = {"type": credentials, "options": options}
        put(home / ".msc_config.yaml", msc(kind, provider, base_path="b", endpoint_url="https://lab.blob.x.net"))
        return dict(address_of("msc://team/x", StorageSettings()).keys)

    by_key = "DefaultEndpointsProtocol=https;AccountName=lab;AccountKey=a2V5=="
    assert keys("azure", "AzureCredentials", connection=by_key) == {"access_key": "a2V5=="}
    by_signature = "BlobEndpoint=https://x;SharedAccessSignature=sv=1&sig=a%3D"
    assert keys("azure", "AzureCredentials", connection=by_signature) == {"sas_token": "sv=1&sig=a%3D"}
    google = "GoogleServiceAccountCredentialsProvider"
    assert keys("gcs", google, file="/key.json") == {"service_account": "/key.json"}
    assert keys("gcs", google, info={"a": 1}) == {"service_account_key": '{"a":1}'}
    assert keys("azure", "DefaultAzureCredentials") == {}


# Sections of ~/.aws


@pytest.fixture
def aws(home: Path) -> Path:
    put(home / ".aws/credentials", f"[default]\n{KEYS}\n[lab]\n{KEYS}aws_session_token = t\n")
    put(
        home / ".aws/config",
        "[default]\nregion = eu-1\n[profile role]\nrole_arn = arn\nsource_profile = lab\n"
        "[profile work]\nsso_session = x\ns3 =\n  aws_access_key_id = no\n",
    )
    return home / ".aws"


def section(profile: str | None = None) -> str | None:
    chosen = aws_section("s3://bucket", StoreSettings(profile=profile))
    return chosen and chosen[0]


def test_which_section_counts(aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [section(name) for name in ("lab", "role", "work", None)] == ["lab", "role", "work", "default"]
    put(aws / "config", (aws / "config").read_text() + f"[profiler]\n{KEYS}[profile  two words]\n{KEYS}")
    assert [section(name) for name in ("profiler", "two words")] == ["profiler", "two words"]
    assert "aws_access_key_id" not in (aws_section("", StoreSettings(profile="work")) or ("", {}))[1]
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert section() == "lab"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    with pytest.raises(ConfigError, match=r"^s3://bucket: AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not"):
        section()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert (section(), section("role")) == (None, "role")
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name)
    (aws / "credentials").unlink()
    assert section() is None  # a default that only names a region
    put(aws / "own", f"[mine]\n{KEYS}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(aws / "own"))
    assert (section("mine"), section()) == ("mine", None)


def test_sections_that_are_not_there_or_damaged(aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^s3://bucket: the profile 'nosuch' of the storage settings has no section in ~/.aws/credentials or "
        r"~/.aws/config; there are: default, lab, role, work$",
    ):
        section("nosuch")
    monkeypatch.setenv("AWS_PROFILE", "nosuch")
    with pytest.raises(ConfigError, match=r"^s3://bucket: the profile 'nosuch' of AWS_PROFILE has no section"):
        section()
    put(aws / "config", "do-not-tell")
    with pytest.raises(
        ConfigError, match=r"^s3://bucket: ~/.aws/config: not a valid AWS profile file \(Missing"
    ) as failure:
        section()
    assert "tell" not in str(failure.value)


def test_what_renews_a_section_is_read_again(aws: Path) -> None:
    store = StoreSettings(profile="lab", region="r")
    address = address_of("s3://bucket", StorageSettings(stores={"s3://bucket": store}))
    ask = open_store(address, "s3://bucket", 1).credential_provider
    first = ask()
    assert (first["access_key_id"], first["token"]) == ("k", "t")
    assert first["expires_at"] is not None
    for half_written in ("", "[la", "[lab]\naws_access_key_id = new\n"):
        put(aws / "credentials", half_written)
        assert (ask()["access_key_id"], ask()["token"]) == ("k", "t")
    put(aws / "credentials", "[lab]\naws_access_key_id = new\naws_secret_access_key = s\n")
    assert (ask()["access_key_id"], ask()["token"], ask()["expires_at"]) == ("new", None, None)


@pytest.mark.parametrize("profile", ["lab", None])
def test_a_store_is_read_with_a_section(
    aws: Path, bucket: Bucket, profile: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)  # which the server's own fixture sets
    bucket.put("x", b"private")
    use_storage(StorageSettings(stores={bucket.url: StoreSettings(profile=profile)}, attempts=1))
    assert (EPath(bucket.url) / "x").read_bytes() == b"private"
    assert capfd.readouterr().err == ""


def test_a_section_without_keys_is_boto3s(aws: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    bucket.put("x", b"private")
    keys = {"Version": 1, "AccessKeyId": "k", "SecretAccessKey": "s"}
    put(aws / "say.json", json.dumps(keys))
    put(aws / "config", f"[profile program]\ncredential_process = cat {aws}/say.json\n")
    use_storage(StorageSettings(stores={bucket.url: StoreSettings(profile="program")}, attempts=1))
    assert (EPath(bucket.url) / "x").read_bytes() == b"private"
    use_storage(StorageSettings(stores={bucket.url: StoreSettings(profile="program", region="other")}, attempts=1))
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=rf"^{bucket.url}/x: .* 'program' .*energon-grain\[aws\]"):
        (EPath(bucket.url) / "x").read_bytes()


@pytest.mark.parametrize(
    ("path", "scheme"),
    [
        ("s3://bucket", "s3"),
        ("GS://bucket/a", "gs"),
        ("https://host:1/a?b", "https"),
        ("file:///a", "file"),
        ("/data/s3://x", None),
        ("s3:/bucket", None),
        ("data/set", None),
        ("", None),
        ("C:\\data", None),
        ("://a", None),
    ],
)
def test_a_url_is_told_by_its_protocol(path: str, scheme: str | None) -> None:
    assert scheme_of(path) == scheme
    assert is_url(path) == (scheme is not None)


@pytest.mark.parametrize(
    ("written", "folder", "found"),
    [
        ("a", "/data", "/data/a"),
        ("../a", "/data/sets", "/data/a"),
        ("./a//b/.", "/data", "/data/a/b"),
        ("/x/../a", "/data", "/a"),
        ("a", "s3://bucket", "s3://bucket/a"),
        ("../a", "s3://bucket/sets", "s3://bucket/a"),
        (".", "s3://bucket/sets", "s3://bucket/sets"),
        ("a b/ä", "gs://bucket", "gs://bucket/a b/ä"),
        ("/data/a", "s3://bucket/sets", "/data/a"),
        ("s3://other/a/", "/data", "s3://other/a"),
        ("gs://other/a", "s3://bucket", "gs://other/a"),
        ("file:///data/a", "s3://bucket", "/data/a"),
        ("file:///data/../a", "/x", "/a"),
        ("msc://default/data/a", "s3://bucket", "/data/a"),
        ("a", "memory://", "memory://a"),
    ],
)
def test_relative_paths_resolve_where_they_are_written(written: str, folder: str, found: str) -> None:
    assert absolute(written, folder) == found


def test_what_programs_give_is_text_or_a_path(tmp_path: Path) -> None:
    assert located("s3://bucket/a//") == "s3://bucket/a"
    assert located("memory://") == "memory://"
    assert located("a/") == "a/"
    assert located(PurePosixPath("/a/b")) == "/a/b"
    assert located(f"file://{tmp_path}/x/") == f"{tmp_path}/x"
    assert located("file://a") == os.path.abspath("a")
    assert pickle.loads(pickle.dumps(located("FILE:///a"))) == "/a"


@pytest.mark.parametrize(
    ("location", "name", "folder"),
    [
        ("/data/a.tar", "a.tar", "/data"),
        ("/data/a/", "a", "/data/a"),
        ("s3://bucket/a/b.tar", "b.tar", "s3://bucket/a"),
        ("s3://bucket/a/", "a", "s3://bucket"),
    ],
)
def test_names_and_folders(location: str, name: str, folder: str) -> None:
    assert (name_of(location), folder_of(location)) == (name, folder)


@pytest.mark.parametrize("folder", ["/data", "/data/", "s3://bucket", "s3://bucket/", "memory://"])
def test_what_is_joined_comes_apart_again(folder: str) -> None:
    joined = join(folder, "parts/a.tar")
    assert joined.endswith("parts/a.tar")
    assert name_of(joined) == "a.tar"
    assert join(folder_of(folder_of(joined)), "parts/a.tar") == joined or folder == "memory://"


def test_names_in_urls_of_the_web_are_encoded() -> None:
    assert join("https://h/a%20b/", "c d/e?.tar") == "https://h/a%20b/c%20d/e%3F.tar"
    assert join("s3://b/a b", "c d?.tar") == "s3://b/a b/c d?.tar"


def test_a_relative_path_stays_in_its_bucket() -> None:
    assert absolute("../../b", "s3://bucket/a/c") == "s3://bucket/b"
    assert absolute("../..", "s3://bucket/a/c") == "s3://bucket"
    assert absolute("a", "s3://bucket") == "s3://bucket/a"
    with pytest.raises(ConfigError, match=r"^s3://bucket/\.\./b: `..` leads out of the bucket"):
        absolute("../b", "s3://bucket")
    with pytest.raises(ConfigError, match=r"^https://host/a/../../b: `..` leads out"):
        absolute("../../b", "https://host/a")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/data/a", None),
        ("c:/data", None),
        ("s3:/bucket/a", "s3://bucket/a"),
        (Path("s3://bucket/a"), "s3://bucket/a"),
        ("/home/me/gs:/bucket", "gs://bucket"),
    ],
)
def test_paths_that_were_meant_as_urls(path: str | Path, meant: str | None) -> None:
    advice = "" if meant is None else f". Did you mean {meant}? (pathlib removes slashes: pass a str)"
    assert no_such_path(path) == f"{path}: no such file or folder{advice}"


@pytest.mark.parametrize("path", ["data/*", "data/lines-{00..07}.jsonl"])
def test_a_pattern_is_told_what_patterns_are_expanded(path: str) -> None:
    assert no_such_path(path).endswith("Patterns must end in .tar, .parquet or .arrow; else pass the folder")


def test_files_by_their_ending(tmp_path: Path) -> None:
    assert is_file_of("missing.yaml", METADATASET_ENDINGS)
    assert is_file_of("s3://bucket/mix.yml", METADATASET_ENDINGS)
    assert is_file_of("lines.jsonl", ".jsonl")
    assert not is_file_of("lines.jsonl", METADATASET_ENDINGS)
    folder = tmp_path / "shards.yaml"
    folder.mkdir()
    assert not is_file_of(str(folder), METADATASET_ENDINGS), "a folder that is called like a file"
