# SPDX-License-Identifier: Apache-2.0
"""Seek indices for videos without one, in the container's own format.

libav finds a time through the container: in an mp4 by its sample tables or, if fragmented, by `sidx` or
`mfra`; in an mkv or webm by its Cues. Without these, it walks through all fragments of an mp4 when it opens it, and
reads an mkv from the start to the time. Such files come from recorders and live streams, which cannot go back to write
an index, or were cut off before they did.

The new index appears as part of the file (`ByteStream`): `mfra` after its end, or Cues before the first
cluster. libav reads it like any other, without changes to decoders. Nothing else moves: an mp4 counts offsets
from the beginning of the file, and an mkv has offsets only in Cues, and in a SeekHead, which libav does not require.

Sources: ISO/IEC 14496-12 (8.8, movie fragments; 8.8.10, mfra); RFC 9559 (Matroska) and RFC 8794 (EBML).
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Iterator
from typing import BinaryIO

from energon_grain.errors import DecodingError
from energon_grain.media.container import Limits, opened

_MOST_HEADER_BYTES = 64 << 20
_MOST_ENTRIES = 1 << 20
_MKV_HEAD_BYTES = 1 << 20
"""Recorders write a few hundred bytes before the first cluster."""
_EBML, _SEGMENT, _CLUSTER, _CUES = (bytes.fromhex(name) for name in ("1A45DFA3", "18538067", "1F43B675", "1C53BB6B"))


def missing_index(file: BinaryIO) -> tuple[int, bytes] | None:
    """Build the index that a file lacks.

    Reads the beginning of a file, then the headers of all fragments of a fragmented mp4, or a whole mkv without
    Cues, up to the first invalid data. For a damaged file, it returns an index of the valid part, or None.

    Returns:
        The position at which to insert the index, and the index; None if the file has one, or nothing to index.

    Raises:
        MissingPackageError: It is an mkv, and PyAV is not installed.
    """
    file.seek(0)
    head = file.read(12)
    if head[4:8] in (b"ftyp", b"styp", b"moov"):
        return _fragments_index(file)
    if head[:4] == _EBML:
        return _clusters_index(file)
    return None


_Box = tuple[bytes, int, int]  # kind, first byte of the content, one past its last


def _boxes(file: BinaryIO, start: int, stop: int) -> Iterator[_Box]:
    """The boxes of an mp4 between two positions, up to the first invalid one."""
    while start + 8 <= stop:
        file.seek(start)
        head = file.read(16)
        if len(head) < 8:
            return
        size, kind, begin = int.from_bytes(head[:4], "big"), head[4:8], start + 8
        if size == 1:
            size, begin = int.from_bytes(head[8:16], "big"), start + 16
        end = stop if size == 0 else start + size
        if end < begin or end > stop:
            return
        yield kind, begin, end
        start = end


def _content(file: BinaryIO, box: _Box) -> bytes:
    """The content of a box; empty if it is too large."""
    _, begin, end = box
    file.seek(begin)
    return file.read(end - begin) if end - begin <= _MOST_HEADER_BYTES else b""


def _within(data: bytes, kind: bytes) -> Iterator[bytes]:
    """The contents of all boxes of a kind inside a box."""
    file = io.BytesIO(data)
    return (data[begin:end] for found, begin, end in _boxes(file, 0, len(data)) if found == kind)


def _fragments_index(file: BinaryIO) -> tuple[int, bytes] | None:
    """`mfra` of a fragmented mp4: for each track, the time and position of every fragment with it."""
    size = file.seek(0, io.SEEK_END)
    entries = _fragments(file, size)
    if not entries:
        return None
    tables = b""
    for track, found in entries.items():
        rows = b"".join(struct.pack(">QQBBB", time, place, 1, 1, 1) for time, place in found)
        tables += _box(b"tfra", struct.pack(">IIII", 1 << 24, track, 0, len(found)) + rows)
    # `mfro`, the last box in it, holds its total length: readers find it from the end of the file.
    return size, _box(b"mfra", tables + _box(b"mfro", struct.pack(">II", 0, len(tables) + 24)))


def _fragments(file: BinaryIO, size: int) -> dict[int, list[tuple[int, int]]] | None:
    """The (time, position) of each fragment, by track; None if there are none or too many, or the file has an index."""
    entries: dict[int, list[tuple[int, int]]] = {}
    fragmented = False
    last = covered = 0
    for box in _boxes(file, 0, size):
        kind, begin, end = box
        if kind == b"mdat":
            last = end
        if kind == b"sidx":
            covered = max(covered, end + _sidx_bytes(_content(file, box)))
        if kind == b"moov":
            fragmented = b"mvex" in (inside for inside, _, _ in _boxes(file, begin, end))
        if kind in (b"mdat", b"moov") and not fragmented:
            return None
        if kind == b"moof":
            for track, time in _times(_content(file, box)):
                entries.setdefault(track, []).append((time, begin - 8))
        if sum(map(len, entries.values())) > _MOST_ENTRIES:
            return None
    return None if covered >= last else entries


def _sidx_bytes(content: bytes) -> int:
    """Number of bytes after a `sidx` that it describes."""
    begin, stop = (16, 20) if content[:1] == b"\0" else (20, 28)
    count = int.from_bytes(content[stop + 2 : stop + 4], "big")
    rows = range(stop + 4, stop + 4 + 12 * count, 12)
    first = int.from_bytes(content[begin:stop], "big")
    return first + sum(int.from_bytes(content[row : row + 4], "big") & 0x7FFFFFFF for row in rows)


def _times(moof: bytes) -> Iterator[tuple[int, int]]:
    """Each track in a fragment, and its start time there."""
    for traf in _within(moof, b"traf"):
        header, time = next(_within(traf, b"tfhd"), b""), next(_within(traf, b"tfdt"), b"")
        if len(header) >= 8 and len(time) >= 8:
            yield int.from_bytes(header[4:8], "big"), int.from_bytes(time[4 : 12 if time[0] else 8], "big")


def _box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, kind) + content


def _clusters_index(file: BinaryIO) -> tuple[int, bytes] | None:
    """Cues of an mkv: time and cluster of every keyframe of its first video track, else of every audio block.

    libav records these for its own seeking when it reads the file.
    """
    file.seek(0)
    head = file.read(_MKV_HEAD_BYTES)
    content, first = head.find(_SEGMENT) + 4, head.find(_CLUSTER)
    if first < content or _CUES in head[:first]:  # Cues are here, or `SeekHead` refers to them
        return None
    base = content + _width(head[content])
    block, found = 0, list[tuple[int, int]]()
    with contextlib.suppress(DecodingError), opened(file, Limits()) as container:
        for stream in (*container.streams.video, *container.streams.audio)[:1]:
            try:
                for packet in container.demux(stream):
                    block = packet.pos or block
            finally:  # for a damaged file, the part before the damage
                found = [(max(0, entry.timestamp), entry.pos - base) for entry in stream.index_entries]
    cues = [(time, place) for time, place in found if place >= first - base]
    if len(cues) < 2:
        return None
    file.seek(block)
    number = file.read(8)  # a block begins with the number of its track
    width = _width(number[0])
    track = int.from_bytes(number[:width], "big") & ((1 << 7 * width) - 1)
    # Positions take eight bytes, so that the length of the data before the clusters is known in advance.
    shift = len(_written(track, cues, 0))
    return first, _written(track, cues, shift)


def _width(first: int) -> int:
    """Number of bytes of an EBML number, from its first byte."""
    return 9 - first.bit_length()


def _written(track: int, cues: list[tuple[int, int]], shift: int) -> bytes:
    pieces: list[bytes] = []
    for time, place in cues:
        where = _ebml(0xF7, track) + _ebml(0xF1, place + shift)
        points = _ebml(0xB3, time) + b"\xb7" + bytes([0x80 | len(where)]) + where
        pieces.append(b"\xbb" + bytes([0x80 | len(points)]) + points)
    content = b"".join(pieces)
    return _CUES + (1 << 56 | len(content)).to_bytes(8, "big") + content


def _ebml(name: int, number: int) -> bytes:
    """An element with a number, in eight bytes."""
    return bytes([name, 0x88]) + number.to_bytes(8, "big")
