"""A plain web server on loopback: files by name, in ranges, and no lists."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


@dataclass
class WebServer:
    """A running server.

    Attributes:
        folder: What it serves.
        url: Of that folder.
        entity_tags: Whether answers tell the version of a file.
        ranges: Whether it sends a part of a file.
        asked: Paths that were asked for, as they came.
    """

    folder: Path
    url: str = ""
    entity_tags: bool = True
    ranges: bool = True
    asked: list[str] = field(default_factory=list[str])

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(request.path)
        file = self.folder / unquote(request.path.partition("?")[0]).lstrip("/")
        if not file.is_file():
            request.send_error(404)
            return
        content = file.read_bytes()
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        headers = {"ETag": tag} if self.entity_tags else {}
        status, wanted = 200, re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("Range", ""))
        if self.entity_tags and request.headers.get("If-None-Match") == tag:
            status, content = 304, b""
        elif self.ranges and wanted:
            first, last = wanted.groups()
            start = int(first) if first else max(len(content) - int(last), 0)
            stop = min(int(last) + 1, len(content)) if first and last else len(content)
            status = 206 if start < len(content) else 416
            span = f"{start}-{stop - 1}" if status == 206 else "*"
            headers["Content-Range"] = f"bytes {span}/{len(content)}"
            content = content[start:stop]
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(content)


@contextmanager
def running_web_server(folder: Path) -> Generator[WebServer]:
    """A server of a folder, on a free port, until the end of the block."""
    server = WebServer(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        server.url = f"http://127.0.0.1:{listening.server_port}"
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
