"""Telling images, video and audio from the first bytes of a file."""

from __future__ import annotations

Buffer = bytes | memoryview

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
