"""A server on loopback that speaks S3 well enough to read from, and answers wrongly on request.

It is in the process under test, so that what it does is decided by functions; what needs a real S3 server, or forks,
takes `object_server`. A fault is a function that changes a right `Answer` in place.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import math
import re
import socket
import struct
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bkt"
SECRET, KEY = "SESSION-TOKEN-SECRET", "ACCESS-KEY-SECRET"
STALL_S = 0.6
"""Longer than the `timeout_s` of those who read."""
_DATE = "Mon, 01 Jan 2024 00:00:00 GMT"


@dataclass
class Answer:
    """What is sent.

    Attributes:
        status: Of HTTP; 0: nothing is sent.
        headers: By name; `Content-Length` is the length of the body unless it is there.
        body: What follows.
        whole: All bytes of the object.
        span: The range that was asked for.
        sent: How many bytes of the body are sent; None: all.
        wait_s: Before the first byte.
        pause_s: Before the rest of the body, behind `sent`.
        end: What follows: the connection is kept, closed or reset.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bytes = b""
    span: tuple[int, int] | None = None
    sent: int | None = None
    wait_s: float = 0.0
    pause_s: float = 0.0
    end: str = "keep"


Change = Callable[[Answer], None]


def _cut(answer: Answer) -> None:
    answer.sent, answer.end = len(answer.body) // 2, "close"


