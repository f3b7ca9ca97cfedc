"""What the server and a bare client can do: the bytes of all shards in ranges, several at a time, in no order."""

from __future__ import annotations

import http.client
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.child import serve
from benchmarks.object_store import BUCKET, REGION, begin_measurement, server_here

_Range = tuple[str, int, int]  # key, first byte, one past the last


def _ranges(folder: str, step: int) -> list[_Range]:
    sizes = {shard.name: shard.stat().st_size for shard in sorted(Path(folder).glob("*.tar"))}
    prefix = Path(folder).name
    return [
        (f"{prefix}/{name}", start, min(start + step, size))
        for name, size in sizes.items()
        for start in range(0, size, step)
    ]


def kvstore(folder: str, samples: int, in_flight: int, step: int = 4 << 20, latency_s: float = 0.0) -> dict[str, Any]:
    """TensorStore's key-value store, `in_flight` reads at a time."""
    import tensorstore

    server = server_here()
    spec = {
        "driver": "s3",
        "bucket": BUCKET,
        "endpoint": server.endpoint,
        "aws_region": REGION,
        "aws_credentials": {"type": "environment"},
    }
    context = tensorstore.Context({"s3_request_concurrency": {"limit": in_flight}})
    store = tensorstore.KvStore.open(spec, context=context).result()
    begin_measurement(server, latency_s)
    ranges = iter(_ranges(folder, step))
    begin, fetched = time.perf_counter(), 0
    waiting = deque(store.read(key, byte_range=slice(start, stop)) for key, start, stop in islice(ranges, in_flight))
    while waiting:
        fetched += len(waiting.popleft().result().value)
        waiting.extend(store.read(key, byte_range=slice(start, stop)) for key, start, stop in islice(ranges, 1))
    return _answer(samples, fetched, time.perf_counter() - begin)


def http_loop(folder: str, samples: int, in_flight: int, step: int = 4 << 20) -> dict[str, Any]:
    """Python's own HTTP client into one buffer a thread."""
    server = server_here()
    begin_measurement(server)
    ranges = _ranges(folder, step)

    def fetch(which: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        buffer, size = memoryview(bytearray(step)), 0
        for key, start, stop in ranges[which::in_flight]:
            connection.request(
                "GET", f"/{BUCKET}/{key}", headers={**server.signed, "Range": f"bytes={start}-{stop - 1}"}
            )
            answer = connection.getresponse()
            while got := answer.readinto(buffer):
                size += got
        connection.close()
        return size

    begin = time.perf_counter()
    with ThreadPoolExecutor(in_flight) as pool:
        fetched = sum(pool.map(fetch, range(in_flight)))
    return _answer(samples, fetched, time.perf_counter() - begin)


def _answer(samples: int, fetched: int, elapsed: float) -> dict[str, Any]:
    server = server_here()
    requests = len(server.requests(".tar"))
    server.reset()
    return {"samples_per_s": samples / elapsed, "requests": requests, "fetched_mb": fetched / 1e6}


if __name__ == "__main__":
    serve(kvstore=kvstore, http_loop=http_loop)
