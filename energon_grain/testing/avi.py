"""Motion JPEG in AVI: the simplest video file that every player reads."""

from __future__ import annotations

import struct
from collections.abc import Sequence

_HAS_INDEX, _KEY_FRAME = 0x10, 0x10


def encode_avi(pictures: Sequence[bytes], size: tuple[int, int], *, frames_per_second: int) -> bytes:
    """Return an AVI file that shows JPEG pictures one after the other.

    The layout follows Microsoft's description of RIFF AVI 1.0: headers, frames, and an index of the frames.

    Args:
        pictures: JPEG files, all of one size.
        size: Height and width.
        frames_per_second: How fast they are shown.
    """
    height, width = size
    largest = max(len(picture) for picture in pictures)
    main = struct.pack(
        "<14I", 1_000_000 // frames_per_second, largest * frames_per_second, 0, _HAS_INDEX, len(pictures), 0, 1,
        largest, width, height, 0, 0, 0, 0,
    )  # fmt: skip
    stream = struct.pack(
        "<4s4sIHHIIIIIIII4H", b"vids", b"MJPG", 0, 0, 0, 0, 1, frames_per_second, 0, len(pictures), largest, 0xFFFFFFFF,
        0, 0, 0, width, height,
    )  # fmt: skip
    bitmap = struct.pack("<IiiHH4sIiiII", 40, width, height, 1, 24, b"MJPG", 3 * width * height, 0, 0, 0, 0)
    headers = _list(b"hdrl", _chunk(b"avih", main) + _list(b"strl", _chunk(b"strh", stream) + _chunk(b"strf", bitmap)))
    frames = b""
    index = b""
    for picture in pictures:
        index += struct.pack("<4sIII", b"00dc", _KEY_FRAME, 4 + len(frames), len(picture))
        frames += _chunk(b"00dc", picture)
    content = b"AVI " + headers + _list(b"movi", frames) + _chunk(b"idx1", index)
    return _chunk(b"RIFF", content)


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def _list(name: bytes, content: bytes) -> bytes:
    return _chunk(b"LIST", name + content)
