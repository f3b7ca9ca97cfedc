"""Credentials out of `~/.aws`: which section is taken, and that a store is read with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from object_server import Bucket

from energon_grain.errors import ConfigError
from energon_grain.storage.aws_profiles import aws_credentials
from energon_grain.storage.object_client import ObjectClient, ObjectRange
from energon_grain.storage.storage_settings import StorageSettings, StoreSettings

URL = "s3://bucket"
KEYS = "aws_access_key_id = k\naws_secret_access_key = s\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "PROFILE", "SHARED_CREDENTIALS_FILE", "CONFIG_FILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    (tmp_path / ".aws").mkdir()
    paths = {"credentials_file": tmp_path / ".aws/credentials", "config_file": tmp_path / ".aws/config"}
    paths["credentials_file"].write_text(f"[default]\n{KEYS}\n[lab]\n{KEYS}")
    paths["config_file"].write_text(
        "[default]\nregion = eu-1\n[profile role]\nrole_arn = arn\nsource_profile = lab\n"
        "[profile work]\nsso_session = x\ns3 =\n  aws_access_key_id = no\n"
    )
    return {file: str(path) for file, path in paths.items()}


def test_sections_that_are_named(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lab", "role"):
        assert aws_credentials(URL, name) == {"type": "profile", "profile": name, **files}
    assert aws_credentials(URL, "work") == {"type": "default", "profile": "work"}
    assert aws_credentials(URL, None) == {"type": "profile", "profile": "default", **files}
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert aws_credentials(URL, None) == {"type": "profile", "profile": "lab", **files}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    with pytest.raises(ConfigError, match=r"^s3://bucket: AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not"):
        aws_credentials(URL, None)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert aws_credentials(URL, None) == {"type": "environment"}
    assert aws_credentials(URL, "role") == {"type": "profile", "profile": "role", **files}


def test_files_elsewhere_or_missing(files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.unlink(files["config_file"])
    assert aws_credentials(URL, "lab") == {"type": "profile", "profile": "lab", **files, "config_file": os.devnull}
    (tmp_path / "own").write_text(f"[mine]\n{KEYS}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "own"))
    found = aws_credentials(URL, "mine")
    assert found is not None
    assert found["credentials_file"] == str(tmp_path / "own")
    assert aws_credentials(URL, None) is None


def test_a_section_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^s3://bucket: the profile 'nosuch' of the storage settings has no section in ~/.aws/credentials or "
        r"~/.aws/config; there are: default, lab, role, work$",
    ):
        aws_credentials(URL, "nosuch")
    monkeypatch.setenv("AWS_PROFILE", "nosuch")
    with pytest.raises(ConfigError, match=r"^s3://bucket: the profile 'nosuch' of AWS_PROFILE has no section"):
        aws_credentials(URL, None)


def test_a_file_is_read_again_when_it_has_changed(files: dict[str, str]) -> None:
    assert aws_credentials(URL, "lab") is not None
    Path(files["credentials_file"]).write_text(f"[other]\n{KEYS}")
    os.utime(files["credentials_file"], ns=(1, 1))
    with pytest.raises(ConfigError, match="there are: default, other, role, work"):
        aws_credentials(URL, "lab")


@pytest.mark.parametrize("profile", ["lab", None])
def test_a_store_is_read_with_them(
    bucket: Bucket, profile: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)  # which the server's own fixture sets
    bucket.put("x", b"private")
    client = ObjectClient(StorageSettings(stores={bucket.url: StoreSettings(profile=profile)}, attempts=1))
    found = client.read(ObjectRange(f"{bucket.url}/x"))
    assert found is not None
    assert found.data == b"private"
    assert capfd.readouterr().err == ""
