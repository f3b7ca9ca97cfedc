"""Where in a file the frames of a clip lie, as its container says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

REORDERED_FRAMES = 16
"""A frame may be shown so many places after it is stored, and a decoder with threads asks for some more before."""
_TO_THE_END = 1 << 62


def byte_ranges(stream: Any, clips: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The bytes that decoding clips of a stream takes: from the keyframe before each to a little behind its end.

    Costs 5 µs a clip: libav has searched through its index in C.

    Args:
        stream: Of a container opened with PyAV, in which something was sought before: only then libav has read the
            index of an mkv.
        clips: (first, last) time of each, in units of the stream's `time_base`.

    Returns:
        (first byte, one past the last) of each; none where the container has no index.
    """
    entries = stream.index_entries
    count = len(entries)
    if not count:
        return []
    ranges: list[tuple[int, int]] = []
    for first, last in clips:
        key = max(entries.search_timestamp(first), 0)
        after = entries.search_timestamp(last, backward=False, any_frame=True)
        if after < 0:  # behind the last one
            after = count
        elif not entries[after].is_keyframe:
            after = min(after + REORDERED_FRAMES, count)
        end = entries[after] if after < count else None
        last_bytes = entries[count - 1].size or _TO_THE_END
        ranges.append((entries[key].pos, entries[count - 1].pos + last_bytes if end is None else end.pos))
    return ranges
