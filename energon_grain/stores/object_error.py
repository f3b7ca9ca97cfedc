# SPDX-License-Identifier: Apache-2.0
"""Failures of requests to stores: a clear message, advice, and whether a retry may succeed."""

from __future__ import annotations

import contextlib
import re
import urllib.request
from collections.abc import Generator
from http.client import HTTPException
from urllib.parse import urlencode

from energon_grain.stores.addresses import NO_HOST, Address

HTTP_STATUS = re.compile(r"status code: (\d+) ([^:\n]*)(.*)", re.DOTALL)
"""The end of obstore's message for an HTTP error response."""
_REQUEST = re.compile(r"^.*Error performing \w+ \S+ in \S+ - |^Generic \w+ error: ")
_XML = re.compile(r"<(Code|Message)>([^<]*)</")
_MESSAGE_CHARACTERS = 300
_CHECKED_BYTES = 1 << 16
BUSY = (408, 429)
"""Status codes that ask to retry later; other codes from 300 to 499 are permanent."""
_IDENTITY = "http://169.254.169.254/"
"""Service that returns the identity of a cloud machine."""

_PERMANENT = (
    (
        f"                {NO_HOST},",
        "{} redirects to another host, which would receive credentials; the redirect is not followed",
        "if that host is right, set it as `endpoint` in the storage settings; also check the region of the bucket",
    ),
    (
        "inner: BareRedirect",
        "{} redirects without a location, as it does for a bucket in another region",
        "set the bucket's region in the storage settings, or in AWS_REGION",
    ),
    ("TooLarge", "the response headers of {} are too large", ""),
    ("InvalidCertificate", "no secure connection to {}: certificate rejected", ""),
)
"""Permanent failures: text in obstore's details, message, advice."""


class ObjectError(Exception):
    """A request failed.

    Attributes:
        passing: Whether a retry may succeed.
        out_of_range: Whether the object is shorter than the range.
        way_out: Advice; empty if there is none.
        wait_s: Delay that the store requests, in seconds.
        unreachable: Whether there was no response at all: unknown host name, or nothing listens.
    """

    def __init__(
        self,
        message: str,
        temporary: bool,
        out_of_range: bool = False,
        advice: str = "",
        wait_s: float = 0.0,
        unreachable: bool = False,
    ) -> None:
        super().__init__(message)
        self.temporary = temporary
        self.out_of_range = out_of_range
        self.advice = advice
        self.wait_s = wait_s
        self.unreachable = unreachable


def shortened(text: str) -> str:
    """Shorten a server's text for a message."""
    return " ".join(text.split())[:_MESSAGE_CHARACTERS]


def is_no_bucket(text: str) -> bool:
    """Whether obstore reports a missing bucket, which it raises as a missing object."""
    return any(words in text for words in ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist"))


@contextlib.contextmanager
def as_object_errors(address: Address, timeout_s: float) -> Generator[None]:
    """Convert obstore's errors to ObjectErrors, except for missing objects."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        if is_no_bucket(str(error)):
            raise _translated(error, address, timeout_s) from None
        raise
    except BaseError as error:
        raise _translated(error, address, timeout_s) from None


def _translated(error: Exception, address: Address, timeout_s: float) -> ObjectError:
    from obstore.exceptions import GenericError, NotSupportedError, PermissionDeniedError, UnauthenticatedError

    text, _, details = str(error).partition("\n\nDebug source:\n")
    if is_no_bucket(text):
        return _no_bucket(address)
    answer = HTTP_STATUS.search(text)
    server_text = shortened(_server_error(text, answer))
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return ObjectError(f"access denied: {server_text}", temporary=False, advice=address.credentials_hint)
    if isinstance(error, NotSupportedError):
        return ObjectError(
            server_text,
            temporary=False,
            advice="this web server does not support range requests; serve the data from one that does",
        )
    if answer is None:
        found = _without_answer(address, details, timeout_s)
        if found is not None:
            return found
    is_permanent = answer is not None and int(answer[1]) < 500 and int(answer[1]) not in BUSY
    of_machine = _IDENTITY in text
    return ObjectError(
        server_text,
        temporary=isinstance(error, GenericError) and not is_permanent,
        advice=address.credentials_hint if of_machine else "",
        unreachable=of_machine,
    )


def _no_bucket(address: Address) -> ObjectError:
    region = ", its region" if address.kind == "s3" else ""
    return ObjectError(
        f"there is no bucket {address.bucket!r} at {address.service}",
        temporary=False,
        advice=f"check its name{region} and {address.settings_hint}",
    )


def _server_error(text: str, answer: re.Match[str] | None) -> str:
    """The store's error: code and message of its response, if there was one."""
    if answer is None:
        return _REQUEST.sub("", text)
    words = dict(_XML.findall(answer[3]))
    named = ": ".join(words[part] for part in ("Code", "Message") if part in words) or answer[2].strip()
    return f"{named} (HTTP {answer[1]})"


def _without_answer(address: Address, details: str, timeout_s: float) -> ObjectError | None:
    """Classify a failure without a response, by obstore's debug details; None for other failures."""
    for sign, said, advice in _PERMANENT:
        if sign in details:
            return ObjectError(said.format(address.service), temporary=False, advice=advice)
    if "kind: Connect" in details and ("dns error" in details or "ConnectionRefused" in details):
        why = "unknown host name" if "dns error" in details else "no response"
        return ObjectError(
            f"cannot connect to {address.service}: {why}",
            temporary=True,
            advice=f"check {address.settings_hint}",
            unreachable=True,
        )
    if "kind: Timeout" in details:
        return ObjectError(f"no response within {timeout_s:g} s", temporary=True)
    return None


def require_list(address: Address, timeout_s: float) -> None:
    """Check that an S3 endpoint responds with lists at all: obstore treats any page as an empty one.

    The request has no credentials, so S3 refuses it or returns a list. Amazon's own endpoint is not checked. Raises
    ObjectError for any other response.
    """
    if address.store.endpoint is None:
        return
    query = urlencode({"list-type": "2", "max-keys": "1", "prefix": f"{address.key}/".lstrip("/")})
    try:
        with urllib.request.urlopen(f"{address.store.endpoint}/{address.bucket}?{query}", timeout=timeout_s) as answer:
            kind, said = answer.headers.get("Content-Type", "no type"), answer.read(_CHECKED_BYTES)
    except (OSError, HTTPException):
        return
    if b"ListBucketResult" not in said:
        raise ObjectError(
            f"{address.service} does not respond like S3: the response is not a list ({shortened(kind)})",
            temporary=False,
            advice=f"check {address.settings_hint}; a proxy, or a sign-in page, may respond in its place",
        )
