"""The end of a program while requests are under way: at once, and without a word."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from conftest import RunScript
from object_server import Bucket, Fault

from energon_grain.testing import make_text_dataset

_SCRIPT = """
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from energon_grain.storage.object_client import ObjectRange, shared_client
from energon_grain.storage.settings import storage_settings

url = sys.argv[1]


def begin():
    client = shared_client(storage_settings())
    pool = ThreadPoolExecutor(2)
    for _ in range(4):
        pool.submit(client.read, ObjectRange(url))
    while not client.traffic.requests:
        time.sleep(0.01)
    time.sleep(0.5)


begin()
print(time.time())
"""


@pytest.mark.parametrize("kind", ["stall", "status"])
def test_a_program_ends_while_requests_are_under_way(bucket: Bucket, run_script: RunScript, kind: str) -> None:
    bucket.put("a", b"text")
    bucket.server.inject(Fault("stall" if kind == "stall" else "status", times=None, match="/a "))
    done = run_script(_SCRIPT, f"{bucket.url}/a", env=bucket.server.environment)
    ended = time.time()
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "attempt" not in line] == []
    assert ended - float(done.stdout) < 50  # a request that stalls takes minutes


_UNCLOSED = """
import sys

from energon_grain import WorkerConfig, get_savable_loader, get_train_dataset

url, workers, backend = sys.argv[1:]
if backend == "torch":
    from energon_grain_torch import WorkerConfig, get_savable_loader, get_train_dataset
if __name__ == "__main__":
    dataset = get_train_dataset(
        url,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=int(workers)),
        batch_size=4,
        shuffle_buffer_size=20,
        max_samples_per_sequence=5,
    )
    loader = get_savable_loader(dataset)
    batches = iter(loader)
    for _ in range(3):
        print(len(next(batches).__key__))
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("backend", ["grain", "torch"])
def test_a_loader_that_is_never_closed(
    bucket: Bucket, run_script: RunScript, tmp_path: Path, workers: int, backend: str
) -> None:
    url = bucket.upload(make_text_dataset(tmp_path / "texts", n=60, shards=3))
    done = run_script(_UNCLOSED, url, workers, backend, env=bucket.server.environment)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.split(), done.stderr) == (["4"] * 3, "")
