"""A real S3 server on loopback with faults on request, and buckets in it.

The server is moto's, in a process of its own (`object_server_program`), so that the process under test may fork.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from patience import PATIENCE_S

REGION = "us-east-1"
# moto checks no signature, but asks for one.
_SIGNED = {
    "Authorization": f"AWS4-HMAC-SHA256 Credential=test/20260101/{REGION}/s3/aws4_request, SignedHeaders=, Signature="
}


@dataclass(frozen=True)
class Fault:
    """What goes wrong with the next requests that match.

    Attributes:
        kind: "close" the connection, "reset" it (RST), "stall" for ever, answer with "status" instead, send a "short"
            body with a length that agrees with it, or answer as it should be but "late".
        sent: Share of the body that is sent first, after headers that promise all of it; `None` fails before them.
        status: Of the answer if that is the kind.
        late_s: How late that is.
        times: Number of requests, `None` for all to come.
        match: Part of what is meant: path, query, a space, and the header Range.
        method: Of the requests meant.
        every: Only every n-th of the requests that match is meant.
    """

    kind: Literal["close", "reset", "stall", "status", "short", "late"]
    sent: float | None = None
    status: int = 503
    late_s: float = 0.0
    times: int | None = 1
    match: str = ""
    method: str = "GET"
    every: int = 1


@dataclass(frozen=True)
class Request:
    """A request as the server met it.

    Attributes:
        method: Of HTTP.
        path: With bucket and query.
        range: The header, "" if there was none.
        status: Of the answer, 0 if there was none.
        sent_bytes: Length of the body sent.
        concurrent: Number of requests that were being answered when this one came, with it.
    """

    method: str
    path: str
    range: str
    status: int
    sent_bytes: int
    concurrent: int


@dataclass(frozen=True)
class ObjectServer:
    """A running server.

    Attributes:
        port: On 127.0.0.1.
    """

    port: int

    @property
    def signed(self) -> dict[str, str]:
        """Headers of a request that is let in."""
        return _SIGNED

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which S3 clients find this server and sign in."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """The body of the answer.

        Raises:
            OSError: The server said no.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, _SIGNED | headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise OSError(answer.status, f"{method} {path}: {content.decode()}")
        return content

    def inject(self, *faults: Fault) -> None:
        """Let the next requests fail; the first fault that matches a request is used."""
        self.ask("POST", "/-/faults", json.dumps([asdict(fault) for fault in faults]).encode())

    def delay(self, latency_s: float, link_bytes_s: float = float("inf")) -> None:
        """Answer each request after this time from now on, over a link of so many bytes a second for all of them."""
        self.ask("POST", "/-/delay", json.dumps([latency_s, link_bytes_s]).encode())

    def behave(self, *habits: Literal["bare", "unconditional"]) -> None:
        """Answer as some stores do from now on: with entity tags without quotes, or whatever If-None-Match says."""
        self.ask("POST", "/-/habits", json.dumps(habits).encode())

    def reset(self) -> None:
        """No faults, no latency, no habits, no requests on record; what stalls goes on."""
        self.ask("POST", "/-/reset")

    def requests(self, match: str = "", method: str = "GET") -> list[Request]:
        """Those of this method with `match` in their paths since the last reset, in the order of the answers."""
        found = [Request(**request) for request in json.loads(self.ask("GET", "/-/requests"))]
        return [request for request in found if match in request.path and request.method == method]

    def make_bucket(self, name: str) -> Bucket:
        self.ask("PUT", f"/{name}")
        return Bucket(server=self, name=name)


@dataclass(frozen=True)
class Bucket:
    """A bucket of a server.

    Attributes:
        server: Where it is.
        name: At least three characters.
    """

    server: ObjectServer
    name: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, content: bytes, *, public: bool = False) -> None:
        """Write or replace an object; a public one can be read without credentials."""
        self.server.ask("PUT", self._path(key), content, **({"x-amz-acl": "public-read"} if public else {}))

    def get(self, key: str) -> bytes:
        return self.server.ask("GET", self._path(key))

    def delete(self, key: str) -> None:
        self.server.ask("DELETE", self._path(key))

    def upload(self, folder: Path, prefix: str = "") -> str:
        """Put all files below a folder, hidden ones too, and give the URL that then stands for the folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder)}".lstrip("/"), path.read_bytes())
        return f"{self.url}/{prefix}".rstrip("/")

    def _path(self, key: str) -> str:
        return f"/{self.name}/{quote(key)}"


@contextmanager
def running_object_server() -> Iterator[ObjectServer]:
    """A server of its own, on a free port, until the end of the block or of this process."""
    program = Path(__file__).with_name("object_server_program.py")
    server = subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    with server:
        try:
            assert server.stdout is not None
            yield ObjectServer(port=int(server.stdout.readline()))
        finally:
            os.killpg(server.pid, signal.SIGKILL)
