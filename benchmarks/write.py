"""Time writing a dataset: ours in one pass, webdataset's `ShardWriter` with `prepare` behind it, LitData's `optimize`.

    PYTHONPATH=. .venv-peers/bin/python -m benchmarks.write [--mb 256] [--repeat 3]

All write the same bytes that are there already, with nothing encoded, in shards (chunks) of 64 MB, until one could
train on them. Each runs in a process of its own, which is timed without its start; a contender that is not installed is
said to be. `fsync` is ours alone: the others leave their bytes to the system.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHARD_BYTES = 64 << 20
SIZES = {"texts of 1 KB": 1_000, "pictures of 100 KB": 100_000}


def samples(count: int, size_bytes: int) -> Any:
    body = bytes(range(256)) * (size_bytes // 256 + 1)
    for i in range(count):
        yield f"{i:08d}", body[i % 256 :][: size_bytes - 40], b'{"number": %d}' % i


def ours(folder: Path, count: int, size_bytes: int) -> None:
    from energon_grain import DatasetWriter

    with DatasetWriter(folder, shard_bytes=SHARD_BYTES) as write:
        for key, body, text in samples(count, size_bytes):
            write({"__key__": key, "bin": body, "json": text})


def ours_without_sqlite(folder: Path, count: int, size_bytes: int) -> None:
    from energon_grain import DatasetWriter

    with DatasetWriter(folder, shard_bytes=SHARD_BYTES, sqlite=False) as write:
        for key, body, text in samples(count, size_bytes):
            write({"__key__": key, "bin": body, "json": text})


def webdataset(folder: Path, count: int, size_bytes: int) -> None:
    import webdataset

    from energon_grain.prepare import prepare_dataset

    folder.mkdir()
    with webdataset.ShardWriter(f"{folder}/shard-%06d.tar", maxsize=SHARD_BYTES, maxcount=1 << 40, verbose=0) as write:
        for key, body, text in samples(count, size_bytes):
            write.write({"__key__": key, "bin": body, "json": text})
    prepare_dataset(folder, split_ratio=[1], crude=True)


def litdata(folder: Path, count: int, size_bytes: int) -> None:
    from litdata import optimize

    runs = [(start, min(start + 1000, count)) for start in range(0, count, 1000)]
    optimize(fn=_litdata_run(size_bytes), inputs=runs, output_dir=str(folder), chunk_bytes=SHARD_BYTES, num_workers=1)


class _litdata_run:  # noqa: N801 (pickled by name)
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def __call__(self, run: tuple[int, int]) -> Any:
        body = bytes(range(256)) * (self.size_bytes // 256 + 1)
        for i in range(*run):
            yield {"key": f"{i:08d}", "bin": body[i % 256 :][: self.size_bytes - 40], "json": b'{"number": %d}' % i}


CONTENDERS = {
    "ours": ours,
    "ours, no sqlite": ours_without_sqlite,
    "webdataset + prepare": webdataset,
    "litdata": litdata,
}
NEEDS = {"webdataset + prepare": "webdataset", "litdata": "litdata"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mb", type=int, default=256, help="payload of each run")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, count, size_bytes = options.one[0], int(options.one[1]), int(options.one[2])
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            CONTENDERS[name](Path(folder, "new"), count, size_bytes)
            print(json.dumps(time.perf_counter() - begun))
        return
    for what, size_bytes in SIZES.items():
        count = options.mb * 1_000_000 // size_bytes
        best: dict[str, float] = {}
        for _ in range(options.repeat):  # one after the other, so that a busy machine is busy for all
            for name in CONTENDERS:
                if importlib.util.find_spec(NEEDS.get(name, "json")) is None:
                    continue
                command = [sys.executable, "-m", "benchmarks.write", "--one", name, str(count), str(size_bytes)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                seconds = json.loads(done.stdout.splitlines()[-1])
                best[name] = min(best.get(name, seconds), seconds)
        for name in CONTENDERS:
            if name not in best:
                print(f"{what}, {name}: not installed", flush=True)
            else:
                mb_s = options.mb / best[name]
                print(
                    f"{what}, {name}: {mb_s:,.0f} MB/s, {count / best[name]:,.0f} samples/s ({best[name]:.2f} s)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
