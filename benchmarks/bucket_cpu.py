"""Processor seconds per GB that a pass over a bucket costs the loader's process, beside obstore alone.

python -m benchmarks.bucket_cpu [--rounds 3] [--cases "ours; obstore"]

A small S3 server in a process of its own sends files with `sendfile`. Each case runs in a new process: a pass over
half of the blobs (1 GB), which imports, connects, and fills the memory for prefetched bytes (1 GiB, each page of which
is new to the process once), then a measured pass over the other half. A pass includes the opening and ends after the
last batch; nothing is prefetched beyond it. Processor time is that of the whole process, without the server's.

`obstore` streams ranges of 4 MiB, four at a time, in pieces of 256 KiB as the loader does, and drops them. `obstore,
copied` also copies them into one buffer per thread, the least that a loader with pooled buffers would do. `obstore,
small` sends as many requests as the loader does for a shuffled pass: ranges of 400 KB, 32 at a time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, unquote, urlsplit

import typer

from benchmarks.child import ask, program
from benchmarks.datasets import build, link, once, prepare, shards
from benchmarks.object_store import own_cache
from benchmarks.resources import CACHE, claim_memory, warm

_BUCKET = "bench"
_STEP = 4 << 20
_PIECE = 256 << 10
_IN_FLIGHT = 4
_SMALL_STEP, _SMALL_IN_FLIGHT = 400_000, 32
_COUNTS = "/-/counts"
_MEMORY_BYTES = 3 << 29
CASES = ("ours", "ours, no pages", "obstore", "obstore, copied", "obstore, small")


class _Files(BaseHTTPRequestHandler):
    """Lists, heads and ranged reads of the files below `root`, as S3 answers them."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    root = Path()
    counting = threading.Lock()
    requests = sent_bytes = 0

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        parts = urlsplit(self.path)
        if parts.path == _COUNTS:
            self._send(200, json.dumps([_Files.requests, _Files.sent_bytes]).encode())
            _Files.requests = _Files.sent_bytes = 0
        elif "list-type" in parts.query:
            self._list(parse_qs(parts.query)["prefix"][0])
        else:
            self._file(self.root / unquote(parts.path).removeprefix(f"/{_BUCKET}/"), with_body=with_body)

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _list(self, prefix: str) -> None:
        found = (path for path in sorted(self.root.rglob("*")) if path.is_file())
        entries = "".join(
            f"<Contents><Key>{path.relative_to(self.root)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{_tag(path)}</ETag><Size>{path.stat().st_size}</Size></Contents>"
            for path in found
            if str(path.relative_to(self.root)).startswith(prefix)
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        self._send(200, body.encode(), Content_Type="application/xml")

    def _file(self, path: Path, *, with_body: bool) -> None:
        if not path.is_file():
            body = b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"
            self._send(404, body if with_body else b"")
            return
        size = path.stat().st_size
        start, stop, status = 0, size, 200
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = (
                (int(first), min(size, int(last) + 1 if last else size)) if first else (size - int(last), size)
            )
            status = 206
        self.send_response(status)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", _tag(path))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.end_headers()
        if not with_body:
            return
        self.wfile.flush()
        with path.open("rb") as file:
            at = start
            with suppress(ConnectionError):  # the client was closed
                while at < stop:
                    at += os.sendfile(self.connection.fileno(), file.fileno(), at, stop - at)
        if path.suffix == ".tar":
            with self.counting:
                _Files.requests += 1
                _Files.sent_bytes += stop - start


def _tag(path: Path) -> str:
    return f'"{path.stat().st_size:x}-{path.stat().st_mtime_ns:x}"'


def _serve(root: str, port: Connection) -> None:
    _Files.root = Path(root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Files)
    server.daemon_threads = True
    port.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def _served(root: Path) -> Generator[str]:
    """The address of a server of the files below `root`."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(str(root), theirs), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()


def _counts() -> tuple[int, int]:
    """Requests and bytes of shards since the last call."""
    import urllib.request

    with urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL"] + _COUNTS) as answer:
        requests, sent_bytes = json.load(answer)
    return requests, sent_bytes


def loader_pass(cache_mb: float | None) -> dict[str, Any]:
    """A pass of our loader."""
    from benchmarks import ours

    def run(folder: str) -> int:
        loader = ours.build_loader(f"s3://{_BUCKET}/{folder}", "crude-blob", 0, repeat=False)
        return sum(ours.weigh(batch)[1] for batch in loader)

    claim_memory(_MEMORY_BYTES)
    with own_cache(cache_mb):
        return _measured(run)


def bare_pass(root: str, copied: bool, small: bool) -> dict[str, Any]:
    """A pass of obstore alone."""
    import obstore

    store = obstore.store.S3Store(_BUCKET, client_options={"allow_http": True})
    step, in_flight = (_SMALL_STEP, _SMALL_IN_FLIGHT) if small else (_STEP, _IN_FLIGHT)

    def run(folder: str) -> int:
        ranges = [
            (f"{folder}/{shard.name}", at, min(at + step, shard.stat().st_size))
            for shard in shards(Path(root, folder))
            for at in range(0, shard.stat().st_size, step)
        ]

        def fetch(which: int) -> int:
            buffer, size = memoryview(bytearray(step)), 0
            for key, start, stop in ranges[which::in_flight]:
                at = 0
                for piece in store.get(key, options={"range": (start, stop)}).stream(min_chunk_size=_PIECE):
                    if copied:
                        buffer[at : at + len(piece)] = memoryview(piece)
                    at += len(piece)
                size += at
            return size

        with ThreadPoolExecutor(in_flight) as pool:
            return sum(pool.map(fetch, range(in_flight)))

    claim_memory(_MEMORY_BYTES)
    return _measured(run)


def _measured(run: Callable[[str], int]) -> dict[str, Any]:
    run("warm")
    _counts()
    before, began, times = time.process_time(), time.perf_counter(), os.times()
    payload = run("measured")
    cpu_s, wall_s, after = time.process_time() - before, time.perf_counter() - began, os.times()
    requests, sent_bytes = _counts()
    gigabytes = payload / 1e9
    return {
        "cpu_s_per_gb": cpu_s / gigabytes,
        "system_s_per_gb": (after.system - times.system) / gigabytes,
        "gb_per_s": gigabytes / wall_s,
        "times_needed": sent_bytes / payload,
        "requests": requests,
    }


def _folders() -> Path:
    """A folder of nothing but two prepared ones, with half of the shards each."""
    build(CACHE, ["blob"])
    source, root = CACHE / "blob", CACHE / "bucket-cpu"
    half = len(shards(source)) // 2
    for name, kept in (("warm", shards(source)[:half]), ("measured", shards(source)[half:])):
        once(root / name, f"{root.name}: {name}", partial(_linked, source, root / name, {shard.name for shard in kept}))
    return root


def _linked(source: Path, folder: Path, kept: set[str]) -> None:
    link(source, folder)
    for shard in shards(folder):
        if shard.name not in kept:
            shard.unlink()
    prepare(folder, None)


def main(
    rounds: Annotated[int, typer.Option(help="Processes per case; the cases alternate.")] = 3,
    cases: Annotated[str, typer.Option(help="Cases, separated by semicolons.")] = "; ".join(CASES),
) -> None:
    root = _folders()
    found: dict[str, list[dict[str, Any]]] = {}
    with _served(root) as endpoint:
        environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        for _ in range(rounds):
            for case in (name.strip() for name in cases.split(";")):
                warm(root / "measured")
                if case.startswith("ours"):
                    more: dict[str, Any] = {"cache_mb": 0 if "no pages" in case else None}
                    call = "loader_pass"
                else:
                    more = {"root": str(root), "copied": "copied" in case, "small": "small" in case}
                    call = "bare_pass"
                answer = ask("bucket_cpu", call, environment=environment, **more)
                found.setdefault(case, []).append(answer)
                print(case, {name: round(value, 3) for name, value in answer.items()}, file=sys.stderr, flush=True)
    names = ("cpu_s_per_gb", "system_s_per_gb", "gb_per_s", "times_needed", "requests")
    print("| case | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for case, answers in found.items():
        cells = (f"{statistics.median(answer[name] for answer in answers):.3g}" for name in names)
        print(f"| {case} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    program(main, loader_pass=loader_pass, bare_pass=bare_pass)
