# SPDX-License-Identifier: Apache-2.0
"""Extensions and first bytes of images, video and audio. Decoding is in `energon_grain.media`."""

from __future__ import annotations

from typing import Literal

Buffer = bytes | memoryview
AVDecode = Literal["torch", "AVDecoder", "pyav"]

AV_EXTENSIONS = frozenset({"avi", "flac", "flv", "mkv", "mov", "mp3", "mp4", "wav", "webm"})
"""Extensions of part names (in lower case) that mean video or audio."""
MAX_PART_BYTES = 1 << 31
"""Default maximum bytes of an unpacked part."""

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
_BRANDS = dict.fromkeys(b"mp41,mp42,isom,iso2,iso3,iso4,iso5,iso6,avc1,dash,mmp4,M4V ,M4VH".split(b","), "mp4")
_BRANDS[b"qt  "] = "mov"
_DOC_TYPES = ((b"\x42\x82\x84webm", "webm"), (b"\x42\x82\x88matroska", "mkv"))


def media_extension(data: Buffer) -> str | None:
    """Return the usual extension of an image, video or audio file with this content; None if unknown."""
    head = bytes(data[:4096])
    for start, extension in _STARTS:
        if head.startswith(start):
            return extension
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        # The animation chunk precedes the first image data.
        return "apng" if b"acTL" in head.split(b"IDAT", 1)[0] else "png"
    if head[:2] == b"BM" and head[6:10] == bytes(4):  # a text that starts with BM has no such reserved bytes
        return "bmp"
    return _container_extension(head)


def _container_extension(head: bytes) -> str | None:
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12])
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12])
    if head[:4] == b"\x1a\x45\xdf\xa3":  # EBML
        return next((extension for mark, extension in _DOC_TYPES if mark in head), None)
    return None
