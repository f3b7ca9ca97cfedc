"""Contents of the samples of the datasets, the same bytes for the same seed, and shards of them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

Sample = tuple[str, Mapping[str, bytes]]


@cache
def _prose(length_bytes: int) -> bytes:
    """Return made-up words with a natural frequency distribution, so that compressors find text-like redundancy."""
    rng = np.random.default_rng(1)
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgk", np.uint8)
    words = [bytes(rng.choice(letters, size)) for size in rng.integers(2, 10, 5000)]
    ranks = np.minimum(rng.zipf(1.3, length_bytes // 3), len(words)) - 1
    return b" ".join(words[rank] for rank in ranks)[:length_bytes]


def prose() -> bytes:
    """Return the source of `text`."""
    return _prose(1 << 22)


def text(start: int, stop: int) -> Iterator[Sample]:
    """900 to 1,100 bytes of `txt` and 65 bytes of `json`."""
    words = prose()
    rng = np.random.default_rng((2, start))
    offsets = rng.integers(0, len(words) - 1100, stop - start)
    sizes = rng.integers(900, 1101, stop - start)
    for index, offset, size in zip(range(start, stop), offsets.tolist(), sizes.tolist(), strict=True):
        yield f"{index:09d}", {"txt": words[offset : offset + size], "json": _metadata(index)}


def _metadata(index: int) -> bytes:
    record = {"id": index, "source": "synthetic", "license": "none"}
    return json.dumps(record).encode().ljust(65)


def blob(start: int, stop: int) -> Iterator[Sample]:
    """80 to 120 KB of incompressible `bin` and 65 bytes of `json`."""
    rng = np.random.default_rng((3, start))
    sizes = rng.integers(80_000, 120_001, stop - start)
    for index, size in zip(range(start, stop), sizes.tolist(), strict=True):
        yield f"{index:09d}", {"bin": rng.bytes(size), "json": _metadata(index)}


def page(start: int, stop: int) -> Iterator[Sample]:
    """9 to 11 KB of incompressible `bin` and 65 bytes of `json`."""
    rng = np.random.default_rng((6, start))
    sizes = rng.integers(9_000, 11_001, stop - start)
    for index, size in zip(range(start, stop), sizes.tolist(), strict=True):
        yield f"{index:09d}", {"bin": rng.bytes(size), "json": _metadata(index)}


def jpeg(start: int, stop: int) -> Iterator[Sample]:
    """A 256 x 256 `jpg` of about 33 KB (quality 90, 4:2:0, soft shapes under sensor-like noise) and a `txt` caption."""
    return _captioned(np.random.default_rng((4, start)), range(start, stop), side=256, noise=14)


def large_jpeg(start: int, stop: int) -> Iterator[Sample]:
    """A 1024 x 1024 `jpg` of about 230 KB (quality 90, 4:2:0, soft shapes, less noise) and a `txt` caption."""
    return _captioned(np.random.default_rng((7, start)), range(start, stop), side=1024, noise=3)


def _captioned(rng: np.random.Generator, indices: range, *, side: int, noise: float) -> Iterator[Sample]:
    from PIL import Image

    words = prose()
    for index in indices:
        encoded = io.BytesIO()
        Image.fromarray(_picture(rng, side, noise)).save(encoded, "JPEG", quality=90)
        offset = int(rng.integers(0, len(words) - 80))
        yield f"{index:09d}", {"jpg": encoded.getvalue(), "txt": words[offset : offset + 80]}


def _picture(rng: np.random.Generator, side: int, noise: float) -> npt.NDArray[np.uint8]:  # (side, side, 3)
    cells = side // 32
    coarse = rng.integers(0, 256, (cells + 1, cells + 1, 3)).astype(np.float32)
    places = np.linspace(0, cells, side, endpoint=False)
    low = places.astype(np.int64)
    share = (places - low).astype(np.float32)
    rows = coarse[low] * (1 - share)[:, None, None] + coarse[low + 1] * share[:, None, None]
    smooth = rows[:, low] * (1 - share)[:, None] + rows[:, low + 1] * share[:, None]
    grain = rng.normal(0, noise, (side, side, 1)).astype(np.float32)
    return np.clip(smooth + grain, 0, 255).astype(np.uint8)


def tiny(start: int, stop: int) -> Iterator[Sample]:
    """84 bytes of `txt`, nothing else."""
    words = prose()
    offsets = np.random.default_rng((5, start)).integers(0, len(words) - 84, stop - start)
    for index, offset in zip(range(start, stop), offsets.tolist(), strict=True):
        yield f"{index:09d}", {"txt": words[offset : offset + 84]}


_BLOCK = 512
_RECORD = 20 * _BLOCK


def _header_template() -> bytes:
    header = bytearray(_BLOCK)
    header[100:108] = b"0000644\0"
    header[108:116] = header[116:124] = b"0000000\0"
    header[136:148] = b"14720000000\0"
    header[148:156] = b" " * 8
    header[156:157] = b"0"
    header[257:265] = b"ustar\x0000"
    return bytes(header)


_TEMPLATE = _header_template()
_TEMPLATE_SUM = sum(_TEMPLATE)


def _member(name: str, data: bytes) -> bytes:
    raw_name = name.encode("ascii")
    if len(raw_name) > 100:
        raise ValueError(f"{name!r} has {len(raw_name)} bytes; a ustar name has at most 100")
    size = b"%011o" % len(data)
    checksum = _TEMPLATE_SUM + sum(raw_name) + sum(size)
    padding = bytes(-len(data) % _BLOCK)
    return b"".join(
        (
            raw_name.ljust(100, b"\0"),
            _TEMPLATE[100:124],
            size,
            _TEMPLATE[135:148],
            b"%06o\0 " % checksum,
            _TEMPLATE[156:],
            data,
            padding,
        )
    )


def write_shard(path: Path, samples: Iterable[Sample]) -> None:
    """Write samples as one plain ustar file, in about 2 µs per member: a million members take seconds.

    Supports only the features of the datasets: regular files with names of at most 100 ASCII bytes, the same owner and
    time.
    """
    written = 0
    with path.open("wb", buffering=1 << 20) as file:
        for key, parts in samples:
            for part, data in parts.items():
                written += file.write(_member(f"{key}.{part}", data))
        file.write(bytes(2 * _BLOCK + -(written + 2 * _BLOCK) % _RECORD))
