"""Measure `when` and `seen` on made-up samples: nothing is read, so the arithmetic is measured.

`python -m benchmarks.uses [--samples 100_000_000] [--counted 10_000_000]` prints the median time of a query after two
passes and a half over that many samples in a blend of two datasets, the time per sample of the inverse in bulk, and the
seconds to count all uses of `counted` samples after one pass and three quarters.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from benchmarks.blame_at_scale import MadeUpLeaf
from benchmarks.child import program
from energon_grain import BatchDataset, BlendDataset, RepeatDataset, Stream, WorkerConfig
from energon_grain.stream.extensions import SEEN, WHEN

_BATCH = 512
_BULK = 1 << 20


def blended(samples: int, block: int | None) -> Stream:
    """Return an endless blend, 3 to 1, of a dataset of many samples and one with a tenth of them."""
    config = WorkerConfig(rank=0, world_size=1)
    parts = [
        (MadeUpLeaf(samples=n, block=block, worker_config=config), w) for n, w in ((samples, 3), (samples // 10, 1))
    ]
    leaves = [(RepeatDataset(leaf), weight) for leaf, weight in parts]
    return Stream.of(BatchDataset(BlendDataset(*leaves), _BATCH, list), num_workers=0)


def uses(samples: int, counted: int, block: int | None = None) -> dict[str, Any]:
    """Measure one setting. Returns `query_s`, the median of 50 queries; `us_per_sample` in bulk; and `seen_s`."""
    random = np.random.default_rng(0)
    with blended(samples, block) as stream:
        stream.seek(int(samples * 2.5 * 4 / 3) // _BATCH)
        dataset = "/".join(stream.spec.leaves[0].key)
        times = [_timed(stream, WHEN, [str(key)], dataset=dataset) for key in random.integers(0, samples, 50).tolist()]
        order, begin = stream.spec.order, time.perf_counter()
        drawn = order.draw_in_stream(random.integers(0, 4 * samples, _BULK))
        begin = time.perf_counter()
        assert order.routes is not None
        order.routes.position_of(drawn.leaf, order.table.position_of(drawn.leaf, drawn.index, drawn.epoch))
        bulk = time.perf_counter() - begin
    with blended(counted, block) as stream:
        stream.seek(int(counted * 1.75 * 4 / 3) // _BATCH)
        seen = _timed(stream, SEEN)
    return {"query_s": statistics.median(times), "us_per_sample": bulk / _BULK * 1e6, "seen_s": seen}


def _timed(stream: Stream, question: str, *arguments: Any, **options: Any) -> float:
    begin = time.perf_counter()
    stream.ask(question, *arguments, **options)
    return time.perf_counter() - begin


def main(samples: int = 100_000_000, counted: int = 10_000_000) -> None:
    """Print the times of both kinds of shuffles."""
    for name, block in (("full shuffle", None), ("blocks of 1,000", 1000)):
        found = uses(samples, counted, block)
        print(
            f"{name:16s} a query {found['query_s'] * 1e3:6.2f} ms   in bulk {found['us_per_sample']:5.2f} us a sample"
            f"   seen {found['seen_s']:5.2f} s"
        )


if __name__ == "__main__":
    program(main, uses=uses)
