"""What `msc://`, `rclone://` and `dss://` stand for, by the files that configure other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from energon_grain.errors import ConfigError
from energon_grain.storage.profiles import profile_of
from energon_grain.storage.storage_settings import StoreSettings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "MSC_CONFIG", "RCLONE_CONFIG", "NVDATASET_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def msc(kind: str, **options: Any) -> str:
    provider = {"type": kind, "options": options} if options else {"type": kind}
    return yaml.safe_dump({"profiles": {"team": {"storage_provider": provider}}})


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            msc("s3", base_path="bucket/folder/", endpoint_url="http://minio:9000", region_name="eu-1"),
            StoreSettings(location="s3://bucket/folder", endpoint="http://minio:9000", region="eu-1"),
        ),
        (msc("s3", base_path="bucket", signature_version="UNSIGNED"), "s3 anonymous"),
        (msc("s3", base_path="bucket", profile_name="mine"), StoreSettings(location="s3://bucket", profile="mine")),
        (msc("s8k", base_path="bucket"), StoreSettings(location="s3://bucket")),
        (msc("s3"), StoreSettings(location="s3://")),
        (msc("gcs", base_path="bucket", project_id="x"), StoreSettings(location="gs://bucket")),
        (msc("gcs", base_path="bucket", endpoint_url="http://x"), StoreSettings(location="gs://bucket")),
        (msc("file", base_path="/data/sets"), StoreSettings(location="file:///data/sets")),
        (msc("file", base_path="/"), StoreSettings(location="file:///")),
    ],
)
def test_profiles_of_the_client(home: Path, text: str, expected: StoreSettings | str) -> None:
    put(home / ".msc_config.yaml", text)
    if expected == "s3 anonymous":
        expected = StoreSettings(location="s3://bucket", anonymous=True)
    assert profile_of("msc://team/a/b") == ("msc://team", expected)
    assert profile_of("rclone://team/a/b") == ("rclone://team", expected)
    assert profile_of("msc://team") == ("msc://team", expected)


def test_variables_are_filled_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home / ".msc_config.yaml", msc("s3", base_path="${TEAM_BUCKET}/x", endpoint_url="$TEAM_URL"))
    monkeypatch.setenv("TEAM_BUCKET", "bucket")
    monkeypatch.setenv("TEAM_URL", "http://minio")
    assert profile_of("msc://team")[1] == StoreSettings(location="s3://bucket/x", endpoint="http://minio")


def test_the_first_file_of_the_client_that_there_is_counts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def location() -> str | None:
        return profile_of("msc://team")[1].location

    put(home / ".config/msc/config.json", json.dumps(yaml.safe_load(msc("s3", base_path="d"))))
    assert location() == "s3://d"
    put(home / ".msc_config.json", json.dumps(yaml.safe_load(msc("s3", base_path="c"))))
    assert location() == "s3://c"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    put(home / "xdg/msc/config.yaml", msc("s3", base_path="b"))
    assert location() == "s3://b"
    monkeypatch.setenv("MSC_CONFIG", str(home / "named.yaml"))
    put(home / "named.yaml", msc("s3", base_path="a"))
    assert location() == "s3://a"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "type = s3\nprovider = Minio\nendpoint = http://minio:9000\nregion = eu-1\nsecret_access_key = 100%x",
            StoreSettings(location="s3://", endpoint="http://minio:9000", region="eu-1"),
        ),
        ("type = s3\nendpoint = minio:9000", StoreSettings(location="s3://", endpoint="https://minio:9000")),
        ("type = s3\nbase_path = bucket/x\nprofile = mine", StoreSettings(location="s3://bucket/x", profile="mine")),
        ("type = google cloud storage\nanonymous = true", StoreSettings(location="gs://", anonymous=True)),
        ("type = google cloud storage\nanonymous = false", StoreSettings(location="gs://")),
        ("type = local", StoreSettings(location="file:///")),
    ],
)
def test_remotes_of_rclone(home: Path, text: str, expected: StoreSettings) -> None:
    put(home / ".config/rclone/rclone.conf", f"[other]\ntype = drive\n\n[team]\n{text}\n")
    assert profile_of("rclone://team/bucket/a") == ("rclone://team", expected)
    assert profile_of("msc://team/bucket/a") == ("msc://team", expected)


def test_the_clients_file_comes_before_that_of_rclone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RCLONE_CONFIG", str(home / "named.conf"))
    put(home / "named.conf", "[team]\ntype = s3\n\n[other]\ntype = local\n")
    put(home / ".msc_config.yaml", msc("gcs"))
    assert profile_of("rclone://team")[1].location == "gs://"
    assert profile_of("rclone://other")[1].location == "file:///"


@pytest.mark.parametrize("name", ["default", "__filesystem__"])
def test_the_profile_of_this_machine_needs_no_file(name: str) -> None:
    assert profile_of(f"msc://{name}/data") == (f"msc://{name}", StoreSettings(location="file:///"))


def test_datasets_of_the_service_lie_below_its_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="NVDATASET_CACHE_DIR names, which is not set"):
        profile_of("dss://name@1/x")
    monkeypatch.setenv("NVDATASET_CACHE_DIR", str(home))
    assert profile_of("dss://name@1/x") == ("dss://name@1", StoreSettings(location=f"file://{home}/name/1"))
    for url in ("dss://name/x", "dss://@1/x", "dss://name@/x"):
        with pytest.raises(ConfigError, match=rf"{url}: write dss://name@version/path"):
            profile_of(url)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (".msc_config.yaml", msc("s3").replace("team", "other"), "no configuration of .* has a profile 'team'; add it"),
        (".msc_config.yaml", msc("azure"), r"\.msc_config.yaml: profile 'team' is of type 'azure'; read are s3, .*add"),
        (".msc_config.yaml", "profiles: [", "not a configuration of the Multi-Storage Client"),
        (".msc_config.yaml", "profiles: {team: {}}", "not a configuration of the Multi-Storage Client: "),
        (".msc_config.yaml", "profiles: 3", "not a configuration of the Multi-Storage Client"),
        (".msc_config.yaml", "", "no configuration of"),
        (".rclone.conf", "[team]\ntype = drive", "type 'drive'"),
        (".rclone.conf", "[team]\nx = 1", "type ''"),
        (".rclone.conf", "[other]\ntype = s3", "has a profile 'team'"),
        (".rclone.conf", "no section", "not a configuration of rclone"),
    ],
)
def test_what_is_wrong_says_what_to_do(home: Path, file: str, text: str, said: str) -> None:
    put(home / file, text)
    with pytest.raises(ConfigError, match=said):
        profile_of("msc://team/x")


def test_no_file_at_all_says_where_one_could_be() -> None:
    with pytest.raises(ConfigError, match=r"stores: \{'rclone://team': \{location: 's3://bucket/folder'\}\}"):
        profile_of("rclone://team/x")
