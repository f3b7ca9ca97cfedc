"""The index that a video lacks, in its container's own form.

libav finds a time by what a container says: in an mp4 by its sample tables or, where it is in fragments, by `sidx` or
`mfra`; in an mkv or webm by its Cues. Without, it walks through all fragments of an mp4 when it opens it, and reads an
mkv from the beginning up to the time. Files without come from recorders and live streams, which cannot go back to write
an index, or were cut off before they did.

What is made here is shown as a part of the file (`ByteStream`): `mfra` behind its end, or Cues in front of the first
cluster. libav reads that as it reads any other, and no decoder needs to know. Nothing else moves: an mp4 counts offsets
from the beginning of the file, and an mkv has none but in Cues, and in a SeekHead, which libav does not insist on.

Sources: ISO/IEC 14496-12 (8.8, movie fragments; 8.8.10, mfra); RFC 9559 (Matroska) and RFC 8794 (EBML).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import BinaryIO

MP4_OPTIONS = {"use_mfra_for": "pts"}
"""With these libav looks for `mfra` when it opens an mp4; other formats take no notice."""
_MOST_HEADER_BYTES = 64 << 20
_MOST_ENTRIES = 1 << 20
_LAST_TIME = (1 << 63) - 1

_EBML, _SEGMENT, _CLUSTER, _CUES = 0x1A45DFA3, 0x18538067, 0x1F43B675, 0x1C53BB6B
_SEEK_HEAD, _SEEK, _SEEK_ID, _TRACKS, _TRACK = 0x114D9B74, 0x4DBB, 0x53AB, 0x1654AE6B, 0xAE
_TRACK_NUMBER, _TRACK_TYPE, _VIDEO = 0xD7, 0x83, 1
_TIMESTAMP, _SIMPLE_BLOCK, _BLOCK_GROUP, _BLOCK, _REFERENCE = 0xE7, 0xA3, 0xA0, 0xA1, 0xFB
_INSIDE_SEGMENT = frozenset({_CLUSTER, _CUES, _SEEK_HEAD, _TRACKS, 0x1549A966, 0x1941A469, 0x1043A770, 0x1254C367})
"""These end a cluster of unknown length."""


def missing_index(file: BinaryIO) -> tuple[int, bytes] | None:
    """The index that a file lacks.

    Reads the beginning of a file, then the headers of all fragments of an mp4 that has some, or of all blocks of an mkv
    without Cues, up to where they make no sense any more. Of a damaged file it gives what it finds, or None.

    Returns:
        In front of which byte it belongs, and the index; None: the file has one, or nothing to be indexed.
    """
    file.seek(0)
    head = file.read(12)
    if head[4:8] in (b"ftyp", b"styp", b"moov"):
        return _fragments_index(file)
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _clusters_index(file)
    return None


_Box = tuple[bytes, int, int]  # kind, first byte of the content, one past its last


def _boxes(file: BinaryIO, start: int, stop: int) -> Iterator[_Box]:
    """The boxes of an mp4 between two places, as far as they make sense."""
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
    """What is in a box; nothing of one that is too large."""
    _, begin, end = box
    file.seek(begin)
    return file.read(end - begin) if end - begin <= _MOST_HEADER_BYTES else b""


def _within(data: bytes, kind: bytes) -> Iterator[bytes]:
    """The contents of all boxes of a kind in the content of a box."""
    file = io.BytesIO(data)
    return (data[begin:end] for found, begin, end in _boxes(file, 0, len(data)) if found == kind)


def _fragments_index(file: BinaryIO) -> tuple[int, bytes] | None:
    """`mfra` of an mp4 in fragments: for each track the time and the place of every fragment that has it."""
    size = file.seek(0, io.SEEK_END)
    entries: dict[int, list[tuple[int, int]]] = {}
    fragmented = False
    last = covered = 0
    for box in _boxes(file, 0, size):
        kind, begin, end = box
        if kind == b"mdat":
            last = end
            if not fragmented:
                return None
        if kind == b"sidx":
            covered = max(covered, end + _sidx_bytes(_content(file, box)))
        if kind == b"moov":
            fragmented = any(inside == b"mvex" for inside, _, _ in _boxes(file, begin, end))
            if not fragmented:
                return None
        if kind == b"moof":
            for track, time in _times(_content(file, box)):
                entries.setdefault(track, []).append((time, begin - 8))
        if sum(map(len, entries.values())) > _MOST_ENTRIES:
            return None
    if not entries or covered >= last:
        return None
    tables = b""
    for track, found in entries.items():
        rows = b"".join(struct.pack(">QQBBB", time, place, 1, 1, 1) for time, place in found)
        tables += _box(b"tfra", struct.pack(">IIII", 1 << 24, track, 0, len(found)) + rows)
    # `mfro`, the last box in it, says how long all of it is: so it is found from the end of the file.
    return size, _box(b"mfra", tables + _box(b"mfro", struct.pack(">II", 0, len(tables) + 24)))


def _sidx_bytes(content: bytes) -> int:
    """How many bytes behind a `sidx` it describes."""
    begin, stop = (16, 20) if content[:1] == b"\0" else (20, 28)
    count = int.from_bytes(content[stop + 2 : stop + 4], "big")
    rows = range(stop + 4, stop + 4 + 12 * count, 12)
    first = int.from_bytes(content[begin:stop], "big")
    return first + sum(int.from_bytes(content[row : row + 4], "big") & 0x7FFFFFFF for row in rows)


def _times(moof: bytes) -> Iterator[tuple[int, int]]:
    """Each track in a fragment, and the time at which it begins there."""
    for traf in _within(moof, b"traf"):
        header, time = next(_within(traf, b"tfhd"), b""), next(_within(traf, b"tfdt"), b"")
        if len(header) >= 8 and len(time) >= 8:
            yield int.from_bytes(header[4:8], "big"), int.from_bytes(time[4 : 12 if time[0] else 8], "big")


def _box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, kind) + content


_Element = tuple[int, int, int | None]  # id, first byte of the content, one past its last (None: unknown)


def _element(file: BinaryIO, start: int) -> _Element | None:
    """The header of the EBML element at a place; None: there is none."""
    file.seek(start)
    head = file.read(12)
    if len(head) < 2 or not head[0] & 0xF0:
        return None
    width = 9 - head[0].bit_length()
    if len(head) <= width or not head[width]:
        return None
    name, long = int.from_bytes(head[:width], "big"), 9 - head[width].bit_length()
    digits = head[width : width + long]
    if len(digits) < long:
        return None
    length = int.from_bytes(digits, "big") & ((1 << 7 * long) - 1)
    begin = start + width + long
    return name, begin, None if length == (1 << 7 * long) - 1 else begin + length


def _elements(file: BinaryIO, start: int, stop: int) -> Iterator[_Element]:
    """The elements between two places, up to one of unknown length, as far as they make sense."""
    while start < stop and (found := _element(file, start)) is not None:
        yield found
        if found[2] is None:
            return
        start = found[2]


def _number(file: BinaryIO, element: _Element) -> int:
    _, begin, end = element
    file.seek(begin)
    return int.from_bytes(file.read(min((end or begin) - begin, 8)), "big")


def _clusters_index(file: BinaryIO) -> tuple[int, bytes] | None:
    """Cues of an mkv: the time and the cluster of every keyframe of its first video track, else of every cluster."""
    size = file.seek(0, io.SEEK_END)
    header = _element(file, 0)
    segment = None if header is None or header[2] is None else _element(file, header[2])
    if segment is None or segment[0] != _SEGMENT:
        return None
    base, stop = segment[1], min(segment[2] or size, size)
    first: int | None = None
    track = None
    cues: list[tuple[int, int]] = []  # time, place of the cluster in the segment
    place = base
    while place < stop and (found := _element(file, place)) is not None:
        name, begin, end = found
        if name == _CUES or (name == _SEEK_HEAD and _points_to_cues(file, begin, end or begin)):
            return None
        if name == _TRACKS:
            track = _first_track(file, begin, end or begin)
        if name == _CLUSTER:
            if track is None:
                return None
            first = place if first is None else first
            end = _cue_cluster(file, (begin, end or stop), end is not None, track, place - base, cues)
        if end is None or end <= place or len(cues) > _MOST_ENTRIES:
            break
        place = end
    if first is None or track is None or len(cues) < 2:
        return None
    # Places are written in eight bytes, so that the length of what stands in front of clusters is known beforehand.
    shift = len(_written(track, cues, 0))
    return first, _written(track, cues, shift)


def _points_to_cues(file: BinaryIO, begin: int, end: int) -> bool:
    seeks = [each for each in _elements(file, begin, end) if each[0] == _SEEK]
    return any(
        name == _SEEK_ID and _number(file, (name, start, stop)) == _CUES
        for _, inside, after in seeks
        for name, start, stop in _elements(file, inside, after or inside)
    )


def _first_track(file: BinaryIO, begin: int, end: int) -> int | None:
    """Number of the first video track, else of the first one."""
    tracks: list[tuple[bool, int]] = []
    for name, start, stop in _elements(file, begin, end):
        if name == _TRACK:
            facts = {each[0]: _number(file, each) for each in _elements(file, start, stop or start)}
            if _TRACK_NUMBER in facts:
                tracks.append((facts.get(_TRACK_TYPE) != _VIDEO, facts[_TRACK_NUMBER]))
    return min(tracks)[1] if tracks else None


def _cue_cluster(
    file: BinaryIO, extent: tuple[int, int], sized: bool, track: int, place: int, cues: list[tuple[int, int]]
) -> int:
    """Note the keyframes of a cluster; gives where it ends."""
    at, stop = extent
    time = 0
    while at < stop and (found := _element(file, at)) is not None:
        name, begin, end = found
        if end is None or (not sized and name in _INSIDE_SEGMENT):
            break
        if name == _TIMESTAMP:
            time = _number(file, found)
        elif name == _SIMPLE_BLOCK:
            _cue_block(file, begin, track, time, place, cues, None)
        elif name == _BLOCK_GROUP:
            inside = {each[0]: each[1] for each in _elements(file, begin, end)}
            if _BLOCK in inside:
                _cue_block(file, inside[_BLOCK], track, time, place, cues, _REFERENCE not in inside)
        at = end
    return stop if sized else at


def _cue_block(
    file: BinaryIO, begin: int, track: int, time: int, place: int, cues: list[tuple[int, int]], key: bool | None
) -> None:
    """Note a block if it is a keyframe of the track; whether it is one its own flags say if `key` is None."""
    file.seek(begin)
    head = file.read(11)
    width = 9 - head[0].bit_length() if head and head[0] else len(head)
    if len(head) < width + 3 or int.from_bytes(head[:width], "big") & ((1 << 7 * width) - 1) != track:
        return
    if head[width + 2] & 0x80 if key is None else key:
        at = time + int.from_bytes(head[width : width + 2], "big", signed=True)
        cues.append((min(max(0, at), _LAST_TIME), place))


def _written(track: int, cues: list[tuple[int, int]], shift: int) -> bytes:
    pieces: list[bytes] = []
    for time, place in cues:
        where = _ebml(0xF7, track) + _ebml(0xF1, place + shift)
        points = _ebml(0xB3, time) + b"\xb7" + bytes([0x80 | len(where)]) + where
        pieces.append(b"\xbb" + bytes([0x80 | len(points)]) + points)
    content = b"".join(pieces)
    return _CUES.to_bytes(4, "big") + (1 << 56 | len(content)).to_bytes(8, "big") + content


def _ebml(name: int, number: int) -> bytes:
    """An element with a number, in eight bytes."""
    return bytes([name, 0x88]) + number.to_bytes(8, "big")
