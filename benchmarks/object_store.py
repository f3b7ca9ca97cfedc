"""A dataset in a bucket of a real S3 server on loopback, and measurements of loaders and bare clients with it.

The server is that of the tests: moto's, with persistent connections and objects in memory. It shares the machine with
the measured program and takes 1.4 ms of a core per request, regardless of its size.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.child import serve
from benchmarks.resources import claim_memory

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from object_server import REGION, Fault, ObjectServer, running_object_server

BUCKET = "bench"
_PORT = "ENERGON_BENCH_S3_PORT"
_MEMORY_BYTES = 3 << 29
_Range = tuple[str, int, int]  # key, first byte, one past the last


@contextlib.contextmanager
def bucket_of(folder: Path) -> Iterator[None]:
    """Serve a dataset until the end of the block; processes started inside find the server in the environment."""
    before = dict(os.environ)
    with running_object_server() as server, tempfile.TemporaryDirectory() as temporary:
        config = Path(temporary) / "msc.json"
        config.write_text(json.dumps(_msc(server)))
        server.make_bucket(BUCKET).upload(folder, folder.name)
        os.environ |= {**server.environment, "MSC_CONFIG": str(config), _PORT: str(server.port)}
        try:
            yield
        finally:
            os.environ.clear()
            os.environ |= before


def server_here() -> ObjectServer:
    """Return the server that `bucket_of` runs."""
    return ObjectServer(port=int(os.environ[_PORT]))


def begin_measurement(server: ObjectServer, latency_s: float = 0.0) -> None:
    """Reset the server's counters, set its latency, and make memory available on the machine."""
    claim_memory(_MEMORY_BYTES)
    server.reset()
    server.delay(latency_s)


def _msc(server: ObjectServer) -> dict[str, Any]:
    """Return the configuration of the same bucket for Energon's client."""
    options = {"base_path": BUCKET, "endpoint_url": server.endpoint, "region_name": REGION}
    keys = {"access_key": "test", "secret_key": "test"}
    profile = {
        "storage_provider": {"type": "s3", "options": options},
        "credentials_provider": {"type": "S3Credentials", "options": keys},
    }
    return {"profiles": {BUCKET: profile}}


