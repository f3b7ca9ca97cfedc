"""webdataset over the same shards: shard shuffle, a buffer of 100, batches of 32, in `WebLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.child import serve
from benchmarks.peers.samples import pixels
from benchmarks.steady import steady


class _Pick:
    """Picks the two fields of a sample; decodes and resizes the first as an image if configured."""

    def __init__(self, first: str, second: str, image: bool, side: int) -> None:
        self.first = first
        self.second = second
        self.image = image
        self.side = side

    def __call__(self, sample: dict[str, Any]) -> tuple[Any, bytes]:
        first = sample[self.first]
        if self.image:
            first = pixels(first, self.side)
        return first, sample[self.second]


def _weigh(batch: list[tuple[Any, bytes]]) -> tuple[int, int]:
    return len(batch), sum(getattr(first, "nbytes", 0) or len(first) + len(second) for first, second in batch)


def throughput(
    folder: str,
    warmup_s: float,
    seconds: float,
    parts: tuple[str, str],
    workers: int = 0,
    image: bool = False,
    side: int = 0,
) -> dict[str, Any]:
    """Measure the rate over endless passes."""
    import numpy  # noqa: F401
    import PIL.Image  # noqa: F401
    import webdataset as wds

    urls = sorted(str(path) for path in Path(folder).glob("shard_*.tar"))

    def make() -> Iterator[list[tuple[Any, bytes]]]:
        dataset = wds.WebDataset(urls, shardshuffle=len(urls)).repeat().shuffle(100)
        samples = dataset.map(_Pick(*parts, image, side)).batched(32, collation_fn=list)
        return iter(wds.WebLoader(samples, batch_size=None, num_workers=workers))

    return steady(make, _weigh, warmup_s=warmup_s, seconds=seconds)


if __name__ == "__main__":
    serve(throughput=throughput)
