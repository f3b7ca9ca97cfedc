"""Video and audio parts, and telling media files from their first bytes."""

from __future__ import annotations

import importlib
import io
from typing import Any, BinaryIO, Literal

from energon_grain.extras import needed_for

Buffer = bytes | memoryview
AVDecode = Literal["torch", "AVDecoder", "pyav"]

AV_EXTENSIONS = frozenset({"avi", "flac", "flv", "mkv", "mov", "mp3", "mp4", "wav", "webm"})
"""Ends of part names (in lower case) that mean video or audio."""

_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "jpg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"8BPS", "psd"),
    (b"\0\0\1\0", "ico"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "jpx"),
    (b"fLaC", "flac"),
    (b"FLV\1", "flv"),
    (b"ID3", "mp3"),
    (b"\xff\xfb", "mp3"),
    (b"\xff\xf3", "mp3"),
    (b"\xff\xf2", "mp3"),
)
_RIFF = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"}
_MP4_BRANDS = frozenset(
    {
        b"mp41",
        b"mp42",
        b"isom",
        b"iso2",
        b"iso3",
        b"iso4",
        b"iso5",
        b"iso6",
        b"avc1",
        b"dash",
        b"mmp4",
        b"M4V ",
        b"M4VH",
    }
)


class AVDecoder:
    """A video or audio file that is decoded when asked. Holding one costs nothing; picklable as its stream is."""

    __slots__ = ("stream",)

    def __init__(self, stream: BinaryIO) -> None:
        """Hold `stream`, a seekable binary file."""
        self.stream = stream

    def open(self) -> Any:
        """Open the file with PyAV from its beginning.

        Raises:
            MissingPackageError: PyAV is not installed.
        """
        av = require_av()
        self.stream.seek(0)
        return av.open(self.stream)

    def __repr__(self) -> str:
        return f"AVDecoder({self.stream!r})"


def decode_lazily(data: Buffer | BinaryIO) -> AVDecoder:
    """A decoder of the file with these bytes."""
    return AVDecoder(io.BytesIO(data) if isinstance(data, bytes | memoryview) else data)


def decode_pyav(data: Buffer | BinaryIO) -> Any:
    """The file opened with PyAV."""
    return decode_lazily(data).open()


def require_av() -> Any:
    """The module `av`.

    Raises:
        MissingPackageError: PyAV is not installed.
    """
    with needed_for("decoding video and audio"):
        return importlib.import_module("av")


def media_extension(data: Buffer) -> str | None:
    """The usual extension of an image, video or audio file with these contents; None where it is none that we know."""
    head = bytes(data[:4096])
    for start, extension in _STARTS:
        if head.startswith(start):
            return extension
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12])
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        # An animation announces itself before the first image data.
        return "apng" if b"acTL" in head.split(b"IDAT", 1)[0] else "png"
    if head[4:8] == b"ftyp":
        return "mov" if head[8:12] == b"qt  " else "mp4" if head[8:12] in _MP4_BRANDS else None
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "webm" if b"\x42\x82\x84webm" in head else "mkv" if b"\x42\x82\x88matroska" in head else None
    if head[:2] == b"BM" and head[6:10] == bytes(4):  # a text that begins with BM has no such reserved bytes
        return "bmp"
    return None
