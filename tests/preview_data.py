"""A small dataset of all kinds of parts, with what data should not get away with, made once in a session."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_captioning_dataset, write_tars

SCRIPT = "</p></script><script>document.title = 'taken over'</script><img src=x onerror=\"document.title = 'taken'\">"
"""A caption that a careless page would run."""
TERMINAL = "plain \x1b[31mred\x1b]0;taken over\x07 \x9b2J\r\x08 ‮gnp.exe"
"""A caption that a careless command would let act."""


def picture(size: tuple[int, int] = (64, 48), kind: str = "JPEG", seed: int = 0) -> bytes:
    """A file with a smooth picture."""
    width, height = size
    rows, columns = np.mgrid[0:height, 0:width]
    red = 255 * columns / max(1, width - 1)
    pixels = np.stack([red, 255 * rows / max(1, height - 1), np.full_like(red, 40 * seed % 256)], axis=2)
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def sound(seconds: float = 1.0, rate: int = 16_000) -> bytes:
    """A WAV file with a tone that swells."""
    at = np.arange(int(seconds * rate)) / rate
    samples = (30_000 * np.sin(2 * np.pi * 440 * at) * at / seconds).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return buffer.getvalue()


def video(codec: str = "libx264", container: str = "mp4", frames: int = 24, size: tuple[int, int] = (96, 64)) -> bytes:
    """A file with a square that goes from left to right."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=12)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            pixels = np.zeros((size[1], size[0], 3), np.uint8)
            left = number * (size[0] - 16) // max(1, frames - 1)
            pixels[24:40, left : left + 16] = 255
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)
    return buffer.getvalue()


def make_media(root: Path, n: int = 12) -> Path:
    """A prepared crude dataset `media` of all kinds of parts, and a metadataset `mix.yaml` with another dataset."""
    film, tone = video(), sound()
    samples: list[dict[str, Any]] = []
    for number in range(n):
        sample: dict[str, Any] = {"__key__": f"k<b>{number:02d}&", "txt": f"caption {number}"}
        sample["json"] = {"number": number, "<i>key</i>": ["naïve", SCRIPT], "nested": {"a": None}}
        kind = number % 6
        if kind == 0:
            sample["jpg"] = picture(seed=number)
        elif kind == 1:
            sample["wav"] = tone
        elif kind == 2:
            sample["mp4"] = film
        elif kind == 3:
            sample |= {"png": picture((300, 900), "PNG", number), "npy": np.arange(20, dtype=np.float32)}
        elif kind == 4:
            sample["txt"] = f"{TERMINAL} {SCRIPT}"
        else:
            sample |= {
                "jpg": picture()[:200],
                "wav": b"RIFF no",
                "mp4": film[: len(film) // 3],
                "bin": bytes(range(40)),
            }
        samples.append(sample)
    write_tars(root / "media", samples, shards=2, name="sh<a>rd_{:03d}.tar")
    prepare_dataset(root / "media", split_ratio={"train": 1}, crude=True)
    make_captioning_dataset(root / "captions", n=9, shards=3)
    (root / "mix.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "      - {weight: 3, path: media, name: '<u>media</u>'}\n      - {weight: 1, path: captions}\n"
    )
    return root
