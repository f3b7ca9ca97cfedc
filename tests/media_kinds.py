"""Small files of media, of many kinds, made here."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import av
import numpy as np
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


def sound(form: str, codec: str, rate: int, seconds: float = 1.5, layout: str = "stereo") -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        channels = 2 if layout == "stereo" else 1
        frame = av.AudioFrame.from_ndarray(
            np.zeros((1, channels * int(rate * seconds)), np.int16), format="s16", layout=layout
        )
        frame.sample_rate = rate
        resampler = av.AudioResampler(stream.format, layout, rate, frame_size=stream.frame_size or 1024)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(piece))
        container.mux(stream.encode())
    return buffer.getvalue()


def video(form: str, codec: str, frames: int = 20, rate: int = 25, voice: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        heard = None if voice is None else container.add_stream(voice, rate=16000, layout="mono")
        for number in range(frames):
            shade = np.full((48, 64, 3), number * 5, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shade, format="rgb24")))
        container.mux(stream.encode())
        if heard is not None:
            samples = av.AudioFrame.from_ndarray(np.zeros((1, 12800), np.int16), format="s16", layout="mono")
            samples.sample_rate = 16000
            resampler = av.AudioResampler(heard.format, "mono", 16000, frame_size=heard.frame_size or 1024)
            for piece in [*resampler.resample(samples), *resampler.resample(None)]:
                container.mux(heard.encode(piece))
            container.mux(heard.encode())
    return buffer.getvalue()


SOUNDS: dict[str, Callable[[], bytes]] = {
    "a.wav": partial(sound, "wav", "pcm_s16le", 16000),
    "floats.wav": partial(sound, "wav", "pcm_f32le", 8000),
    "a.flac": partial(sound, "flac", "flac", 44100),
    "a.mp3": partial(sound, "mp3", "libmp3lame", 44100),
    "a.ogg": partial(sound, "ogg", "libopus", 48000),
    "a.m4a": partial(sound, "ipod", "aac", 44100),
    "a.aac": partial(sound, "adts", "aac", 44100),
}
VIDEOS: dict[str, Callable[[], bytes]] = {
    "a.mp4": partial(video, "mp4", "mpeg4", voice="aac"),
    "a.mov": partial(video, "mov", "mpeg4"),
    "a.mkv": partial(video, "matroska", "mpeg4", voice="aac"),
    "a.webm": partial(video, "webm", "libvpx"),
    "a.avi": partial(video, "avi", "mpeg4"),
}
