# SPDX-License-Identifier: Apache-2.0
"""Datasets of the Hugging Face Hub as a store: lists and ranges of the files of one commit.

A revision (usually a branch) is resolved to its commit once per process. That commit is immutable. Lists are therefore
cached on disk permanently, with the size and hash of each file, and need no request per file.

The Hub itself serves files stored in git. For the others it redirects to a content network, by a signed URL that is
valid for about an hour. That URL is cached, and ranges are requested only there: the Hub limits the rate of file
requests (some thousands in five minutes), which one request per range would soon exceed. If the network refuses the
URL, the Hub is asked for a new one. The token is only sent to the Hub's own host.

The client is urllib3: obstore and huggingface_hub ask the Hub again for every range, and neither exposes the signed
URL.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from energon_grain._version import __version__
from energon_grain.atomic_files import atomic_write_bytes, remove_unused
from energon_grain.extras import needed_for
from energon_grain.forms import Form
from energon_grain.stores.addresses import Address, proxy_of
from energon_grain.stores.object_error import BUSY, ObjectError, shortened

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

UNUSED_S = 30 * 24 * 3600.0
"""Time after which cached data of an unused commit are removed."""
_HOPS = 5
_PAGES = 10_000
_PAGE_BYTES = 64 << 20
_WHOLE_BYTES = 16 << 20
"""Maximum size of files that may be returned whole for a range request."""
_LONGEST_WAIT_S = 600.0
"""The Hub's rate limits have windows of five minutes."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NEXT = re.compile(r'<([^>]*)>[^,]*;\s*rel="?next"?')
_RATE = re.compile(r"\bt=(\d+)")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_TOO_LARGE = re.compile("header line|more than [0-9]+ headers")
"""Messages of `http.client` about headers that are too large."""
_NO_NAME = re.compile("[\0\ud800-\udfff]")
_REDIRECTS = (301, 302, 303, 307, 308)
_EXPIRED = (400, 401, 403, 404, 410)
"""Status codes of content networks for an expired signature."""
_NO_TIME = datetime.fromtimestamp(0, UTC)
"""Modification time of files: lists do not have it."""
_Read = TypeVar("_Read")


class _Lfs(msgspec.Struct):
    oid: str
    size: int


class _Listed(msgspec.Struct):
    type: str
    path: str
    size: int = 0
    oid: str = ""
    lfs: _Lfs | None = None


class _Revision(msgspec.Struct):
    sha: str


_LISTED_FORM, _REVISION_FORM, _COMMIT_FORM = Form(list[_Listed]), Form(_Revision), Form(str)
_CACHED_LIST_FORM = Form(dict[str, tuple[int, str]])


class _Send(Protocol):
    def __call__(self, url: str, headers: dict[str, str]) -> BaseHTTPResponse: ...


