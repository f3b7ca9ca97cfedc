"""Why requests to stores fail: in our words, with the way out, and whether the same one may succeed in a while."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator

from energon_grain.storage.addresses import Address

ANSWER = re.compile(r"status code: (\d+) ([^:\n]*)(.*)", re.DOTALL)
"""How obstore ends the message of a failure that a server told."""
_REQUEST = re.compile(r"^.*Error performing \w+ \S+ in \S+ - |^Generic \w+ error: ")
_XML = re.compile(r"<(Code|Message)>([^<]*)</")
_MESSAGE_CHARACTERS = 300
BUSY = (408, 429)
"""Answers that ask for patience; others of 300 to 499 would come again."""
_IDENTITY = "http://169.254.169.254/"
"""Who is asked for the identity of a machine in the cloud."""


class ObjectError(Exception):
    """A request failed.

    Attributes:
        passing: Whether the same request may succeed in a while.
        out_of_range: Whether the object ends before the range does.
        way_out: What to do about it; empty: nothing is known.
        wait_s: How long the store asks to leave it alone, in seconds.
    """

    def __init__(
        self, message: str, passing: bool, out_of_range: bool = False, way_out: str = "", wait_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.passing = passing
        self.out_of_range = out_of_range
        self.way_out = way_out
        self.wait_s = wait_s


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
        region = ", its region" if address.kind == "s3" else ""
        return ObjectError(
            f"there is no bucket {address.bucket!r} at {address.service}",
            passing=False,
            way_out=f"check its name{region} and {address.where_said}",
        )
    answer = ANSWER.search(text)
    told = _REQUEST.sub("", text)
    if answer is not None:
        words = dict(_XML.findall(answer[3]))
        named = ": ".join(words[part] for part in ("Code", "Message") if part in words) or answer[2].strip()
        told = f"{named} (HTTP {answer[1]})"
    told = shortened(told)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return ObjectError(f"access denied: {told}", passing=False, way_out=address.sign_in)
    if "kind: Connect" in details and ("dns error" in details or "ConnectionRefused" in details):
        why = "its name is not known" if "dns error" in details else "nothing answers there"
        way_out = f"check {address.where_said}"
        return ObjectError(f"cannot connect to {address.service}: {why}", passing=True, way_out=way_out)
    if "kind: Timeout" in details:
        return ObjectError(f"no answer within {timeout_s:g} s", passing=True)
    lasting = answer is not None and int(answer[1]) < 500 and int(answer[1]) not in BUSY
    way_out = address.sign_in if _IDENTITY in text else ""
    if isinstance(error, NotSupportedError):
        way_out = "this web server sends only whole files, let one that sends parts of them serve the data"
        lasting = True
    return ObjectError(told, passing=isinstance(error, GenericError) and not lasting, way_out=way_out)