def _short(answer: Answer) -> None:
    answer.body = answer.body[: len(answer.body) // 2]


def _longer(answer: Answer) -> None:
    answer.body += hashlib.sha256(answer.body[:99]).digest() * (len(answer.body) // 32 + 9)


def _longer_by_one(answer: Answer) -> None:
    answer.body += b"x"


def _longer_and_cut(answer: Answer) -> None:
    _longer(answer)
    answer.sent, answer.end = len(answer.body) * 3 // 4, "close"


def _stall(answer: Answer) -> None:
    answer.wait_s, answer.end = STALL_S, "close"


def _stall_in_body(answer: Answer) -> None:
    answer.sent, answer.pause_s, answer.end = len(answer.body) // 2, STALL_S, "close"


def _drip(answer: Answer) -> None:
    answer.sent, answer.pause_s = min(len(answer.body), 100), 0.05


def _reset(answer: Answer) -> None:
    answer.status, answer.end = 0, "reset"


def _reset_in_body(answer: Answer) -> None:
    answer.sent, answer.end = len(answer.body) // 2, "reset"


def _status(status: int, **headers: str) -> Change:
    def change(answer: Answer) -> None:
        answer.status, answer.body = status, b"<Error><Code>Fault</Code><Message>on request</Message></Error>"
        answer.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    return change


def _range(form: str) -> Change:
    def change(answer: Answer) -> None:
        if answer.span is not None:
            first, stop = answer.span
            numbers = {"first": first, "last": stop - 1, "next": first + 1, "end": stop, "size": len(answer.whole)}
            answer.headers["Content-Range"] = form.format(**numbers)

    return change


def _no_range(answer: Answer) -> None:
    answer.headers.pop("Content-Range", None)


def _whole(answer: Answer) -> None:
    if answer.span is not None:
        answer.status, answer.body = 200, answer.whole
        _no_range(answer)


def _whole_as_part(answer: Answer) -> None:
    answer.body = answer.whole


def _shifted(answer: Answer) -> None:
    if answer.span is not None:
        first, stop = answer.span
        answer.body = answer.whole[first + 1 : stop + 1]
        _range("bytes {next}-{end}/{size}")(answer)


def _empty(answer: Answer) -> None:
    answer.body = b""


def _empty_with_length(answer: Answer) -> None:
    answer.sent, answer.end = 0, "close"


def _no_length(answer: Answer) -> None:
    answer.headers["Content-Length"], answer.end = "", "close"


def _chunked(answer: Answer) -> None:
    answer.headers |= {"Content-Length": "", "Transfer-Encoding": "chunked"}
    answer.body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(answer.body), answer.body)


def _gzip(answer: Answer) -> None:
    answer.headers["Content-Encoding"] = "gzip"
    answer.body = gzip.compress(answer.body, 1)


def _tag(tag: str | None) -> Change:
    def change(answer: Answer) -> None:
        answer.headers.pop("ETag", None)
        if tag is not None:
            answer.headers["ETag"] = tag

    return change


def _flipped(answer: Answer) -> None:
    middle = len(answer.body) // 2
    answer.body = answer.body[:middle] + bytes([answer.body[middle] ^ 4]) + answer.body[middle + 1 :]


def _of_another_place(answer: Answer) -> None:
    if answer.span is not None:
        first, stop = answer.span
        moved = answer.whole[512:] + answer.whole[:512]
        answer.body = moved[first:stop]


def _html(answer: Answer) -> None:
    answer.status, answer.body = 200, b"<html><body>Sign in</body></html>"
    answer.headers = {"Content-Type": "text/html"}


def _html_as_part(answer: Answer) -> None:
    answer.body = b"<html><body>Sign in</body></html>"
    answer.headers["Content-Type"] = "text/html"


def _huge_header(answer: Answer) -> None:
    answer.headers["X-Huge"] = "x" * 2_000_000


def _not_http(answer: Answer) -> None:
    answer.status, answer.body = -1, b"\x16\x03\x01 this is no HTTP\r\n\r\n"


FAULTS: dict[str, Change] = {
    "cut": _cut,
    "short": _short,
    "longer": _longer,
    "longer by one": _longer_by_one,
    "longer and cut": _longer_and_cut,
    "stall": _stall,
    "stall in the body": _stall_in_body,
    "drip": _drip,
    "reset": _reset,
    "reset in the body": _reset_in_body,
    "500": _status(500),
    "503": _status(503),
    "429 with Retry-After": _status(429, Retry_After="1"),
    "403": _status(403),
    "404": _status(404),
    "400": _status(400),
    "204": _status(204),
    "301 to nowhere": _status(301),
    "shifted bytes": _shifted,
    "shifted Content-Range": _range("bytes {next}-{end}/{size}"),
    "Content-Range of something else": _range("bytes 0-9/{size}"),
    "Content-Range without total": _range("bytes {first}-{last}/*"),
    "no number in Content-Range": _range("bytes {first}-x/{size}"),
    "no Content-Range": _no_range,
    "wrong total": _range("bytes {first}-{last}/99999999"),
    "total too small": _range("bytes {first}-{last}/9"),
    "whole file": _whole,
    "whole file as a part": _whole_as_part,
    "empty 206": _empty,
    "nothing of what was announced": _empty_with_length,
    "no length": _no_length,
    "chunked": _chunked,
    "gzip": _gzip,
    "another tag": _tag('"another"'),
    "no tag": _tag(None),
    "weak tag": _tag('W/"weak"'),
    "HTML": _html,
    "HTML as a part": _html_as_part,
    "huge header": _huge_header,
    "no HTTP": _not_http,
}
"""What answers for objects may have wrong. Bytes that are flipped under right headers are not here: nothing that S3
sends would show it."""

UNSEEN: dict[str, Change] = {"flipped bit": _flipped, "bytes of another place": _of_another_place}
"""What only digests of the data show."""


@functools.lru_cache(maxsize=64)
def _tag_of(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def send(handler: BaseHTTPRequestHandler, answer: Answer, ended: threading.Event) -> None:
    """Send an answer, and end the connection as it says. What stalls ends with `ended`."""
    if answer.wait_s:
        ended.wait(answer.wait_s)
    if answer.status:
        head = f"HTTP/1.1 {answer.status} Answer\r\n" if answer.status > 0 else ""
        length = "" if answer.status in (204, 304) else str(len(answer.body))
        headers = {"Content-Length": length, **answer.headers} if head else {}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
        handler.wfile.write(f"{head}{lines}".encode() + (b"\r\n" if head else b""))
        if handler.command != "HEAD":
            sent = len(answer.body) if answer.sent is None else answer.sent
            handler.wfile.write(answer.body[:sent])
            if answer.pause_s:
                handler.wfile.flush()
                ended.wait(answer.pause_s)
                handler.wfile.write(answer.body[sent:])
        handler.wfile.flush()
    handler.close_connection |= answer.end != "keep" or answer.status < 0
    if answer.end == "reset":
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        faulty = self.server.of
        with faulty.lock:
            faulty.requests.append((self.path, dict(self.headers)))
        answer = self._right()
        change = faulty.fault_of(self.path, self.headers.get("Range", ""))
        if change is not None:
            change(answer)
        with contextlib.suppress(ConnectionError):
            send(self, answer, self.server.of.ended)

    do_HEAD = do_GET

    def _right(self) -> Answer:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if "list-type" in query:
            return self._list(query.get("prefix", [""])[0])
        data = self.server.of.objects.get(unquote(parts.path).removeprefix(f"/{BUCKET}/"))
        if data is None:
            return Answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
        tag = _tag_of(data)
        headers = {"ETag": tag, "Last-Modified": _DATE, "Accept-Ranges": "bytes"}
        if self.headers.get("If-None-Match") == tag:
            return Answer(304, headers, b"", data)
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return Answer(200, headers, data, data)
        first = int(asked[1]) if asked[1] else max(0, len(data) - int(asked[2]))
        stop = min(int(asked[2]) + 1, len(data)) if asked[1] and asked[2] else len(data)
        if first >= len(data):
            return Answer(416, {"Content-Range": f"bytes */{len(data)}"}, b"")
        headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(data)}"
        return Answer(206, headers, data[first:stop], data, (first, stop))

    def _list(self, prefix: str) -> Answer:
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{_tag_of(data)}</ETag><Size>{len(data)}</Size></Contents>"
            for key, data in sorted(self.server.of.objects.items())
            if key.startswith(prefix)
        )
        body = f'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>'
        return Answer(200, {"Content-Type": "application/xml"}, body.encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    of: FaultyServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients give up answers


@dataclass
class FaultyServer:
    """A running server.

    Attributes:
        objects: By key.
        requests: Path and headers of each.
        lock: Of the requests.
        ended: Set at the end, so that nothing stalls then.
        hits: How many answers were changed.
    """

    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list[tuple[str, dict[str, str]]])
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    _fault: Change | None = None
    _match: str = ""
    _every: int = 1
    _left: float = math.inf
    _matched: int = 0
    hits: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which this server is found, with credentials that have a session token."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_SESSION_TOKEN": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def upload(self, folder: Path, prefix: str) -> str:
        """Put all files below a folder, and give the URL of the copy."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.objects[f"{prefix}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
        return f"s3://{BUCKET}/{prefix}"

    def fail(self, fault: Change | None, match: str = "", every: int = 1, times: float = math.inf) -> None:
        """Change every n-th answer from now on, `times` of them, of those with `match` in path, query and range."""
        with self.lock:
            self._fault, self._match, self._every, self._matched = fault, match, every, 0
            self._left = times

    def fault_of(self, path: str, wanted: str) -> Change | None:
        with self.lock:
            if self._fault is None or self._match not in f"{path} {wanted}" or not self._left:
                return None
            self._matched += 1
            if self._matched % self._every:
                return None
            self.hits += 1
            self._left -= 1
            return self._fault


@contextlib.contextmanager
def running_faulty_server(**given: Any) -> Generator[FaultyServer]:
    """A server on a free port until the end of the block."""
    faulty = FaultyServer(**given)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.of = faulty
        faulty.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield faulty
        finally:
            faulty.ended.set()
            server.shutdown()
            thread.join()
