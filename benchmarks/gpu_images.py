"""Speed and pixel differences of `SampleDecoder(image_decoder="nvimgcodec")`, on a machine with a GPU.

`python -m benchmarks.gpu_images [--threads 2] [--batch-size 64] [--seconds 5] [--least 5000]` decodes JPEGs of 512 x
512 (quality 90, smooth and grainy pictures that it draws) in batches, with each decoder in turn. `--threads` is the
number of cores to count. It prints images per second of wall-clock time, CPU milliseconds per image, and PSNR against
Pillow. Pin it to two cores (`taskset -c 0,1`) to repeat the target. It exits with 1 if nvImageCodec decodes fewer
images per second than `--least`, and reports a missing GPU.
"""

from __future__ import annotations

import io
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.child import program
from energon_grain import SampleDecoder

SIDE = 512
PICTURES = 16


def draw(seed: int) -> bytes:
    """Return a JPEG of gradients with grain, about the size of a photograph's."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).resize((SIDE, SIDE))
    pixels = np.asarray(coarse, np.float32) + rng.normal(0, 6, (SIDE, SIDE, 1))
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def speed(decoder: SampleDecoder, column: list[bytes], threads: int, seconds: float) -> tuple[float, float]:
    """Return images per second, and CPU milliseconds per image."""
    end = float("inf")

    def work(_: int) -> int:
        batches = 0
        while time.perf_counter() < end:
            decoder.decode_column("jpg", column, [range(len(column))])
            batches += 1
        return batches * len(column)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: decoder.decode_column("jpg", column), range(threads)))  # makes each thread's decoder
        began, worked = time.perf_counter(), time.process_time()
        end = began + seconds
        images = sum(pool.map(work, range(threads)))
        passed, worked = time.perf_counter() - began, time.process_time() - worked
    return images / passed, 1000 * worked / images


def psnr(images: list[Any], expected: list[Any]) -> float:
    """Return the PSNR of the image that differs most, in dB."""
    errors = [float(np.mean((np.asarray(a, float) - b) ** 2)) for a, b in zip(images, expected, strict=True)]
    return float(10 * np.log10(255**2 / max(errors))) if max(errors) else float("inf")


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


def main(threads: int = 2, batch_size: int = 64, seconds: float = 5.0, least: float = 0.0) -> None:
    warnings = _Warnings()
    logging.getLogger("energon_grain").addHandler(warnings)
    files = [draw(seed) for seed in range(PICTURES)]
    column = [files[place % PICTURES] for place in range(batch_size)]
    expected = SampleDecoder(image_decode="rgb8").decode_column("jpg", files)
    print(f"{SIDE} x {SIDE}, {sum(map(len, files)) / PICTURES / 1000:.0f} kB, {threads} threads")
    print("| decoder | images/s | CPU ms/image | lowest PSNR, dB |")
    rate = 0.0
    for name in ("pillow", "nvimgcodec"):
        decoder = SampleDecoder(image_decode="rgb8", image_decoder=name)
        rate, milliseconds = speed(decoder, column, threads, seconds)
        print(
            f"| {name} | {rate:.0f} | {milliseconds:.2f} | {psnr(decoder.decode_column('jpg', files), expected):.1f} |"
        )
    print("\n".join(warnings.seen[:1]))
    sys.exit(rate < least)


if __name__ == "__main__":
    program(main)