class HubStore:
    """Files of one commit of a dataset, with the interface of obstore's stores. Thread-safe; raises ObjectError.

    Args:
        address: Address of the dataset; its bucket is `OWNER/NAME@REVISION`.
        folder: Cache folder for commits and lists.
    """

    def __init__(self, address: Address, folder: Path, timeout_s: float) -> None:
        self._repo, _, revision = address.bucket.partition("@")
        self._hub = _Hub(str(address.store.endpoint), self._repo, address.store.anonymous, timeout_s)
        self._folder = folder
        self.commit = self._commit(revision)
        self._files: dict[str, tuple[int, str]] = {}
        self._known: dict[str, bool] = {}  # listed folders, and whether recursively
        self._listing = threading.Lock()
        self._locations: dict[str, str] = {}
        self._locating = [threading.Lock() for _ in range(64)]

    def head(self, key: str) -> dict[str, Any]:
        """Size and version of a file. Raises FileNotFoundError."""
        with self._listing:
            parent = key.rpartition("/")[0]
            if not self._is_known(parent):
                self._list(parent, below=False)
            size_bytes, tag = self._files.get(key, (0, None))
        if tag is None:
            raise FileNotFoundError(key)
        return _meta(key, size_bytes, tag)

    def list(self, prefix: str | None) -> Iterable[list[dict[str, Any]]]:
        """All files in a folder and its subfolders."""
        folder = prefix or ""
        with self._listing:
            if not self._known.get(folder):
                self._list(folder, below=True)
            inside = f"{folder}/" if folder else ""
            return [[_meta(path, *of) for path, of in self._files.items() if path.startswith(inside)]]

    def get(self, key: str, *, options: dict[str, Any] | None = None) -> _Response:
        """A file, or a range of it. Raises FileNotFoundError, and obstore's NotModifiedError."""
        from obstore.exceptions import NotModifiedError

        meta, options = self.head(key), options or {}
        if options.get("if_none_match") == meta["e_tag"]:
            raise NotModifiedError(key)
        size_bytes: int = meta["size"]
        wanted: Any = options.get("range", (0, size_bytes))
        if isinstance(wanted, tuple):
            start, stop = wanted
        else:
            start, stop = max(0, wanted.get("offset", size_bytes - wanted.get("suffix", 0))), size_bytes
        if start > stop or stop > size_bytes or (start == size_bytes and "range" in options):
            raise ObjectError(f"the file has only {size_bytes} bytes", temporary=False, out_of_range=True)
        if not size_bytes:
            return _Response(meta, (0, 0), None, "", 0)
        response, host = self._open(key, size_bytes, meta["e_tag"], {"Range": f"bytes={start}-{stop - 1}"})
        try:
            return _Response(meta, (start, stop), response, host, _skipped(response, host, start, stop, size_bytes))
        except ObjectError:
            response.close()
            raise

    def put(self, key: str, data: bytes, **_: Any) -> Any:
        raise ObjectError(
            "the Hub is read-only", temporary=False, advice="write to a folder, and upload it with `hf upload`"
        )

    delete: Any = put

    def _open(self, key: str, size_bytes: int, tag: str, headers: dict[str, str]) -> tuple[BaseHTTPResponse, str]:
        """The response for a range, and the host that sends it: the Hub, or the content network."""
        where = ""
        for _ in range(2):
            with self._locating[hash(key) % len(self._locating)]:  # one thread per file resolves its location
                location = self._locations.get(key)
                if location is None:
                    url = f"{self._hub.endpoint}/datasets/{self._repo}/resolve/{self.commit}/{quote(key)}"
                    answer, location = self._hub.ask(url, headers)
                    if location is None:
                        return answer, self._hub.host
                    self._check_linked(answer, {"X-Linked-Etag": tag, "X-Linked-Size": str(size_bytes)})
                    self._locations[key] = location
            answer, location_now = self._hub.follow(location, headers, self._hub.send_unsigned)
            assert location_now is None
            host = urlsplit(location).hostname or ""
            if answer.status in (200, 206):
                return answer, host
            where = f"{host}, to which the Hub redirects, responded with HTTP {answer.status}"
            answer.close()
            if answer.status not in _EXPIRED:
                temporary = answer.status >= 500 or answer.status in BUSY
                raise ObjectError(where, temporary=temporary, wait_s=_wait_s(answer, host) if temporary else 0.0)
            if self._locations.get(key) == location:
                self._locations.pop(key, None)
        raise ObjectError(f"{where}, even with a new signature", temporary=True)

    def _commit(self, revision: str) -> str:
        """Resolve a revision to its current commit; to the last known one if HF_HUB_OFFLINE is set."""
        if _COMMIT.fullmatch(revision):
            return revision
        kept = self._cache_path("revision", revision)
        if _is_offline():
            commit = _cached_json(kept, _COMMIT_FORM)
            if commit is None:
                raise _offline(f"the commit of {self._repo}@{revision} is not cached")
            return commit
        url = f"{self._hub.endpoint}/api/datasets/{self._repo}/revision/{quote(revision, safe='')}"
        try:
            commit = self._hub.json(url, _REVISION_FORM)[0].sha
        except FileNotFoundError:
            raise self._hub.no_repository() from None
        if not _COMMIT.fullmatch(commit):
            raise ObjectError(f"{self._hub.host} returned {shortened(commit)!r} instead of a commit", temporary=False)
        _cache_json(kept, commit)
        return commit

    def _is_known(self, folder: str) -> bool:
        return folder in self._known or any(
            below and (not known or folder.startswith(f"{known}/")) for known, below in self._known.items()
        )

    def _list(self, folder: str, *, below: bool) -> None:
        """Load the list of files of a folder. A missing folder has none."""
        kept = self._cache_path(self.commit, folder, below)
        found = _cached_json(kept, _CACHED_LIST_FORM)
        if found is None:
            if _is_offline():
                raise _offline(f"the list of files of {self._repo}/{folder} at {self.commit[:8]} is not cached")
            found = dict(self._asked(folder, below))
            _cache_json(kept, found)
        self._files |= found
        self._known[folder] = below

    def _check_linked(self, answer: BaseHTTPResponse, listed: dict[str, str]) -> None:
        for name, expected in listed.items():
            reported = answer.headers.get(name, expected).removeprefix("W/").strip('"')
            if reported != expected:
                raise ObjectError(
                    f"{self._hub.host} lists {expected}, but redirects to {shortened(reported)} ({name})",
                    temporary=False,
                )

    def _asked(self, folder: str, below: bool) -> Generator[tuple[str, tuple[int, str]]]:
        path = f"tree/{self.commit}/{quote(folder)}".rstrip("/")
        url: str | None = f"{self._hub.endpoint}/api/datasets/{self._repo}/{path}?recursive={str(below).lower()}"
        seen: set[str] = set()
        while url is not None:
            seen.add(url)
            try:
                page, url = self._hub.json(url, _LISTED_FORM)
            except FileNotFoundError:
                return
            for each in page:
                self._check_path(each.path, folder)
                if each.type == "file":
                    yield each.path, self._version(each)
            if url is not None and (url in seen or len(seen) == _PAGES):
                raise ObjectError(f"the list of {self._hub.host} does not end", temporary=False)

    def _check_path(self, path: str, folder: str) -> None:
        inside, steps = f"{folder}/" if folder else "", set(path.split("/"))
        if not path.startswith(inside) or {"", ".", ".."} & steps or _NO_NAME.search(path):
            raise ObjectError(
                f"{self._hub.host} lists {shortened(path)!r}, which is not in {folder or 'the dataset'}; "
                "the list is rejected",
                temporary=False,
            )

    def _version(self, listed: _Listed) -> tuple[int, str]:
        """(bytes, tag) of a file."""
        size_bytes, tag = (listed.size, listed.oid) if listed.lfs is None else (listed.lfs.size, listed.lfs.oid)
        if size_bytes < 0 or not tag or _NO_NAME.search(tag):
            raise ObjectError(
                f"{self._hub.host} lists {shortened(listed.path)!r} with {size_bytes} bytes and the hash "
                f"{shortened(tag)!r}",
                temporary=False,
            )
        return size_bytes, tag

    def _cache_path(self, *what: object) -> Path:
        name = repr((self._hub.endpoint, self._repo, *what)).encode("utf-8", "surrogateescape")
        return self._folder / f"{hashlib.blake2b(name, digest_size=16).hexdigest()}.json"


