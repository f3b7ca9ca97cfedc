"""The samples of the shards, to write them in a peer's format; and decoding images as users of other loaders do it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any


def tar_samples(path: str) -> Iterator[dict[str, bytes]]:
    """Each sample of one shard as {part: payload}."""
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
    """(height, width, 3) uint8; resized to `side` x `side` by Pillow's bicubic filter where that is not 0."""
    import numpy as np
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(image.resize((side, side)) if side else image)
