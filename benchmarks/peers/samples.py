"""Read the samples of the shards, to write them in a peer's format; decode images as users of other loaders do."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any


def tar_samples(path: str) -> Iterator[dict[str, bytes]]:
    """Yield each sample of one shard as {part: payload}."""
    with tarfile.open(path) as tar:
        key = None
        sample: dict[str, bytes] = {}
        for member in tar:
            name, _, part = member.name.partition(".")
            if name != key and sample:
                yield sample
                sample = {}
            key = name
            file = tar.extractfile(member)
            assert file is not None
            sample[part] = file.read()
        if sample:
            yield sample


def pixels(data: bytes, side: int = 0) -> Any:
    """Return (height, width, 3) uint8; with `side`, resized to `side` x `side` by Pillow's bicubic filter."""
    import numpy as np
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(image.resize((side, side)) if side else image)
