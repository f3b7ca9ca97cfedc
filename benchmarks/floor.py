"""Limits of the machine and the bare interpreter: reads of the same byte ranges, decodes of the same bytes.

No sample objects, no order beyond one shuffled list, no state, no error handling. Each read is the range of a whole
sample in its tar (with headers), from `.tar.idx`. As in a loader, a batch of 32 stays in memory until the next one is
ready; `keep=False` drops each sample immediately, so malloc reuses the same pages.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.child import serve
from benchmarks.peers.samples import pixels, tar_samples
from benchmarks.steady import steady

_Range = tuple[int, int, int]  # file descriptor, bytes, offset


def _shuffled_ranges(folder: str) -> list[_Range]:
    ranges: list[_Range] = []
    for shard in sorted(Path(folder).glob("shard_*.tar")):
        descriptor = os.open(shard, os.O_RDONLY)
        starts = array("q", Path(f"{shard}.idx").read_bytes())
        ranges += [(descriptor, stop - start, start) for start, stop in itertools.pairwise(starts)]
    random.Random(0).shuffle(ranges)
    return ranges


def _batches(folder: str) -> Iterator[list[_Range]]:
    ranges = _shuffled_ranges(folder)
    while True:
        for start in range(0, len(ranges) - 31, 32):
            yield ranges[start : start + 32]


def pread(folder: str, warmup_s: float, seconds: float, keep: bool = True) -> dict[str, Any]:
    """A shuffled loop of `os.pread`, each sample into fresh bytes; without `keep`, each is dropped immediately."""
    read = os.pread

    def make() -> Iterator[list[Any]]:
        for batch in _batches(folder):
            if keep:
                yield [read(*one) for one in batch]
            else:
                yield [len(read(*one)) for one in batch]

    return steady(make, _weigh, warmup_s=warmup_s, seconds=seconds)


def preadv(folder: str, warmup_s: float, seconds: float) -> dict[str, Any]:
    """A shuffled loop of `os.preadv`, each sample into the same buffer."""
    read = os.preadv

    def make() -> Iterator[list[Any]]:
        buffer = memoryview(bytearray(max(size for _, size, _ in _shuffled_ranges(folder))))
        for batch in _batches(folder):
            yield [read(descriptor, (buffer[:size],), offset) for descriptor, size, offset in batch]

    return steady(make, _weigh, warmup_s=warmup_s, seconds=seconds)


def _weigh(batch: list[Any]) -> tuple[int, int]:
    return len(batch), sum(batch) if isinstance(batch[0], int) else sum(map(len, batch))


def jpeg(folder: str, warmup_s: float, seconds: float, decoder: str = "simplejpeg", threads: int = 1) -> dict[str, Any]:
    """A bare loop of the JPEG decoders of energon-grain (`simplejpeg`) or its peers (`pillow`), on `threads`.

    `pillow-256` also resizes to 256 x 256.
    """
    decode = _DECODERS[decoder]()
    payloads = [sample["jpg"] for shard in sorted(Path(folder).glob("*.tar")) for sample in tar_samples(str(shard))]
    decode(payloads[0])

    def run(own: list[bytes], span_s: float) -> tuple[int, float]:
        count = 0
        begin = now = time.perf_counter()
        for payload in itertools.cycle(own):
            decode(payload)
            count += 1
            now = time.perf_counter()
            if now - begin > span_s:
                break
        return count, now - begin

    shares = [payloads[index::threads] for index in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, shares, [warmup_s] * threads))
        used_s = time.process_time()
        counted = list(pool.map(run, shares, [seconds] * threads))
        used_s = time.process_time() - used_s
    rate = sum(count / elapsed for count, elapsed in counted)
    return {
        "samples_per_s": rate,
        "payload_mb_per_s": rate * 3 * 256 * 256 / 1e6,
        "samples_per_cpu_s_of_all": sum(count for count, _ in counted) / used_s,
    }


def _simplejpeg() -> Callable[[bytes], Any]:
    import simplejpeg

    return simplejpeg.decode_jpeg


_DECODERS: dict[str, Callable[[], Callable[[bytes], Any]]] = {
    "simplejpeg": _simplejpeg,
    "pillow": lambda: pixels,
    "pillow-256": lambda: partial(pixels, side=256),
}


if __name__ == "__main__":
    serve(pread=pread, preadv=preadv, jpeg=jpeg)