def _meta(path: str, size_bytes: int, tag: str) -> dict[str, Any]:
    """Like obstore's `ObjectMeta`."""
    return {"path": path, "size": size_bytes, "e_tag": tag, "last_modified": _NO_TIME}


def _skipped(response: BaseHTTPResponse, host: str, start: int, stop: int, size_bytes: int) -> int:
    """Number of bytes before the requested range in a response. Raises ObjectError if it is of something else."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ObjectError(f"{host} sent a compressed response, which was not requested", temporary=False)
    if response.status == 206:
        reported = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if reported is None or (int(reported[1]), int(reported[2]) + 1) != (start, stop):
            shown = shortened(response.headers.get("Content-Range", "nothing"))
            raise ObjectError(f"{host} sent {shown} for bytes {start} to {stop}", temporary=True)
        length = response.headers.get("Content-Length", str(stop - start))
        if length != str(stop - start):
            raise ObjectError(f"{host} sent {shortened(length)} bytes for bytes {start} to {stop}", temporary=True)
        whole = reported[3]
    else:
        whole = response.headers.get("Content-Length", "*")
    if whole not in ("*", str(size_bytes)):
        message = f"the list has a size of {size_bytes} bytes, but {host} reports {whole}"
        raise ObjectError(message, temporary=False)
    if response.status == 206 or (start, stop) == (0, size_bytes):
        return 0
    if size_bytes > _WHOLE_BYTES:
        raise ObjectError(
            f"{host} does not support range requests",
            temporary=False,
            advice="set HF_ENDPOINT to a server that supports them",
        )
    return start


@dataclass(frozen=True, slots=True)
class _Response:
    """Like obstore's `GetResult`.

    Attributes:
        meta: Metadata of the file.
        range: First byte, and one past the last.
        response: The open response; None for an empty file.
        host: The host that sends it.
        skip: Number of bytes before the range in the response.
    """

    meta: dict[str, Any]
    range: tuple[int, int]
    response: BaseHTTPResponse | None
    host: str
    skip: int

    def close(self) -> None:
        """Close the connection, unless the whole response was read: then it is free for the next request."""
        if self.response is not None:
            self.response.close()

    def stream(self, min_chunk_size: int) -> Generator[bytes]:
        """The bytes of the range as they arrive; no further ones."""
        if self.response is None:
            return
        left, skip, whole = self.range[1] - self.range[0], self.skip, False
        try:
            with _failures(self.host):
                for piece in self.response.stream(min_chunk_size, decode_content=False):
                    part = piece[skip : skip + left] if skip or len(piece) > left else piece
                    skip = max(0, skip - len(piece))
                    left -= len(part)
                    if part:
                        yield part
                    elif not left:
                        return  # the response goes on after the range
                whole = True
        finally:
            if not whole:
                self.response.close()  # else the connection would be reused with unread data


class _Hub:
    """Requests to the Hub for one dataset."""

    def __init__(self, endpoint: str, repo: str, anonymous: bool, timeout_s: float) -> None:
        with needed_for(f"reading hf://datasets/{repo}"):
            import urllib3
        self.endpoint = endpoint
        self.host = urlsplit(endpoint).netloc
        self._repo = repo
        self._anonymous = anonymous
        self._timeout = urllib3.Timeout(connect=timeout_s, read=timeout_s)
        self._quiet_until = 0.0

    def json(self, url: str, form: Form[_Read]) -> tuple[_Read, str | None]:
        """The Hub's response at a URL, and the URL of the next page. Raises FileNotFoundError."""
        answer, location = self.ask(url, {})
        if location is not None:
            answer.close()
            raise ObjectError(f"{self.host} redirects to another host, {urlsplit(location).hostname}", temporary=False)
        with _failures(self.host):
            try:
                data = answer.read(_PAGE_BYTES, decode_content=True)
            finally:
                if answer.length_remaining:
                    answer.close()  # else the unread rest would be read as the next response
                answer.release_conn()
        try:
            found = form.from_json(data)
        except msgspec.MsgspecError as error:
            sort = shortened(answer.headers.get("Content-Type", "no type"))
            raise ObjectError(
                f"{self.host} does not respond like the Hub ({sort}: {shortened(str(error))})",
                temporary=False,
                advice="check HF_ENDPOINT",
            ) from None
        following = _NEXT.search(answer.headers.get("Link", ""))
        further = None if following is None else _redirect_target(url, following[1])
        if further is not None and _origin(further) != _origin(self.endpoint):
            raise ObjectError(f"the list of {self.host} continues at {urlsplit(further).hostname}", temporary=False)
        return found, further

    def ask(self, url: str, headers: dict[str, str]) -> tuple[BaseHTTPResponse, str | None]:
        """The Hub's response, or its redirect and the location outside the Hub. Raises FileNotFoundError."""
        if _is_offline():
            raise _offline("the requested data are not cached")
        left_s = self._quiet_until - time.monotonic()
        if left_s > 0:
            raise ObjectError(f"{self.host} refuses requests for now", temporary=True, wait_s=left_s)
        answer, location = self.follow(url, headers, self._send)
        if location is None and answer.status not in (200, 206):
            try:
                raise self._refused(answer)
            finally:
                answer.close()
        return answer, location

    def follow(self, url: str, headers: dict[str, str], send: _Send) -> tuple[BaseHTTPResponse, str | None]:
        """Follow redirects; those of the Hub only to its own host, because the token is sent nowhere else."""
        begin = url
        for _ in range(_HOPS):
            answer = send(url, headers)
            if answer.status not in _REDIRECTS:
                return answer, None
            answer.drain_conn()
            answer.release_conn()
            before, url = urlsplit(url), _redirect_target(url, answer.headers.get("Location", ""))
            after = urlsplit(url)
            if after.scheme not in ("http", "https") or (before.scheme, after.scheme) == ("https", "http"):
                raise ObjectError(
                    f"{before.hostname} redirects to the unsupported scheme {after.scheme!r}", temporary=False
                )
            if _origin(begin) == _origin(self.endpoint) != _origin(url):
                return answer, url
        raise ObjectError(f"{urlsplit(begin).hostname} redirects more than {_HOPS} times", False)

    def _send(self, url: str, headers: dict[str, str]) -> BaseHTTPResponse:
        assert _origin(url) == _origin(self.endpoint)
        token = None if self._anonymous else hub_token()[0]
        return self.send_unsigned(url, headers if token is None else {**headers, "Authorization": f"Bearer {token}"})

    def send_unsigned(self, url: str, headers: dict[str, str]) -> BaseHTTPResponse:
        """Send one request, without the token."""
        headers = {"User-Agent": f"energon-grain/{__version__}", "Accept-Encoding": "identity", **headers}
        with _failures(urlsplit(url).hostname or ""):
            return _connections(proxy_of(url)).request(
                "GET",
                url,
                headers=headers,
                timeout=self._timeout,
                retries=False,
                redirect=False,
                preload_content=False,
            )

    def no_repository(self) -> ObjectError:
        """The error for a dataset that does not exist or is private."""
        return ObjectError(
            f"there is no dataset {self._repo} at {self.endpoint}, or it is private",
            temporary=False,
            advice=f"check its name; if it is private, {self._token_hint}",
        )

    @property
    def _token_hint(self) -> str:
        if self._anonymous:
            return "no token is sent, because the storage settings set `anonymous: true` for it: remove that"
        token, where = hub_token()
        if token is not None:
            return f"check the permissions of the token in {where}"
        return "set HF_TOKEN to the token of an account with read access, or log in with `hf auth login`"

    def _refused(self, answer: BaseHTTPResponse) -> Exception:
        code, message = answer.headers.get("X-Error-Code", ""), answer.headers.get("X-Error-Message", "")
        token = hub_token()[0]
        if token:
            message = message.replace(token, "…")
        message = f"{shortened(message)} (HTTP {answer.status})".strip()
        if answer.status in BUSY:
            wait_s = _wait_s(answer, self.host)
            self._quiet_until = time.monotonic() + wait_s
            asked = f"too many requests to {self.host}: {message}"
            return ObjectError(asked, temporary=True, wait_s=wait_s)
        if code == "EntryNotFound" or (answer.status == 404 and not code):
            return FileNotFoundError(self._repo)
        if code == "RevisionNotFound":
            return ObjectError(f"{self._repo} has no such revision: {message}", False, advice="check the name after @")
        if code == "GatedRepo":
            return ObjectError(
                f"access denied: {self._repo} is gated",
                temporary=False,
                advice=f"request access at {self.endpoint}/datasets/{self._repo}, and {self._token_hint}",
            )
        if code == "RepoNotFound":
            return self.no_repository()
        if answer.status in (401, 403):
            return ObjectError(f"access denied: {message}", temporary=False, advice=self._token_hint)
        return ObjectError(message, temporary=answer.status >= 500)


