"""A store on loopback that speaks the part of Azure's Blob service that is used, in memory, and checks signatures.

Paths are those of Azure's emulator, `/account/container/blob`. The tests that use this server run against the emulator
itself, too, where it is installed (`azurite`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import re
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and the key of every emulator."""
_SIGNED = ("Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date")
_SIGNED += ("If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range")
_DATE = "Sun, 01 Nov 2026 00:00:00 GMT"


@dataclass
class AzureServer:
    """A running server.

    Attributes:
        url: End point of the account.
        containers: Blobs by their names, each with its entity tag, by container.
        public: Containers that everybody may read.
        asked: Methods and paths that were asked for.
    """

    url: str = ""
    containers: dict[str, dict[str, tuple[bytes, str]]] = field(default_factory=dict)
    public: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    _tags: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def create(self, container: str) -> None:
        """Make a container, for those who have the key."""
        self.containers[container] = {}

    def publish(self, container: str) -> None:
        """Let everybody read a container."""
        self.public.add(container)

    def token(self) -> str:
        """A signature for whoever has it."""
        return "sv=2026-01-01&sig=allowed"

    def put(self, container: str, name: str, content: bytes) -> str:
        tag = f'"0x{next(self._tags):X}"'
        self.containers[container][name] = content, tag
        return tag

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        path, query = urlsplit(request.path).path, dict(parse_qsl(urlsplit(request.path).query))
        self.asked.append(f"{request.command} {unquote(path)}")
        _, _, container, *steps = unquote(path).split("/", 3)
        reads = request.command in ("GET", "HEAD") and container in self.public
        signature = shared_key(request.command, request.path, request.headers)
        if not reads and query.get("sig") != "allowed" and request.headers.get("Authorization") != signature:
            return _refusal(403, "AuthenticationFailed")
        blobs = self.containers.get(container)
        if blobs is None:
            return _refusal(404, "ContainerNotFound")
        match request.command, query.get("comp"):
            case "GET", "list":
                return 200, {}, _listed(blobs, query.get("prefix", ""), query.get("marker", ""))
            case "POST", "batch":
                return self._removed(request.headers["Content-Type"].partition("boundary=")[2], body, blobs)
            case "PUT", None:
                return 201, {"ETag": self.put(container, steps[0], body), "Last-Modified": _DATE}, b""
            case _:
                return _read(request, blobs.get(steps[0] if steps else ""))

    def _removed(
        self, boundary: str, body: bytes, blobs: dict[str, tuple[bytes, str]]
    ) -> tuple[int, dict[str, str], bytes]:
        answers = ""
        for number, path in enumerate(re.findall(r"DELETE (\S+) HTTP", body.decode())):
            gone = blobs.pop(unquote(path).split("/", 3)[3], None) is not None
            status = "202 Accepted" if gone else "404 The specified blob does not exist."
            answers += f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
            answers += f"HTTP/1.1 {status}\r\n{'' if gone else 'x-ms-error-code: BlobNotFound'}\r\n\r\n"
        content_type = f"multipart/mixed; boundary={boundary}"
        return 202, {"Content-Type": content_type}, f"{answers}--{boundary}--\r\n".encode()


def shared_key(method: str, path: str, headers: Message | Mapping[str, str]) -> str:
    """What a client that has the key sends: https://learn.microsoft.com/rest/api/storageservices/ (shared key)."""
    url = urlsplit(path)
    values = [headers.get(name, "") for name in _SIGNED]
    own = sorted((name.lower(), value) for name, value in headers.items() if name.lower().startswith("x-ms-"))
    lines = [method, *("" if value == "0" else value for value in values)]
    lines += [f"{name}:{value}" for name, value in own]
    lines += [f"/{ACCOUNT}{url.path}", *(f"{name}:{value}" for name, value in sorted(parse_qsl(url.query)))]
    digest = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    return f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"


def _read(request: BaseHTTPRequestHandler, blob: tuple[bytes, str] | None) -> tuple[int, dict[str, str], bytes]:
    if blob is None:
        return _refusal(404, "BlobNotFound")
    content, tag = blob
    headers = {"ETag": tag, "Last-Modified": _DATE}
    if request.headers.get("If-None-Match") == tag:
        return 304, headers, b""
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if not wanted:
        return 200, headers, content
    start, stop = int(wanted[1]), min(int(wanted[2] or len(content)) + 1, len(content))
    if start >= len(content):
        return _refusal(416, "InvalidRange")
    return 206, {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}, content[start:stop]


_QUOTE = '"'
"""Around entity tags in headers; lists of Azure have none."""


def _listed(blobs: dict[str, tuple[bytes, str]], prefix: str, marker: str, page: int = 3) -> bytes:
    names = sorted(name for name in blobs if name.startswith(prefix) and name >= marker)
    entries = "".join(
        f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{_DATE}</Last-Modified>"
        f"<Content-Length>{len(blobs[name][0])}</Content-Length><Etag>{blobs[name][1].strip(_QUOTE)}</Etag>"
        "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
        for name in names[:page]
    )
    following = escape(names[page]) if len(names) > page else ""
    return (
        '<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>'
        f"{entries}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
    ).encode()


def _refusal(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    text = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>No.</Message></Error>'
    return status, {"x-ms-error-code": code}, text.encode()


@contextmanager
def running_azure_server() -> Generator[AzureServer]:
    """A server on a free port, until the end of the block."""
    server = AzureServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, content = server.answer(self, body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_POST = do

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        server.url = f"http://127.0.0.1:{listening.server_port}/{ACCOUNT}"
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
