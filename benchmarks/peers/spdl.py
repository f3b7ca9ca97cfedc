"""SPDL over the same shards, which it reads from front to back: its tar scanner, and its pipeline with JPEG decoding.

The scanner reads an open file with a buffer of 1 MiB: members become `bytes` with the least processor time. A file in
memory or a mapped file take more. FFmpeg, SPDL's decoder, gets the format, because probing takes 6 % of the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.child import serve
from benchmarks.steady import steady

_BATCH = 32
_BUFFER_BYTES = 1 << 20
_QUEUED = 8


def link_ffmpeg() -> dict[str, Any]:
    """Link the FFmpeg libraries of PyAV beside those of SPDL, whose wheel has none, under the names it looks for."""
    import av
    import spdl.io

    target = Path(spdl.io.__file__).with_name("lib")
    linked: list[str] = []
    for library in sorted(Path(av.__file__).parent.with_name("av.libs").glob("*.so*")):
        stem, _, version = library.name.partition(".so.")
        names = [library.name]  # libraries look for each other under their full names
        if stem.startswith(("libav", "libsw")):
            names.append(f"{stem.partition('-')[0]}.so.{version.partition('.')[0]}")
        for name in names:
            (target / name).unlink(missing_ok=True)
            (target / name).symlink_to(library)
        linked += names[1:]
    return {"linked": linked}


class _Samples:
    """Endless batches of {part: bytes}; the shards are shuffled for each pass, the samples of a shard are not."""

    def __init__(self, folder: str) -> None:
        self._paths = sorted(Path(folder).glob("shard_*.tar"))

    def _members(self) -> Iterator[tuple[str, bytes]]:
        from spdl.io import iter_tarfile

        shuffled, rng = list(self._paths), random.Random(0)
        while True:
            rng.shuffle(shuffled)
            for path in shuffled:
                with path.open("rb", buffering=_BUFFER_BYTES) as file:
                    yield from iter_tarfile(file)

    def __iter__(self) -> Iterator[list[dict[str, bytes]]]:
        key = ""
        sample: dict[str, bytes] = {}
        batch: list[dict[str, bytes]] = []
        for name, data in self._members():
            stem, _, part = name.partition(".")
            if stem != key:
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
                key, sample = stem, {}
                batch.append(sample)
            sample[part] = data


def _with_ffmpeg(demux: Any, batch: list[dict[str, bytes]]) -> tuple[Any, list[bytes]]:
    """Return one contiguous array of shape (32, height, width, 3), uint8, and the captions."""
    import spdl.io

    images = [sample["jpg"] for sample in batch]
    buffer = spdl.io.load_image_batch(images, width=None, height=None, demux_config=demux)
    return spdl.io.to_numpy(buffer), [sample["txt"] for sample in batch]


def _with_simplejpeg(batch: list[dict[str, bytes]]) -> tuple[Any, list[bytes]]:
    """Return arrays of shape (height, width, 3), uint8, and the captions."""
    import simplejpeg

    return [simplejpeg.decode_jpeg(sample["jpg"]) for sample in batch], [sample["txt"] for sample in batch]


def _decoder(name: str) -> Callable[[list[dict[str, bytes]]], Any]:
    import simplejpeg  # noqa: F401
    import spdl.io

    if name == "simplejpeg":
        return _with_simplejpeg
    return partial(_with_ffmpeg, spdl.io.demux_config(format="jpeg_pipe", buffer_size=1 << 16))


def _weigh(batch: list[dict[str, bytes]]) -> tuple[int, int]:
    return len(batch), sum(len(data) for sample in batch for data in sample.values())


def _weigh_images(batch: tuple[Any, list[bytes]]) -> tuple[int, int]:
    images, captions = batch
    pixels = images.nbytes if hasattr(images, "nbytes") else sum(image.nbytes for image in images)
    return len(captions), pixels + sum(map(len, captions))


def throughput(
    folder: str, warmup_s: float, seconds: float, threads: int = 0, decoder: str = "ffmpeg"
) -> dict[str, Any]:
    """Measure the rate over endless passes.

    Without threads, the scanner runs in the thread of the caller. Otherwise it is the source of a pipeline, which has
    its own thread, and `threads` more decode whole batches with `ffmpeg` or `simplejpeg`.
    """
    import numpy  # noqa: F401
    import spdl.io  # noqa: F401
    from spdl.pipeline import PipelineBuilder

    if not threads:
        return steady(lambda: iter(_Samples(folder)), _weigh, warmup_s=warmup_s, seconds=seconds)
    decode = _decoder(decoder)

    def make() -> Iterator[Any]:
        builder = PipelineBuilder().add_source(_Samples(folder)).pipe(decode, concurrency=threads).add_sink(_QUEUED)
        pipeline = builder.build(num_threads=threads, use_thread_output_queue=True)
        pipeline.start()
        return iter(pipeline)

    return steady(make, _weigh_images, warmup_s=warmup_s, seconds=seconds)


if __name__ == "__main__":
    serve(link_ffmpeg=link_ffmpeg, throughput=throughput)
