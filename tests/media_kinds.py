"""Small files of media, of many kinds, made here."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from media_files import Film, encode_sound
from PIL import Image


def picture(mode: str = "RGB", size: tuple[int, int] = (40, 30), noise: int = 255) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, noise + 1, (*size[::-1], 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def exif(size_bytes: int) -> bytes:
    return b"Exif\0\0" + bytes(size_bytes)


PICTURES: dict[str, Callable[[], bytes]] = {
    "a.jpg": lambda: saved(picture(), "JPEG"),
    "grey.jpg": lambda: saved(picture("L"), "JPEG"),
    "cmyk.jpg": lambda: saved(picture("CMYK"), "JPEG"),
    "progressive.jpg": lambda: saved(picture(), "JPEG", progressive=True),
    "exif.jpg": lambda: saved(picture(), "JPEG", exif=exif(60_000)),
    "turned.jpg": lambda: saved(picture(), "JPEG", exif=_turned()),
    "phone.jpg": lambda: saved(picture(), "MPO", save_all=True, append_images=[picture()]),
    **{f"{mode}.png": lambda mode=mode: saved(picture(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA")},
    "16.png": lambda: saved(Image.fromarray(np.ones((4, 5), np.uint16)), "PNG"),
    "apng.png": lambda: saved(picture(), "PNG", save_all=True, append_images=[picture(noise=3)]),
    "a.gif": lambda: saved(picture("P"), "GIF"),
    "moving.gif": lambda: saved(picture("P"), "GIF", save_all=True, append_images=[picture("P", noise=2)]),
    "a.bmp": lambda: saved(picture(), "BMP"),
    "a.webp": lambda: saved(picture(), "WEBP"),
    "alpha.webp": lambda: saved(picture("RGBA"), "WEBP"),
    "lossless.webp": lambda: saved(picture("RGBA"), "WEBP", lossless=True),
    "moving.webp": lambda: saved(picture(), "WEBP", save_all=True, append_images=[picture(noise=9)]),
    "large.webp": lambda: saved(picture(size=(600, 500)), "WEBP", lossless=True),
    "a.tif": lambda: saved(picture(), "TIFF"),
    "large.tif": lambda: _tiff_with_its_header_at_the_end(),
    "a.jp2": lambda: saved(picture(), "JPEG2000"),
    "a.ico": lambda: saved(picture("RGBA", (64, 64)), "ICO", sizes=[(16, 16), (48, 48)]),
    "bmp.ico": lambda: saved(picture("RGBA", (64, 64)), "ICO", sizes=[(16, 16), (32, 32)], bitmap_format="bmp"),
}


def _turned() -> bytes:
    tags = Image.Exif()
    tags[0x0112] = 6
    return tags.tobytes()


def _tiff_with_its_header_at_the_end() -> bytes:
    pixels = picture("L", (300, 200)).tobytes()
    tags = [(256, 300), (257, 200), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, 200), (279, len(pixels))]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return struct.pack("<2sHI", b"II", 42, 8 + len(pixels)) + pixels + struct.pack("<H", len(tags)) + entries + bytes(4)


def voice(form: str, codec: str, rate: int) -> bytes:
    """A sound of one and a half seconds."""
    return encode_sound(form, codec, rate * 3 // 2, rate)


def film(form: str, codec: str, frames: int = 20, sound: str | None = None) -> bytes:
    """A video of 25 frames a second."""
    return Film(form, codec, frames=frames, rate=Fraction(25), sound=sound).encode()


SOUNDS: dict[str, Callable[[], bytes]] = {
    "a.wav": partial(voice, "wav", "pcm_s16le", 16000),
    "floats.wav": partial(voice, "wav", "pcm_f32le", 8000),
    "a.flac": partial(voice, "flac", "flac", 44100),
    "a.mp3": partial(voice, "mp3", "libmp3lame", 44100),
    "a.ogg": partial(voice, "ogg", "libopus", 48000),
    "a.m4a": partial(voice, "ipod", "aac", 44100),
    "a.aac": partial(voice, "adts", "aac", 44100),
}
VIDEOS: dict[str, Callable[[], bytes]] = {
    "a.mp4": partial(film, "mp4", "mpeg4", sound="aac"),
    "a.mov": partial(film, "mov", "mpeg4"),
    "a.mkv": partial(film, "matroska", "mpeg4", sound="aac"),
    "a.webm": partial(film, "webm", "libvpx"),
    "a.avi": partial(film, "avi", "mpeg4"),
}
