"""LitData's StreamingDataset over its own chunks (64 MB, shuffled), read in the main process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.child import serve
from benchmarks.peers.samples import pixels, tar_samples
from benchmarks.steady import steady


def build(tars: list[str], target: str, option: str) -> dict[str, Any]:
    """Write chunks of 64 MB with {part: bytes} samples."""
    from litdata.streaming.writer import BinaryWriter

    Path(target).mkdir(parents=True)
    writer = BinaryWriter(target, chunk_bytes="64MB")
    index = 0
    for tar in tars:
        for sample in tar_samples(tar):
            writer[index] = sample
            index += 1
    writer.done()
    writer.merge()
    return {}


def _weigh(batch: list[dict[str, Any]]) -> tuple[int, int]:
    return len(batch), sum(sum(getattr(part, "nbytes", 0) or len(part) for part in sample.values()) for sample in batch)


def throughput(folder: str, warmup_s: float, seconds: float, workers: int = 0, side: int = 0) -> dict[str, Any]:
    """Measure the rate over endless epochs; with `side`, the part `jpg` is decoded and resized to it."""
    from litdata import StreamingDataLoader, StreamingDataset

    class Images(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return {**sample, "jpg": pixels(sample["jpg"], side)}

    def make() -> Iterator[list[dict[str, Any]]]:
        dataset = (Images if side else StreamingDataset)(folder, shuffle=True, drop_last=False)
        loader = StreamingDataLoader(dataset, batch_size=32, num_workers=workers, collate_fn=list)
        while True:
            yield from loader

    return steady(make, _weigh, warmup_s=warmup_s, seconds=seconds)


if __name__ == "__main__":
    serve(build=build, throughput=throughput)
