"""Time writing a dataset: ours in one pass, webdataset's `ShardWriter` and then `prepare`, and LitData's `optimize`.

    PYTHONPATH=. .venv-peers/bin/python -m benchmarks.write [--mb 256] [--repeat 3]

All programs write the same bytes, which need no encoding, in shards (chunks) of 64 MB, until training on them is
possible. Each runs in a process of its own, and its start is not timed; a contender that is not installed is listed as
such. Only ours calls `fsync`: the others leave writing to disk to the system.
"""

from __future__ import annotations

import importlib.util
import math
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.child import ask, program

SHARD_BYTES = 64 << 20
SIZES = {"texts of 1 KB": 1_000, "pictures of 100 KB": 100_000}


def samples(count: int, size_bytes: int) -> Any:
    body = bytes(range(256)) * (size_bytes // 256 + 1)
    for i in range(count):
        yield f"{i:08d}", body[i % 256 :][: size_bytes - 40], b'{"number": %d}' % i


def ours(folder: Path, count: int, size_bytes: int, sqlite: bool = True) -> None:
    from energon_grain import DatasetWriter

    with DatasetWriter(folder, shard_bytes=SHARD_BYTES, sqlite=sqlite) as write:
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
    "ours, no sqlite": partial(ours, sqlite=False),
    "webdataset + prepare": webdataset,
    "litdata": litdata,
}
NEEDS = {"webdataset + prepare": "webdataset", "litdata": "litdata"}


def once(name: str, count: int, size_bytes: int) -> dict[str, float]:
    """Return the seconds of one contender."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        CONTENDERS[name](Path(folder, "new"), count, size_bytes)
        return {"seconds": time.perf_counter() - begun}


def main(mb: Annotated[int, typer.Option(help="Payload of each run.")] = 256, repeat: int = 3) -> None:
    installed = [name for name in CONTENDERS if importlib.util.find_spec(NEEDS.get(name, "json")) is not None]
    for what, size_bytes in SIZES.items():
        count = mb * 1_000_000 // size_bytes
        best = dict.fromkeys(installed, math.inf)
        for _ in range(repeat):  # in turns, so that a busy machine affects all alike
            for name in installed:
                found = ask("write", "once", name=name, count=count, size_bytes=size_bytes)
                best[name] = min(best[name], found["seconds"])
        for name in CONTENDERS:
            if name not in best:
                print(f"{what}, {name}: not installed", flush=True)
            else:
                rates = f"{mb / best[name]:,.0f} MB/s, {count / best[name]:,.0f} samples/s"
                print(f"{what}, {name}: {rates} ({best[name]:.2f} s)", flush=True)


if __name__ == "__main__":
    program(main, once=once)
