"""Failures of requests to stores: what TensorStore says of them, in our words and with the way out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http.client import responses
from typing import Any

_FINAL = (
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "INVALID_ARGUMENT",
    "FAILED_PRECONDITION",
    "NOT_FOUND",
    "UNIMPLEMENTED",
)
"""Codes of failures that another attempt would meet again."""
_CODE = re.compile(r"([A-Z][A-Z_]+): ")
_RETRIES = re.compile(r"All \d+ retry attempts failed: ")
_ATTRIBUTE = re.compile(r"\s*\[([\w-]+)='((?:[^'\\]|\\.)*)'\]")
_XML = re.compile(r"<(Code|Message)>([^<]*)</")
_SIZE = re.compile(r"(?:total size |value of size |<ActualObjectSize>)(\d+)")
_ASKED_OF = re.compile(r"Requested byte range \[\d+, (\d+)\) .*total size (\d+)")
SIZE_TOLD = re.compile(r"it has (\d+) bytes")
"""What is said of a range behind the end of an object, where the store tells its size."""
_MESSAGE_CHARACTERS = 300
GIVEN_UP = "nobody waits for it any more"
"""What is said of a request that ends because the program or the reader does."""
_NO_CONNECTION = ("6", "7")
"""What curl calls a host that is not found, and one that does not answer."""


class ObjectError(Exception):
    """A request failed.

    Attributes:
        message: What happened.
        passing: Whether the same request may succeed in a while.
        out_of_range: Whether the object ends before the range does.
        way_out: What to do about it; empty: nothing is known.
    """

    def __init__(self, message: str, passing: bool, out_of_range: bool = False, way_out: str = "") -> None:
        super().__init__(message, passing, out_of_range, way_out)  # what it is made of again in another process
        self.message = message
        self.passing = passing
        self.out_of_range = out_of_range
        self.way_out = way_out

    def __str__(self) -> str:
        return self.message


def object_error(error: Exception, spec: Mapping[str, Any]) -> ObjectError:
    """Say what an error of TensorStore means.

    Args:
        error: As it was raised.
        spec: The store, as `kvstore_spec` gives it.
    """
    text = " ".join(str(error).split())
    found = _CODE.match(text)
    code = "" if found is None else found[1]
    text = _RETRIES.sub("", text[len(code) + 2 :] if code else text, count=1)
    if code == "OUT_OF_RANGE":
        asked = _ASKED_OF.search(text)
        if asked is not None and int(asked[1]) <= int(asked[2]):
            return ObjectError("the answer had fewer bytes than it said", passing=True)
        size = _SIZE.search(text)
        message = _short(_ATTRIBUTE.sub("", text)) if size is None else f"it has {size[1]} bytes"
        return ObjectError(message, passing=False, out_of_range=True)
    attributes = dict(_ATTRIBUTE.findall(text))
    text = _ATTRIBUTE.sub("", text)
    if _is_no_bucket(text):
        return ObjectError(
            f"there is no bucket {spec.get('bucket', '')!r} at {_place(spec)}",
            passing=False,
            way_out=f"check its name{', its region' if spec['driver'] == 's3' else ''} and {_END_POINT}",
        )
    if attributes.get("curl_code") in _NO_CONNECTION:
        why = "its name is not known" if attributes["curl_code"] == "6" else "nothing answers there"
        way_out = f"check {_END_POINT}" if spec["driver"] == "s3" else "check the network, and the address"
        return ObjectError(f"cannot connect to {_place(spec)}: {why}", passing=True, way_out=way_out)
    if text.startswith(("Failed to create credentials", "Failed to get credentials")):
        # What is there and gave none for now, such as a role, may do so in a while.
        passing = text.startswith("Failed to get")
        return ObjectError(_short(text), passing=passing, way_out=_credentials_way_out(spec))
    status = attributes.get("http_response_code", "")
    message = _short(_told(text, attributes, status))
    if code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return ObjectError(f"access denied: {message}", passing=False, way_out=_credentials_way_out(spec))
    # What has no code was said of the store's description, before any request.
    lasting = isinstance(error, NotImplementedError) or code in _FINAL or not code
    way_out = ""
    if "was ignored by server" in text:
        way_out = "this web server sends only whole files, let one that sends parts of them serve the data"
    if "[HTTP code 30" in text:
        way_out = "redirects are not followed: give the URL that this one leads to"
    return ObjectError(message, passing=not lasting, way_out=way_out)


_END_POINT = "the end point (`endpoint` of this store in the storage settings, else AWS_ENDPOINT_URL)"
_IF_PUBLIC = "set `anonymous: true` for it in the storage settings if it is public"


def _is_no_bucket(text: str) -> bool:
    return text.startswith("NoSuchBucket") or "specified bucket does not exist" in text


def _place(spec: Mapping[str, Any]) -> str:
    """The service that a store lies in."""
    if spec["driver"] == "s3":
        region = spec.get("aws_region")
        return spec.get("endpoint") or ("Amazon S3" if region is None else f"Amazon S3 in {region}")
    return spec.get("base_url") or "Google Cloud Storage"


def _told(text: str, attributes: Mapping[str, str], status: str) -> str:
    """What the store said: the words of its answer, else the name of its status."""
    if text in ("", "Unknown"):
        answer = dict(_XML.findall(attributes.get("http_response_body", "")))
        text = ": ".join(answer[part] for part in ("Code", "Message") if part in answer)
    if not status.isdecimal():
        return text
    return f"{text or responses.get(int(status), '')} (HTTP {status})"


def _short(text: str) -> str:
    return text[:_MESSAGE_CHARACTERS]


def _credentials_way_out(spec: Mapping[str, Any]) -> str:
    """Which credentials were sent, and what to do about them."""
    if spec["driver"] == "gcs":
        return f"check GOOGLE_APPLICATION_CREDENTIALS, or log in with gcloud, or {_IF_PUBLIC}"
    if spec["driver"] != "s3":
        return "no credentials are sent to web servers: let this one serve the files to everybody"
    credentials: Mapping[str, str] = spec.get("aws_credentials", {})
    if not credentials:
        return (
            "no credentials were found in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or in ~/.aws, so "
            f"this machine's role counted, if it has one; give them there, or {_IF_PUBLIC}"
        )
    if credentials["type"] == "anonymous":
        return "no credentials are sent, as the storage settings say `anonymous: true` of it: take that out"
    if credentials["type"] == "environment":
        return f"check the credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or {_IF_PUBLIC}"
    return f"check the credentials of the profile {credentials['profile']!r} in ~/.aws, or {_IF_PUBLIC}"
