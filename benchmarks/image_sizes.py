"""Speedup of `SampleDecoder(image_size=…)` over decoding whole JPEGs and resizing them, and the pixel differences.

`python -m benchmarks.image_sizes` prints two tables, for the photographs included in scikit-image and scikit-learn
(`pip install --group demo`), saved as JPEG of quality 90. *PSNR* compares the decoder, at several fractions of the
sides, with resizing the whole picture by the same Pillow filter. *Speed* is measured for a picture of 1024 x 1024 made
from four photographs, resized to 256 x 256, against Pillow alone and against this decoder with Pillow's resizing:
alternating, medians of the ratios of each turn. It exits with 1 if a target is missed.
"""

from __future__ import annotations

import io
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import skimage
import sklearn
from PIL import Image

from energon_grain import SampleDecoder
from energon_grain.transforms.image import ImageFilter

FILTERS: tuple[ImageFilter, ...] = tuple(name for name in get_args(ImageFilter) if name != "nearest")
FRACTIONS = (2, 3, 4, 5, 8)
ROUNDS = 25
TARGET = 3.0
LEAST_DB = 31.0


def photographs() -> dict[str, Image.Image]:
    """Return colour photographs by name."""
    folder = Path(skimage.__file__).parent / "data"
    names = ("astronaut.png", "chelsea.png", "coffee.png", "ihc.png", "motorcycle_left.png")
    paths = [folder / name for name in (*names, "hubble_deep_field.jpg", "retina.jpg", "rocket.jpg")]
    paths += sorted((Path(sklearn.__file__).parent / "datasets/images").glob("*.jpg"))
    return {path.stem: Image.open(path).convert("RGB") for path in paths}


def jpeg(image: Image.Image) -> bytes:
    """Return a JPEG of quality 90."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def psnr(data: bytes, fraction: int, filter: ImageFilter) -> float:
    """Return the PSNR of a picture at a fraction of its size, against resizing the whole."""
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    wide, tall = whole.width // fraction, whole.height // fraction
    expected = np.asarray(whole.resize((wide, tall), Image.Resampling[filter.upper()]), float)
    decoder = SampleDecoder(image_decode="rgb8", image_size=(tall, wide), image_filter=filter)
    return float(10 * np.log10(255**2 / np.mean((decoder.decode("photograph.jpg", data) - expected) ** 2)))


def large(photographs: dict[str, Image.Image]) -> bytes:
    """Return four photographs in one of 1024 x 1024."""
    whole = Image.new("RGB", (1024, 1024))
    for number, name in enumerate(("astronaut", "chelsea", "flower", "motorcycle_left")):
        photograph = photographs[name]
        side = min(photograph.size)
        whole.paste(photograph.crop((0, 0, side, side)).resize((512, 512)), (512 * (number % 2), 512 * (number // 2)))
    return jpeg(whole)


def ratios(data: bytes, filter: ImageFilter) -> tuple[float, float, float]:
    """Return milliseconds of the decoder, and the ratios of Pillow and of the decoder with Pillow's resizing."""
    resample = Image.Resampling[filter.upper()]
    ours = SampleDecoder(image_decode="rgb8", image_size=256, image_filter=filter)
    whole = SampleDecoder(image_decode="rgb8")
    programs: tuple[Callable[[], Any], ...] = (
        lambda: ours.decode("a.jpg", data),
        lambda: np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((256, 256), resample)),
        lambda: np.asarray(Image.fromarray(whole.decode("a.jpg", data)).resize((256, 256), resample)),
    )
    turns: list[list[float]] = []
    for _ in range(ROUNDS):
        turn: list[float] = []
        for program in programs:
            began = time.perf_counter()
            program()
            turn.append(time.perf_counter() - began)
        turns.append(turn)
    milliseconds = 1000 * statistics.median(turn[0] for turn in turns)
    return milliseconds, *(statistics.median(turn[n] / turn[0] for turn in turns) for n in (1, 2))


def main() -> None:
    """Print both tables."""
    pictures = photographs()
    files = [jpeg(picture) for picture in pictures.values()]
    least = float("inf")
    print(f"PSNR in dB, lowest and median of {len(files)} photographs, by the fraction of their sides")
    print("| filter | " + " | ".join(f"1/{fraction}" for fraction in FRACTIONS) + " |")
    for filter in FILTERS:
        row: list[str] = []
        for fraction in FRACTIONS:
            values = [psnr(data, fraction, filter) for data in files]
            row.append(f"{min(values):.1f}, {statistics.median(values):.1f}")
            least = min(least, min(values)) if filter == "bicubic" else least
        print(f"| {filter} | " + " | ".join(row) + " |")
    data = large(pictures)
    print(f"\n1024 x 1024 in {len(data) / 1000:.0f} kB to 256 x 256: milliseconds; speedup over Pillow, and over")
    print("this decoder with Pillow's resizing")
    slowest = float("inf")
    for filter in FILTERS:
        milliseconds, pillow, own = ratios(data, filter)
        print(f"| {filter} | {milliseconds:.2f} | {pillow:.1f} | {own:.1f} |")
        slowest = min(pillow, own) if filter == "bicubic" else slowest
    sys.exit(slowest < TARGET or least < LEAST_DB)


if __name__ == "__main__":
    main()
