"""Objects by obstore: one request a call, no second attempts, and failures in our words with the way out.

obstore's threads do not outlive a fork, and a forked process that uses it waits for them for ever. So a process that
was forked from one that had used a store is refused, with the ways to start it instead.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from energon_grain.errors import ConfigError, WorkerError
from energon_grain.storage.aws_profiles import store_credentials
from energon_grain.storage.kvstore_spec import kvstore_spec
from energon_grain.storage.storage_settings import StorageSettings

UNVERSIONED = b"\x10"
"""The generation of all objects of a server that tells none (`https://` without entity tags)."""
GIVEN_UP = "nobody waits for it any more"
"""What is said of a request that ends because the program or the reader does."""
_ANSWER = re.compile(r"status code: (\d+) ([^:\n]*)(.*)", re.DOTALL)
"""How obstore ends the message of a failure that a server told."""
_REQUEST = re.compile(r"^.*Error performing \w+ \S+ in \S+ - |^Generic \w+ error: ")
_XML = re.compile(r"<(Code|Message)>([^<]*)</")
_MESSAGE_CHARACTERS = 300
_BUSY = (408, 429)
"""Answers that ask for patience; others of 300 to 499 would come again."""
_END_POINT = "the end point (`endpoint` of this store in the storage settings, else AWS_ENDPOINT_URL)"
_IF_PUBLIC = "set `anonymous: true` for it in the storage settings if it is public"


@dataclass(frozen=True)
class Fetched:
    """What a read gave.

    Attributes:
        view: The bytes where the store's client put them; None where the object is the version that the caller has.
        generation: Changes whenever the object does: its entity tag; `UNVERSIONED` where the store tells none.
        size_bytes: Of the whole object; None where no bytes came.
    """

    view: memoryview | None
    generation: bytes
    size_bytes: int | None = None

    @functools.cached_property
    def data(self) -> bytes | None:
        """A copy of the bytes. It costs more than fetching them where memory must be had from the system."""
        return None if self.view is None else bytes(self.view)


class LateAnswerError(Exception):
    """Another request for the same was answered first."""


Answered = Callable[[], object]
"""To be called when the first byte of an answer is there. Raises LateAnswerError."""


def _nothing() -> None:
    pass


class ObjectError(Exception):
    """A request failed.

    Attributes:
        passing: Whether the same request may succeed in a while.
        out_of_range: Whether the object ends before the range does.
        way_out: What to do about it; empty: nothing is known.
    """

    def __init__(self, message: str, passing: bool, out_of_range: bool = False, way_out: str = "") -> None:
        super().__init__(message)
        self.passing = passing
        self.out_of_range = out_of_range
        self.way_out = way_out


@dataclass(frozen=True, slots=True)
class _Place:
    """An object or folder in an open store.

    Attributes:
        spec: As `kvstore_spec` describes the store.
        store: Of obstore.
        key: There, without slashes at its ends.
        mark: What its generations begin with.
        timeout_s: For a request.
    """

    spec: dict[str, Any]
    store: Any
    key: str
    mark: bytes
    timeout_s: float

    def generation(self, told: Mapping[str, Any]) -> bytes:
        tag = told.get("e_tag")
        return UNVERSIONED if tag is None else self.mark + tag.encode()

    @contextlib.contextmanager
    def failures(self) -> Any:
        """Failures of obstore become ObjectErrors, but for the objects that are not there."""
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError as error:
            if _is_no_bucket(str(error)):
                raise self._failed(error) from None
            raise
        except BaseError as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> ObjectError:
        from obstore.exceptions import GenericError, NotSupportedError, PermissionDeniedError, UnauthenticatedError

        text, _, details = str(error).partition("\n\nDebug source:\n")
        if _is_no_bucket(text):
            return ObjectError(
                f"there is no bucket {self.spec.get('bucket', '')!r} at {self._service()}",
                passing=False,
                way_out=f"check its name{', its region' if self.spec['driver'] == 's3' else ''} and {_END_POINT}",
            )
        answer = _ANSWER.search(text)
        told = _REQUEST.sub("", text)
        if answer is not None:
            words = dict(_XML.findall(answer[3]))
            named = ": ".join(words[part] for part in ("Code", "Message") if part in words) or answer[2].strip()
            told = f"{named} (HTTP {answer[1]})"
        told = " ".join(told.split())[:_MESSAGE_CHARACTERS]
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return ObjectError(f"access denied: {told}", passing=False, way_out=self._credentials_way_out())
        if "kind: Connect" in details and ("dns error" in details or "ConnectionRefused" in details):
            why = "its name is not known" if "dns error" in details else "nothing answers there"
            way_out = f"check {_END_POINT}" if self.spec["driver"] == "s3" else "check the network, and the address"
            return ObjectError(f"cannot connect to {self._service()}: {why}", passing=True, way_out=way_out)
        if "kind: Timeout" in details:
            return ObjectError(f"no answer within {self.timeout_s:g} s", passing=True)
        lasting = answer is not None and int(answer[1]) < 500 and int(answer[1]) not in _BUSY
        way_out = ""
        if isinstance(error, NotSupportedError):
            way_out = "this web server sends only whole files, let one that sends parts of them serve the data"
        return ObjectError(
            told, passing=isinstance(error, GenericError) and not lasting and not way_out, way_out=way_out
        )

    def _service(self) -> str:
        if self.spec["driver"] == "s3":
            region = self.spec.get("aws_region")
            return self.spec.get("endpoint") or ("Amazon S3" if region is None else f"Amazon S3 in {region}")
        return self.spec.get("base_url") or "Google Cloud Storage"

    def _credentials_way_out(self) -> str:
        """Which credentials were sent, and what to do about them."""
        if self.spec["driver"] == "gcs":
            return f"check GOOGLE_APPLICATION_CREDENTIALS, or log in with gcloud, or {_IF_PUBLIC}"
        if self.spec["driver"] != "s3":
            return "no credentials are sent to web servers: let this one serve the files to everybody"
        credentials: Mapping[str, str] = self.spec.get("aws_credentials", {})
        if not credentials:
            return (
                "no credentials were found in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or in ~/.aws, "
                f"so this machine's role counted, if it has one; give them there, or {_IF_PUBLIC}"
            )
        if credentials["type"] == "anonymous":
            return "no credentials are sent, as the storage settings say `anonymous: true` of it: take that out"
        if credentials["type"] == "environment":
            return f"check the credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or {_IF_PUBLIC}"
        return f"check the credentials of the profile {credentials['profile']!r} in ~/.aws, or {_IF_PUBLIC}"


def _is_no_bucket(text: str) -> bool:
    return "NoSuchBucket" in text or "specified bucket does not exist" in text


class ObjectStores:
    """Objects of this process. Every method raises ObjectError; WorkerError after a fork.

    Args:
        settings: How stores are reached.
    """

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings
        self._stores: dict[str, Any] = {}

    def read(
        self, url: str, start: int | None, stop: int | None, known: bytes | None, answered: Answered = _nothing
    ) -> Fetched | None:
        """Read bytes [start, stop) of an object, whole where both are None; None: there is no such object.

        Args:
            url: Of the object.
            start: Negative: counted from the end (then without `stop`).
            stop: None: to the end.
            known: The generation that the caller has: where it still is that one, no bytes come.
            answered: See `Answered`.
        """
        from obstore.exceptions import GenericError, NotModifiedError, NotSupportedError

        place = self._place(url)
        options: dict[str, Any] = {}
        if known is not None and known != UNVERSIONED and known.startswith(place.mark):
            options["if_none_match"] = known[len(place.mark) :].decode()
        if start is not None:
            options["range"] = {"suffix": -start} if start < 0 else {"offset": start} if stop is None else (start, stop)
        with place.failures():
            try:
                found = place.store.get(place.key, options=options)
                answered()
                generation, size = place.generation(found.meta), found.meta["size"]
                if generation == known and known != UNVERSIONED:  # some servers do not know If-None-Match
                    return Fetched(None, generation)
                view = memoryview(found.bytes())
            except FileNotFoundError as error:
                if _is_no_bucket(str(error)):
                    raise
                return None
            except NotModifiedError:
                assert known is not None
                return Fetched(None, known)
            except NotSupportedError:  # a web server that sends whole files only
                whole = place.store.get(place.key)
                if (start, stop) != (0, whole.meta["size"]):
                    raise
                return Fetched(memoryview(whole.bytes()), place.generation(whole.meta), stop)
            except GenericError as error:
                # What begins at the end of an object or behind it is refused, by each store in other words.
                answer = _ANSWER.search(str(error))
                if start is None or (answer is not None and answer[1] != "416"):
                    raise
                if answer is None and place.spec["driver"] != "memory":
                    raise
                there = self.look(url)
                if there is None or there.size_bytes is None:
                    return None
                raise ObjectError(f"it has {there.size_bytes} bytes", passing=False, out_of_range=True) from None
        first, last = found.range
        if stop is not None and stop > size:
            raise ObjectError(f"it has {size} bytes", passing=False, out_of_range=True)
        if len(view) != last - first:
            raise ObjectError(f"{len(view)} bytes came instead of {last - first}", passing=True)
        return Fetched(view, generation, size)

    def look(self, url: str) -> Fetched | None:
        """Size and generation of an object, without its bytes; None: there is none."""
        from obstore.exceptions import GenericError, NotSupportedError

        place = self._place(url)
        with place.failures():
            try:
                if place.spec["driver"] != "http":
                    told = place.store.head(place.key)
                else:  # not all that serve files answer to HEAD
                    try:
                        told = place.store.get(place.key, options={"range": (0, 1)}).meta
                    except (GenericError, NotSupportedError):  # an empty one has no first byte
                        told = place.store.get(place.key).meta
            except FileNotFoundError as error:
                if _is_no_bucket(str(error)):
                    raise
                return None
        return Fetched(None, place.generation(told), told["size"])

    def list(self, url: str) -> list[str]:
        """Keys below a folder, relative to it, sorted."""
        place = self._place(url)
        if place.spec["driver"] == "http":
            raise ObjectError("a plain web server does not support listing", passing=False)
        with place.failures():
            found = {each["path"]: each["size"] for page in place.store.list(place.key or None) for each in page}
        folders = {path[:at] for path in found for at, sign in enumerate(path) if sign == "/"}
        skipped = len(place.key) + 1 if place.key else 0
        # An object without bytes where others lie below is what some tools put in place of a folder.
        return sorted(path[skipped:] for path, size in found.items() if size or path not in folders)

    def write(self, url: str, data: bytes) -> bytes:
        """Put an object, whole; give its generation."""
        place = self._place(url)
        with place.failures():
            return place.generation(place.store.put(place.key, data, use_multipart=False))

    def delete(self, url: str) -> None:
        """Remove an object, if it is there."""
        place = self._place(url)
        with contextlib.suppress(FileNotFoundError), place.failures():
            place.store.delete(place.key)

    def refuse_fork(self, url: str) -> None:
        """Raises WorkerError in a process that was forked from one that had used a store."""
        if is_forked():
            raise WorkerError(
                f"{url}: this process was forked from one that had used object stores, and their connections do not "
                "outlive that; start processes by 'forkserver' or 'spawn' "
                "(`multiprocessing_context='forkserver'`), or use threads"
            )

    def _place(self, url: str) -> _Place:
        spec, key = kvstore_spec(url, self._settings)
        name = repr(spec)
        if name not in self._stores:
            self._stores[name] = _opened(url, spec, self._settings.timeout_s)
        mark = _memory()[1] if spec["driver"] == "memory" else b""
        return _Place(spec, self._stores[name], key.strip("/"), mark, self._settings.timeout_s)


_forked = False
_used = False


def is_forked() -> bool:
    """Whether this process was forked from one that had used a store."""
    return _forked


def _after_fork() -> None:
    global _forked
    _forked = _forked or _used


os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _memory() -> tuple[Any, bytes]:
    """The store of `memory://`, and what tells its generations from those of other processes, which count alike."""
    from obstore.store import MemoryStore

    return MemoryStore(), os.urandom(8)


def _opened(url: str, spec: dict[str, Any], timeout_s: float) -> Any:
    """Open a store. Raises ConfigError where none can be called so."""
    from obstore.exceptions import BaseError
    from obstore.store import GCSStore, HTTPStore, S3Store

    global _used
    _used = True
    options: Any = {
        # `ObjectClient` repeats requests.
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_s)},
        "client_options": {"timeout": timedelta(seconds=timeout_s), "allow_http": True},
    }
    try:
        if spec["driver"] == "memory":
            return _memory()[0]
        if spec["driver"] == "http":
            return HTTPStore(spec["base_url"], **options)
        if spec["driver"] == "gcs":
            return GCSStore(spec["bucket"], **options)
        if not _BUCKET.fullmatch(spec["bucket"]):
            raise ValueError(f'Invalid S3 bucket name: "{spec["bucket"]}"')
        config: Any = {"region": spec.get("aws_region") or _region(spec["bucket"], timeout_s)}
        if "endpoint" in spec:
            config["endpoint"] = spec["endpoint"]
        if spec.get("requester_pays"):
            config["request_payer"] = True
        return S3Store(spec["bucket"], config=config, **store_credentials(url, spec.get("aws_credentials")), **options)
    except (BaseError, ValueError) as error:
        raise ConfigError(f"{url}: {str(error).partition('Debug source')[0].strip()}") from error


_BUCKET = re.compile(r"[A-Za-z0-9._-]{3,255}")


def _region(bucket: str, timeout_s: float) -> str:
    """The region of a bucket of Amazon's, which it says to everybody, also with a refusal."""
    request = urllib.request.Request(f"https://s3.amazonaws.com/{bucket}", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            headers: Any = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except OSError:
        return "us-east-1"
    return headers.get("x-amz-bucket-region") or "us-east-1"
