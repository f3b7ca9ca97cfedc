"""What failures of a store say: those of a real server, and messages as TensorStore 0.1.86 wrote them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from object_server import Bucket, Fault

from energon_grain.errors import ConfigError, ReadError
from energon_grain.storage.object_client import ObjectClient, ObjectRange
from energon_grain.storage.object_error import ObjectError, object_error
from energon_grain.storage.storage_settings import StorageSettings, StoreSettings

S3 = {"driver": "s3", "bucket": "team", "endpoint": "http://minio:9000", "aws_region": "us-east-1"}
CUT = "Requested byte range [5, 15) was not satisfied by response with byte range [5, 15)"
REQUEST = "[x-amzn-requestid='u467Ye8bONgLzZq99oMxooPovueH3NU57TdohNZphQ']"


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


@pytest.mark.parametrize(
    ("text", "spec", "said", "passing"),
    [
        (
            f"PERMISSION_DENIED: SignatureDoesNotMatch: The request signature does not match {REQUEST} "
            "[http_response_body='<?xml version=\\\"1.0\\\"?><Error><Code>SignatureDoesNotMatch</Code>'] "
            "[http_response_code='403']",
            {**S3, "aws_credentials": {"type": "profile", "profile": "lab"}},
            "access denied: SignatureDoesNotMatch: The request signature does not match (HTTP 403); check the "
            "credentials of the profile 'lab' in ~/.aws",
            False,
        ),
        (
            f"PERMISSION_DENIED: Unknown {REQUEST} [http_response_body='<Error><Code>AccessDenied</Code><Message>No"
            "</Message></Error>'] [http_response_code='403']",
            S3,
            "access denied: AccessDenied: No (HTTP 403); no credentials were found",
            False,
        ),
        ("UNAUTHENTICATED: Sign in [http_response_code='401']", {"driver": "gcs"}, "GOOGLE_APPLICATION_CRED", False),
        (
            "PERMISSION_DENIED: Forbidden [HTTP code 403]",
            {"driver": "http", "base_url": "http://h"},
            "to everybody",
            False,
        ),
        (
            "NOT_FOUND: The specified bucket does not exist.",
            {"driver": "gcs", "bucket": "b"},
            "there is no bucket 'b' at Goo",
            False,
        ),
        (
            "PERMISSION_DENIED: InvalidAccessKeyId: No such key [http_response_code='403']",
            {**S3, "aws_credentials": {"type": "environment"}},
            "InvalidAccessKeyId: No such key (HTTP 403); check the credentials in AWS_ACCESS_KEY_ID",
            False,
        ),
        ("INTERNAL: Failed to create credentials providerx", S3, "Failed to create credentials", False),
        ("INTERNAL: Failed to get credentials from provider: timed out", S3, "timed out; no credentials", True),
        ("ABORTED: All 0 retry attempts failed: CURL error Timeout [curl_code='28']", S3, "CURL error Timeout; ", True),
        ("OUT_OF_RANGE: Requested byte range", S3, "Requested byte range; ", False),
        ("OUT_OF_RANGE: Odd [http_response_body='<ActualObjectSize>777</Actual']", S3, "it has 777 bytes; ", False),
        ("INTERNAL: Odd", S3, "Odd; ", True),
        (
            "FAILED_PRECONDITION: Unknown [HTTP code 302]",
            {"driver": "http", "base_url": "http://h"},
            "[HTTP code 302]; redirects are not followed",
            False,
        ),
        (f"OUT_OF_RANGE: {CUT} and total size 20", S3, "the answer had fewer bytes than it said; ", True),
        (f"OUT_OF_RANGE: {CUT} and total size 14", S3, "it has 14 bytes; ", False),
    ],
)
def test_messages(text: str, spec: dict[str, Any], said: str, passing: bool) -> None:
    error = object_error(ValueError(text), spec)
    assert said in f"{error}; {error.way_out}"
    assert (error.passing, error.out_of_range) == (passing, text.startswith("OUT_OF_RANGE") and not passing)
    assert "requestid" not in str(error)


def test_it_is_the_same_in_another_process() -> None:
    error = ObjectError("said", passing=True, out_of_range=True, way_out="do")
    copy = pickle.loads(pickle.dumps(error))
    assert vars(copy) == vars(error)
    assert str(copy) == "said"
