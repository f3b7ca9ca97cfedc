"""Write two real datasets as plain tar files: scanned digits as PNG + class label, photographs as JPEG + caption.

This file does not use energon-grain. Any tool that writes adjacent `key.part` members creates a WebDataset.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import skimage
from PIL import Image
from sklearn.datasets import load_digits

Part = tuple[str, bytes]  # ("png", b"...")

# These photographs are part of the scikit-image wheel. Its other images are downloaded on first use.
PHOTOGRAPHS = {
    "astronaut.png": "an astronaut in an orange space suit",
    "brick.png": "a brick wall",
    "camera.png": "a man behind a camera on a tripod",
    "chelsea.png": "a tabby cat",
    "coffee.png": "a cup of coffee with a spoon",
    "coins.png": "Greek coins from Pompeii",
    "grass.png": "grass",
    "gravel.png": "gravel",
    "hubble_deep_field.jpg": "galaxies of the Hubble deep field",
    "moon.png": "the surface of the moon",
    "motorcycle_left.png": "a motorcycle in a garage",
    "retina.jpg": "a human retina",
    "rocket.jpg": "a rocket on its launch pad at night",
}
TILE = 128  # pixels


def write_digits(root: Path, *, samples_per_shard: int = 90) -> int:
    """Write all 1,797 scans (8 x 8 pixels, 17 grey levels) under `root` and return their number."""
    digits = load_digits()
    images = (digits.images * 15).astype(np.uint8)
    labelled = zip(images, digits.target, strict=True)
    samples = ([("png", encode(image, "PNG")), ("cls", b"%d" % label)] for image, label in labelled)
    return write_shards(root, samples, samples_per_shard)


def write_photographs(root: Path, *, samples_per_shard: int = 64) -> int:
    """Write the photographs, cut into tiles of 128 x 128 pixels, under `root` and return their number."""
    folder = Path(skimage.__file__).parent / "data"
    samples = (
        [("jpg", encode(tile, "JPEG")), ("txt", f"{caption}, row {row}, column {column}".encode())]
        for name, caption in PHOTOGRAPHS.items()
        for row, column, tile in tiles(np.asarray(Image.open(folder / name).convert("RGB")))
    )
    return write_shards(root, samples, samples_per_shard)


def tiles(photograph: npt.NDArray[np.uint8]) -> Iterable[tuple[int, int, npt.NDArray[np.uint8]]]:
    """Cut an image (height, width, 3) into whole tiles. Yields the row, the column and the tile (TILE, TILE, 3)."""
    rows, columns = photograph.shape[0] // TILE, photograph.shape[1] // TILE
    for row in range(rows):
        for column in range(columns):
            yield row, column, photograph[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]


def encode(pixels: npt.NDArray[np.uint8], image_format: str) -> bytes:
    """Encode an image with Pillow."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, image_format)
    return stream.getvalue()


def write_shards(root: Path, samples: Iterable[list[Part]], samples_per_shard: int) -> int:
    """Write samples as `shard-000.tar`, `shard-001.tar`, … with consecutive keys and return their number."""
    root.mkdir(parents=True, exist_ok=True)
    number, tar = 0, None
    for number, parts in enumerate(samples):
        if number % samples_per_shard == 0:
            if tar:
                tar.close()
            tar = tarfile.open(root / f"shard-{number // samples_per_shard:03d}.tar", "w")  # noqa: SIM115 (one at a time)
        assert tar
        for part, data in parts:
            member = tarfile.TarInfo(f"{number:06d}.{part}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    if tar:
        tar.close()
    return number + 1


if __name__ == "__main__":
    import sys

    folder = Path(sys.argv[1])
    print(write_digits(folder / "digits"), "digits,", write_photographs(folder / "photographs"), "tiles of photographs")
