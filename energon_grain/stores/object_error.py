# SPDX-License-Identifier: Apache-2.0
"""Why requests to stores fail: in our words, with the way out, and whether the same one may succeed in a while."""

from __future__ import annotations

import contextlib
import re
import urllib.request
from collections.abc import Generator
from http.client import HTTPException
from urllib.parse import urlencode

from energon_grain.stores.addresses import NO_HOST, Address

ANSWER = re.compile(r"status code: (\d+) ([^:\n]*)(.*)", re.DOTALL)
"""How obstore ends the message of a failure that a server told."""
_REQUEST = re.compile(r"^.*Error performing \w+ \S+ in \S+ - |^Generic \w+ error: ")
_XML = re.compile(r"<(Code|Message)>([^<]*)</")
_MESSAGE_CHARACTERS = 300
_LOOKED_AT_BYTES = 1 << 16
BUSY = (408, 429)
"""Answers that ask for patience; others of 300 to 499 would come again."""
_IDENTITY = "http://169.254.169.254/"
"""Who is asked for the identity of a machine in the cloud."""

_LASTING = (
    (
        f"                {NO_HOST},",
        "{} leads to another host, which would be sent credentials; that is not followed",
        "name that host as `endpoint` in the storage settings if it is right, and check the region of the bucket",
    ),
    (
        "inner: BareRedirect",
        "{} leads elsewhere without saying where, as it does for a bucket of another region",
        "name its region in the storage settings, or in AWS_REGION",
    ),
    ("TooLarge", "the headers that {} sends are too large", ""),
    ("InvalidCertificate", "no secure connection to {}: its certificate is refused", ""),
)
"""What is in the details of failures that another attempt would meet again, what it means, and what to do."""


class ObjectError(Exception):
    """A request failed.

    Attributes:
        passing: Whether the same request may succeed in a while.
        out_of_range: Whether the object ends before the range does.
        way_out: What to do about it; empty: nothing is known.
        wait_s: How long the store asks to leave it alone, in seconds.
        unreachable: Whether nothing has answered at all: no such name, or nothing listens.
    """

    def __init__(
        self,
        message: str,
        passing: bool,
        out_of_range: bool = False,
        way_out: str = "",
        wait_s: float = 0.0,
        unreachable: bool = False,
    ) -> None:
        super().__init__(message)
        self.passing = passing
        self.out_of_range = out_of_range
        self.way_out = way_out
        self.wait_s = wait_s
        self.unreachable = unreachable


def shortened(text: str) -> str:
    """What a server says, as a message quotes it."""
    return " ".join(text.split())[:_MESSAGE_CHARACTERS]


def is_no_bucket(text: str) -> bool:
    """Whether obstore says that there is no bucket, which it takes for an object that is not there."""
    return any(words in text for words in ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist"))


@contextlib.contextmanager
def in_our_words(address: Address, timeout_s: float) -> Generator[None]:
    """Failures of obstore become ObjectErrors, but for the objects that are not there."""
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
    answer = ANSWER.search(text)
    told = shortened(_told(text, answer))
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return ObjectError(f"access denied: {told}", passing=False, way_out=address.sign_in)
    if isinstance(error, NotSupportedError):
        return ObjectError(
            told,
            passing=False,
            way_out="this web server sends only whole files, let one that sends parts of them serve the data",
        )
    if answer is None:
        found = _without_answer(address, details, timeout_s)
        if found is not None:
            return found
    lasting = answer is not None and int(answer[1]) < 500 and int(answer[1]) not in BUSY
    of_machine = _IDENTITY in text
    return ObjectError(
        told,
        passing=isinstance(error, GenericError) and not lasting,
        way_out=address.sign_in if of_machine else "",
        unreachable=of_machine,
    )


def _no_bucket(address: Address) -> ObjectError:
    region = ", its region" if address.kind == "s3" else ""
    return ObjectError(
        f"there is no bucket {address.bucket!r} at {address.service}",
        passing=False,
        way_out=f"check its name{region} and {address.where_said}",
    )


def _told(text: str, answer: re.Match[str] | None) -> str:
    """What the store says: the code and message of its answer, if it gave one."""
    if answer is None:
        return _REQUEST.sub("", text)
    words = dict(_XML.findall(answer[3]))
    named = ": ".join(words[part] for part in ("Code", "Message") if part in words) or answer[2].strip()
    return f"{named} (HTTP {answer[1]})"


def _without_answer(address: Address, details: str, timeout_s: float) -> ObjectError | None:
    """What failed where there was no answer, by what obstore says to programmers; None: something else."""
    for sign, said, way_out in _LASTING:
        if sign in details:
            return ObjectError(said.format(address.service), passing=False, way_out=way_out)
    if "kind: Connect" in details and ("dns error" in details or "ConnectionRefused" in details):
        why = "its name is not known" if "dns error" in details else "nothing answers there"
        return ObjectError(
            f"cannot connect to {address.service}: {why}",
            passing=True,
            way_out=f"check {address.where_said}",
            unreachable=True,
        )
    if "kind: Timeout" in details:
        return ObjectError(f"no answer within {timeout_s:g} s", passing=True)
    return None


def require_list(address: Address, timeout_s: float) -> None:
    """Look whether an S3 end point answers with lists at all: obstore takes any page for an empty one.

    It is asked without credentials, so it refuses, as S3 does, or has a list. Amazon's own is not asked. Raises
    ObjectError where it sends something else.
    """
    if address.store.endpoint is None:
        return
    query = urlencode({"list-type": "2", "max-keys": "1", "prefix": f"{address.key}/".lstrip("/")})
    try:
        with urllib.request.urlopen(f"{address.store.endpoint}/{address.bucket}?{query}", timeout=timeout_s) as answer:
            kind, said = answer.headers.get("Content-Type", "no type"), answer.read(_LOOKED_AT_BYTES)
    except (OSError, HTTPException):
        return
    if b"ListBucketResult" not in said:
        raise ObjectError(
            f"{address.service} does not answer as a store does: what it sends is no list ({shortened(kind)})",
            passing=False,
            way_out=f"check {address.where_said}; a proxy, or a page to sign in at, may answer in its place",
        )
