"""The process of an `object_server.ObjectServer`: prints its port, serves until its standard input ends.

moto's application is behind a handler of our own: connections are kept, objects are held in memory and sliced there,
and requests are recorded and may be made to fail. That gives about 700 requests a second and 500 MB/s, where moto's own
server reads the whole object for each range (18 requests a second at 100 MB).
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from io import BytesIO
from typing import Any

os.environ["MOTO_S3_DEFAULT_KEY_BUFFER_SIZE"] = "0"  # objects never become files

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from moto.s3.models import FakeKey
from werkzeug.serving import make_server

FakeKey.value = FakeKey.value.getter(lambda key: key._value_buffer._file.getvalue())  # shared, not copied


class Behaviour:
    """The faults to come, the latency, and the requests that were."""

    def __init__(self) -> None:
        self._lock, self._link = threading.Lock(), threading.Lock()
        self._running = 0
        self.reset()

    def reset(self) -> None:
        self.faults: list[dict[str, Any]] = []
        self.latency_s, self.link_bytes_s = 0.0, float("inf")
        self.habits: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.awake = threading.Event()

    def control(self, name: str, body: bytes) -> bytes:
        """Answer what comes from `ObjectServer` itself."""
        with self._lock:
            match name:
                case "faults":
                    self.faults += json.loads(body)
                case "delay":
                    self.latency_s, self.link_bytes_s = json.loads(body)
                case "habits":
                    self.habits = json.loads(body)
                case "reset":
                    self.awake.set()
                    self.reset()
                case "requests":
                    return json.dumps(self.requests).encode()
                case _:
                    raise ValueError(name)
        return b""

    def begin(self) -> int:
        """The number of requests running, with the one that begins."""
        with self._lock:
            self._running += 1
            return self._running

    def carry(self, count: int) -> None:
        """Take as long as so many bytes take on the link, which all answers share."""
        with self._link:
            time.sleep(count / self.link_bytes_s)

    def end(self) -> None:
        with self._lock:
            self._running -= 1

    def fault(self, method: str, wanted: str) -> dict[str, Any] | None:
        """What happens to this request, named as `Fault.match` says."""
        with self._lock:
            for fault in self.faults:
                if fault["method"] == method and fault["match"] in wanted and fault["times"] != 0:
                    fault["met"] = fault.get("met", 0) + 1
                    if fault["met"] % fault["every"]:
                        continue
                    if fault["times"] is not None:
                        fault["times"] -= 1
                    return fault
        return None

    def record(self, request: dict[str, Any]) -> None:
        with self._lock:
            self.requests.append(request)


BEHAVIOUR = Behaviour()


_Answer = tuple[str, list[tuple[str, str]], bytes, int]
"""Status, headers, content, and how many bytes of it are sent."""


class Handler(MotoRequestHandler):
    """Keeps connections, which werkzeug's own does not."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def log_request(self, *_: object) -> None:
        """Nobody reads it."""

    def run_wsgi(self) -> None:
        body = self._body()
        if self.path.startswith("/-/"):
            self._answer("200 OK", [], BEHAVIOUR.control(self.path.removeprefix("/-/"), body))
            return
        concurrent = BEHAVIOUR.begin()
        try:
            time.sleep(BEHAVIOUR.latency_s)
            fault, answer = self._found(body, concurrent)
            BEHAVIOUR.carry(answer[3])
        finally:
            BEHAVIOUR.end()  # before the answer goes: whoever has it may send the next request at once
        try:
            self._send(fault, *answer)
        except ConnectionError:
            self.close_connection = True

    def _found(self, body: bytes, concurrent: int) -> tuple[dict[str, Any], _Answer]:
        ranges = self.headers.get("Range", "")
        fault = BEHAVIOUR.fault(self.command, f"{self.path} {ranges}") or {"kind": None, "sent": 1.0}
        kind, share = fault["kind"], fault["sent"]
        if kind == "late":
            time.sleep(fault["late_s"])
            share = fault["sent"] = 1.0
        if kind == "status":
            status, headers, content = f"{fault['status']} Fault", [], b"<Error><Code>SlowDown</Code></Error>"
            share = fault["sent"] = 1.0
        elif share is None:
            status, headers, content = "0", [], b""
        else:
            status, headers, content = self._application(body)
        length = int(len(content) * (share or 0.0))
        BEHAVIOUR.record(
            {
                "method": self.command,
                "path": self.path,
                "range": ranges,
                "status": int(status.split()[0]),
                "sent_bytes": length if self.command != "HEAD" else 0,
                "concurrent": concurrent,
            }
        )
        return fault, (status, headers, content[:length] if kind == "short" else content, length)

    def _send(
        self, fault: dict[str, Any], status: str, headers: list[tuple[str, str]], content: bytes, length: int
    ) -> None:
        kind, awake = fault["kind"], BEHAVIOUR.awake
        if fault["sent"] is not None:
            self._answer(status, headers, content, length)
        if kind == "stall":
            awake.wait()
        if kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        self.close_connection |= kind in ("close", "reset", "stall")

    def _body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.wfile.flush()
        self.environ = self.make_environ()
        stream = self.environ["wsgi.input"]
        chunked = self.environ.get("wsgi.input_terminated")
        return stream.read() if chunked else stream.read(int(self.environ.get("CONTENT_LENGTH") or 0))

    def _application(self, body: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        answer: list[Any] = []
        environ = self.environ | {"wsgi.input": BytesIO(body)}
        if "unconditional" in BEHAVIOUR.habits:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        chunks = self.server.app(
            environ,
            lambda status, headers, _=None: answer.extend((status, headers)),
        )
        try:
            content = b"".join(chunks)
        finally:
            chunks.close()
        return answer[0], answer[1], content

    def _answer(self, status: str, headers: list[tuple[str, str]], content: bytes, sent: int | None = None) -> None:
        code, _, message = status.partition(" ")
        self.send_response(int(code), message)
        for name, value in headers:
            if name.lower() != "content-length" or self.command == "HEAD":
                bare = name.lower() == "etag" and "bare" in BEHAVIOUR.habits
                self.send_header(name, value.strip('"') if bare else value)
        if self.command != "HEAD" and code not in ("204", "304"):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content if sent is None else memoryview(content)[:sent])
        self.wfile.flush()


def main() -> None:
    server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()  # ends with the process that started this one


if __name__ == "__main__":
    main()
