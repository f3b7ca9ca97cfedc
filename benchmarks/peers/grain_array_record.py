"""Grain over ArrayRecord files: at its defaults, and in variants that benchmark well on few cores."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.child import serve
from benchmarks.peers.samples import pixels, tar_samples
from benchmarks.steady import steady

_WRITER_OPTIONS = {"default": "", "uncompressed": "group_size:1,uncompressed"}


def build(tars: list[str], target: str, option: str) -> dict[str, Any]:
    """Write one ArrayRecord file per shard; a record is the two parts, after the 4-byte length of the first."""
    from array_record.python.array_record_module import ArrayRecordWriter

    Path(target).mkdir(parents=True)
    for tar in tars:
        writer = ArrayRecordWriter(str(Path(target) / f"{Path(tar).stem}.arrayrecord"), _WRITER_OPTIONS[option])
        for sample in tar_samples(tar):
            first, second = sample.values()
            writer.write(struct.pack("<I", len(first)) + first + second)
        writer.close()
    return {}


class _Unpack:
    """Turns a record into a sample of two fields; decodes and resizes the first as an image if configured."""

    def __init__(self, image: bool, side: int) -> None:
        self.image = image
        self.side = side

    def __call__(self, record: bytes) -> dict[str, Any]:
        end = 4 + int.from_bytes(record[:4], "little")
        first: Any = record[4:end]
        if self.image:
            first = pixels(first, self.side)
        return {"first": first, "second": record[end:]}


def _weigh(batch: list[dict[str, Any]]) -> tuple[int, int]:
    return len(batch), sum(len(sample["first"]) + len(sample["second"]) for sample in batch)


def _weigh_images(batch: list[dict[str, Any]]) -> tuple[int, int]:
    return len(batch), sum(sample["first"].nbytes + len(sample["second"]) for sample in batch)


def throughput(
    folder: str,
    warmup_s: float,
    seconds: float,
    threads: int | None = None,
    workers: int = 0,
    batch_first: bool = False,
    image: bool = False,
    mixed: bool = False,
    side: int = 0,
) -> dict[str, Any]:
    """Measure the rate; `threads=None` is Grain's default (16), `batch_first` batches on the MapDataset.

    `mixed`: the first and the second half of the files are two sources, mixed one to one.
    """
    import grain.python as pygrain
    import numpy  # noqa: F401
    import PIL.Image  # noqa: F401
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain's worker processes read absl flags, which a plain script never parses

    paths = sorted(str(path) for path in Path(folder).glob("*.arrayrecord"))
    options = (
        pygrain.ReadOptions()
        if threads is None
        else pygrain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(1, 64 * threads))
    )

    def make() -> Iterator[list[dict[str, Any]]]:
        half = len(paths) // 2
        groups = [paths[:half], paths[half:]] if mixed else [paths]
        sources = [
            pygrain.MapDataset.source(pygrain.ArrayRecordDataSource(group)).seed(42 + number).shuffle().repeat()
            for number, group in enumerate(groups)
        ]
        samples = pygrain.MapDataset.mix(sources, [0.5, 0.5]) if mixed else sources[0]
        samples = samples.map(_Unpack(image, side))
        if batch_first:
            loader = samples.batch(32, batch_fn=list).to_iter_dataset(options)
        else:
            loader = samples.to_iter_dataset(options).batch(32, batch_fn=list)
        if workers:
            loader = loader.mp_prefetch(pygrain.MultiprocessingOptions(num_workers=workers))
        return iter(loader)

    return steady(make, _weigh_images if image else _weigh, warmup_s=warmup_s, seconds=seconds)


if __name__ == "__main__":
    serve(build=build, throughput=throughput)
