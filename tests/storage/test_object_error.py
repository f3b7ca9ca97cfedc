"""What failures of a store say: those of a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from object_server import Bucket, Fault

from energon_grain import StorageSettings, StoreSettings
from energon_grain.errors import ConfigError, ReadError
from energon_grain.storage.object_client import ObjectClient, ObjectRange


def client(**stores: StoreSettings) -> ObjectClient:
    settings = {name.replace("_", "://"): store for name, store in stores.items()}
    return ObjectClient(StorageSettings(stores=settings, attempts=2, first_pause_s=0.01))


def refused(ask: Any, url: str) -> str:
    with pytest.raises(ReadError) as failure:
        ask(url)
    return str(failure.value)


def test_a_bucket_that_is_not_there(bucket: Bucket) -> None:
    bucket.server.reset()
    way_out = "check its name, its region and the end point (`endpoint` of this store in the storage settings, else "
    for ask, doing in ((client().list, "listing"), (lambda url: client().write(url, b""), "writing")):
        assert refused(ask, "s3://teem/data") == (
            f"{doing} s3://teem/data failed: there is no bucket 'teem' at {bucket.server.endpoint} (not tried again); "
            f"{way_out}AWS_ENDPOINT_URL)"
        )
    assert len(bucket.server.requests("teem")) == 1
    assert len(bucket.server.requests("teem", "PUT")) == 1


def test_nobody_at_the_end_point(bucket: Bucket) -> None:
    lost = client(**{bucket.url.replace("://", "_"): StoreSettings(endpoint="http://127.0.0.1:9")})
    said = refused(lost.list, bucket.url)
    assert f"listing {bucket.url} failed: cannot connect to http://127.0.0.1:9: nothing answers there (2 att" in said
    assert said.endswith(
        "check the end point (`endpoint` of this store in the storage settings, else AWS_ENDPOINT_URL)"
    )
    said = refused(lambda url: lost.read(ObjectRange(url)), "http://127.0.0.1:9/x")
    assert "cannot connect to http://127.0.0.1:9: nothing answers there (2 att" in said
    assert said.endswith("check the network, and the address")
    far = client(s3_far=StoreSettings(endpoint="http://nobody.invalid"))
    assert "cannot connect to http://nobody.invalid: its name is not known" in refused(far.list, "s3://far")


def test_credentials_that_are_refused(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("x", b"private")
    name = bucket.url.replace("://", "_")

    def read(store: StoreSettings) -> str:
        return refused(lambda url: client(**{name: store}).read(ObjectRange(url)), f"{bucket.url}/x")

    assert read(StoreSettings(anonymous=True)) == (
        f"reading {bucket.url}/x failed: access denied: Forbidden (HTTP 403) (not tried again); no credentials are "
        "sent, as the storage settings say `anonymous: true` of it: take that out"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    said = read(StoreSettings())
    assert "access denied: Forbidden (HTTP 403) (not tried again); no credentials were found in the" in said
    assert said.endswith(
        "if it has one; give them there, or set `anonymous: true` for it in the storage settings if it is public"
    )


def test_a_bucket_of_no_possible_name() -> None:
    with pytest.raises(ConfigError, match=r'^s3://Te/x: Invalid S3 bucket name: "Te"$'):
        client().list("s3://Te/x")


def test_what_the_store_said_is_kept(bucket: Bucket) -> None:
    bucket.put("x", b"1")
    bucket.server.inject(Fault("status", status=503, times=None))
    said = refused(lambda url: client().read(ObjectRange(url)), f"{bucket.url}/x")
    assert f"reading {bucket.url}/x failed: SlowDown (HTTP 503) (2 attempts" in said