def hub_token() -> tuple[str | None, str]:
    """The token to send, and its source; found like in huggingface_hub, and read again each time."""
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := os.environ.get(variable, "").strip():
            return token, variable
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    path = Path(os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")).expanduser()
    try:
        return path.read_text(encoding="utf-8").strip() or None, str(path)
    except (OSError, UnicodeDecodeError):
        return None, str(path)


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _offline(what: str) -> ObjectError:
    return ObjectError(f"HF_HUB_OFFLINE is set, but {what}", temporary=False, advice="unset it to query the Hub")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _redirect_target(url: str, place: str) -> str:
    """The target of a redirect or link. Raises ObjectError if it is not a URL."""
    try:
        led = urljoin(url, place)
        _origin(led)
    except ValueError:
        raise ObjectError(
            f"{urlsplit(url).hostname} redirects to {shortened(place)!r}, which is not a URL", False
        ) from None
    return led


def _wait_s(answer: BaseHTTPResponse, host: str) -> float:
    """Delay that the server requests. Raises ObjectError if it is too long."""
    reported, wait_s = answer.headers.get("Retry-After", ""), 0.0
    rate = _RATE.search(answer.headers.get("RateLimit", ""))
    if reported.isdecimal():
        wait_s = float(reported)
    elif reported:
        with suppress(ValueError):
            wait_s = max(0.0, parsedate_to_datetime(reported).timestamp() - time.time())
    elif rate is not None:
        wait_s = float(rate[1])
    if wait_s > _LONGEST_WAIT_S:
        raise ObjectError(f"{host} requests a delay of {wait_s:.0f} s", temporary=False)
    return wait_s


class _failures:  # noqa: N801 (a context manager)
    """Converts urllib3's errors to ObjectErrors. Their texts are dropped, because they may hold signed URLs."""

    __slots__ = ("_host",)

    def __init__(self, host: str) -> None:
        self._host = host

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        from urllib3 import exceptions

        if not isinstance(error, exceptions.HTTPError):
            return
        unreachable = False
        if isinstance(error, exceptions.NameResolutionError):
            reported, unreachable = f"cannot connect to {self._host}: unknown host name", True
        elif isinstance(error, exceptions.NewConnectionError | exceptions.ConnectTimeoutError):
            reported, unreachable = f"cannot connect to {self._host}: no response", True
        elif isinstance(error, exceptions.ReadTimeoutError):
            reported = f"{self._host} did not respond in time"
        elif isinstance(error, exceptions.SSLError):
            raise ObjectError(f"no secure connection to {self._host}: certificate rejected", False) from None
        elif any(isinstance(cause, HTTPException) and _TOO_LARGE.search(str(cause)) for cause in error.args):
            raise ObjectError(f"the response headers of {self._host} are too large", False) from None
        else:
            reported = f"the connection to {self._host} was lost ({type(error).__name__})"
        raise ObjectError(reported, temporary=True, unreachable=unreachable) from None


@functools.cache
def _connections(proxy: str | None) -> Any:
    """The connection pools of this process."""
    import urllib3
    from urllib3.util import parse_url

    if proxy is None:
        return urllib3.PoolManager(maxsize=64)
    user = parse_url(proxy).auth
    headers = urllib3.make_headers(proxy_basic_auth=user) if user else None
    return urllib3.ProxyManager(proxy, maxsize=64, proxy_headers=headers)


def _cached_json(path: Path, form: Form[_Read]) -> _Read | None:
    """A cached value; None if it is missing or damaged."""
    try:
        found = form.from_json(path.read_bytes())
        os.utime(path)
        return found
    except (OSError, msgspec.MsgspecError):
        return None


def _cache_json(path: Path, value: object) -> None:
    with suppress(OSError):  # read-only folder or full disk: the value is requested again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_unused(path.parent, UNUSED_S)
        atomic_write_bytes(path, msgspec.json.encode(value))