@contextlib.contextmanager
def own_cache(cache_mb: float | None, **more: Any) -> Iterator[None]:
    """An empty block cache for energon-grain; None: of the default size, 0: none."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:  # requests may be in flight
        settings = Path(temporary) / "storage.yaml"
        size = {} if cache_mb is None else {"cache_bytes": int(cache_mb * 1e6)}
        settings.write_text(json.dumps({"cache_dir": f"{temporary}/objects", **size, **more}))
        os.environ["ENERGON_GRAIN_STORAGE"] = str(settings)
        yield


def first_pass(
    programs: str,
    url: str,
    program: str,
    samples: int,
    latency_s: float = 0.0,
    workers: int = 0,
    cache_mb: float | None = None,
    limit_s: float = 20.0,
) -> dict[str, Any]:
    """Measure the rate of a first pass over a dataset, including opening and the first batch.

    Data prefetched before the first batch would otherwise not count. It ends after `limit_s`, with the rate of the
    samples so far.
    """
    module = importlib.import_module(programs)
    server = server_here()
    with own_cache(cache_mb):
        begin_measurement(server, latency_s)
        begin = time.perf_counter()
        batches = iter(module.build_loader(url, program, workers))
        seen, payload = module.weigh(next(batches))
        first_batch_s = time.perf_counter() - begin
        measured = _rate(module, batches, begin, begin + limit_s, samples, seen, payload)
    return {"first_batch_s": first_batch_s, **measured}


def passes(
    programs: str,
    url: str,
    program: str,
    samples: int,
    warm: int,
    count: int,
    workers: int = 0,
    cache_mb: float | None = None,
    limit_s: float = 20.0,
) -> dict[str, Any]:
    """Measure the rate of `count` passes over a dataset after `warm` others, as in `first_pass`."""
    module = importlib.import_module(programs)
    server = server_here()
    with own_cache(cache_mb):
        begin_measurement(server)
        batches = iter(module.build_loader(url, program, workers))
        seen = 0
        while seen < warm * samples:
            seen += module.weigh(next(batches))[0]
        server.reset()
        begin = time.perf_counter()
        return _rate(module, batches, begin, begin + limit_s, count * samples)


def short_run(programs: str, url: str, program: str, batches: int, cache_mb: float, workers: int = 0) -> dict[str, Any]:
    """Measure how many bytes a run of some batches asks for, in relation to those that it delivers."""
    module = importlib.import_module(programs)
    server = server_here()
    with own_cache(cache_mb):
        begin_measurement(server)
        begin, payload = time.perf_counter(), 0
        for batch in islice(iter(module.build_loader(url, program, workers)), batches):
            payload += module.weigh(batch)[1]
        elapsed = time.perf_counter() - begin
        requests = server.requests(".tar")
        asked = sum(request.sent_bytes for request in requests)
    return {"requests": len(requests), "run_s": elapsed, "times_needed": asked / payload}


def swallowed(
    programs: str, url: str, program: str, batches: int, every: int, cache_mb: float = 0, workers: int = 0
) -> dict[str, Any]:
    """Measure the time for some batches from a store that never answers one in `every` requests.

    Nothing is prefetched, so that each lost request delays its batch; 0: it answers all.
    """
    module = importlib.import_module(programs)
    server = server_here()
    with own_cache(cache_mb, ahead_bytes=0):
        begin_measurement(server)
        if every:
            server.inject(Fault("stall", times=None, match=".tar", every=every))
        begin = time.perf_counter()
        for batch in islice(iter(module.build_loader(url, program, workers)), batches):
            module.weigh(batch)
        elapsed = time.perf_counter() - begin
        requests = len(server.requests(".tar"))
        server.reset()
    return {"requests": requests, "run_s": elapsed}


def _rate(
    module: Any, batches: Iterator[Any], begin: float, end: float, samples: int, seen: int = 0, payload: int = 0
) -> dict[str, Any]:
    while seen < samples and time.perf_counter() < end:
        more, size = module.weigh(next(batches))
        seen, payload = seen + more, payload + size
    return _answer(seen, payload, begin)


def _answer(samples: int, payload: int, begin: float) -> dict[str, Any]:
    elapsed, server = time.perf_counter() - begin, server_here()
    requests = server.requests(".tar")
    server.reset()
    return {
        "samples_per_s": samples / elapsed,
        "payload_mb_per_s": payload / elapsed / 1e6,
        "requests": len(requests),
        "fetched_mb": sum(request.sent_bytes for request in requests) / 1e6,
    }


def _ranges(folder: str, step: int) -> list[_Range]:
    """Return the byte ranges of all shards, for clients that fetch several at a time, in no particular order."""
    sizes = {shard.name: shard.stat().st_size for shard in sorted(Path(folder).glob("*.tar"))}
    prefix = Path(folder).name
    return [
        (f"{prefix}/{name}", start, min(start + step, size))
        for name, size in sizes.items()
        for start in range(0, size, step)
    ]


def kvstore(folder: str, samples: int, in_flight: int, step: int = 4 << 20, latency_s: float = 0.0) -> dict[str, Any]:
    """TensorStore's key-value store, with `in_flight` concurrent reads."""
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
    return _answer(samples, fetched, begin)


def http_loop(folder: str, samples: int, in_flight: int, step: int = 4 << 20) -> dict[str, Any]:
    """Python's own HTTP client, into one buffer per thread."""
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
    return _answer(samples, fetched, begin)


if __name__ == "__main__":
    serve(
        first_pass=first_pass,
        passes=passes,
        short_run=short_run,
        swallowed=swallowed,
        kvstore=kvstore,
        http_loop=http_loop,
    )
