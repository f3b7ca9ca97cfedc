# SPDX-License-Identifier: Apache-2.0
"""Video and audio files, opened with PyAV, with limits and clear errors.

A file is opened again for every request, so a decoder holds nothing but its stream: it can be pickled, forked, and
dropped. Opening reads the header; of the rest, only the requested data are read, from the keyframe before them.

libav's work on a file is limited, because files may come from untrusted sources:

* Only the formats in `FORMATS` are tried. Playlists and similar formats, which refer to other files and URLs, are not.
* libav itself refuses a picture of more than `max_pixels`, before it allocates memory.
* Overlapping packets are read as long as their total size is at most 16 times that of the file.
* Threads are started only on request: a loader already uses all cores. No thread outlives a call.
"""

from __future__ import annotations

import importlib
import io
import math
import operator
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, BinaryIO

from energon_grain.errors import DecodingError, EnergonGrainError
from energon_grain.extras import needed_for
from energon_grain.transforms.image import MAX_PIXELS, PASSES
from energon_grain.transforms.media_types import MAX_PART_BYTES

FORMATS = "aac,aiff,amr,asf,au,avi,caf,flac,flv,gif,matroska,webm,mov,mp4,mp3,mpeg,mpegts,mxf,ogg,rm,tta,w64,wav,wv"
"""libav demuxers that may read a file."""

MP4_OPTIONS = {"use_mfra_for": "pts"}
"""With this option, libav looks for `mfra` when it opens an mp4; other formats ignore it."""
_FORMATS_WITH_INDEX = ("mov", "avi")
"""Formats whose headers have the position of every frame."""
_RUN, _FRAGMENTED = b"trun", b"mvex"
_FIRST_BYTES = 4096
_SLACK_S = Fraction(1, 4)
_FRAMES_BEHIND = 4
"""A decoder returns a frame after this many following ones, plus as many as frames are reordered."""
_FAR = 1 << 62
_CLOCK = re.compile(r"(\d{1,6}):(\d{1,2}):(\d{1,2}(?:\.\d{1,12})?)")


def require_av() -> Any:
    """Import `av`. Raises MissingPackageError if PyAV is not installed."""
    with needed_for("decoding video and audio"):
        return importlib.import_module("av")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for a file; None: no limit."""

    max_pixels: int | None = MAX_PIXELS
    """Pixels of a frame. All frames of one request may have 16 times as many in total."""
    max_part_bytes: int | None = MAX_PART_BYTES
    """Bytes of the decoded audio of one request."""
    threads: int = 1
    """Number of threads that decode video frames in parallel; 0: one per processor."""


Prefetch = Callable[[Iterable[tuple[int, int]]], None]


@contextmanager
def opened(stream: BinaryIO, limits: Limits, *, for_frames: bool = False) -> Generator[Any]:
    """Open the file in `stream` as a PyAV container, to be read inside the block.

    Args:
        stream: The file.
        bounds: Its limits.
        for_frames: Only frames are requested: stream properties that require decoding are not determined.

    Raises:
        DecodingError: The file is damaged, or exceeds a limit. Any error inside the block counts as such.
        Exception: An error raised by the stream, even if libav replaced it: it is not a fault of the file.
        MissingPackageError: PyAV is not installed.
    """
    av = require_av()
    source = _Source(stream)
    container: Any = None
    try:
        container = open_container(source, limits, for_frames)
        yield container
    except Exception as error:
        if source.failure is not None:
            raise source.failure from None
        if isinstance(error, EnergonGrainError) or (
            isinstance(error, MemoryError) and not isinstance(error, av.FFmpegError)
        ):
            raise
        raise DecodingError(f"the video or audio cannot be decoded: {type(error).__name__}: {error}") from error
    finally:
        if container is not None:
            container.close()
        if (prefetch := getattr(stream, "prefetch", None)) is not None:
            prefetch(())  # release memory: a batch may hold many streams
    if source.failure is not None:
        raise source.failure


def open_container(file: Any, limits: Limits, for_frames: bool = False) -> Any:
    """The PyAV container of a seekable binary file, which the caller must close; PyAV's errors are passed on."""
    options = {"format_whitelist": FORMATS, **(MP4_OPTIONS if getattr(file, "inserted", (0, b""))[1] else {})}
    head = file.read(_FIRST_BYTES)
    if _FRAGMENTED in head:
        # Otherwise libav seeks to the fragment with the audio of a keyframe, usually the one before the keyframe's.
        options["seek_streams_individually"] = "0"
    elif for_frames and head[4:8] == b"ftyp":
        # When libav opens a file, it decodes the first picture to learn the reordering depth, which the sample table
        # contains as well. Without a decoder it uses the table; with this small probe size it searches no audio either.
        file.seek(0)
        blind = {**options, "codec_whitelist": "none", "probesize": "2048"}
        container = _open(file, blind)
        if all(stream.frames for stream in container.streams.video):
            return _limited(container, limits)
        container.close()
    file.seek(0)
    if limits.max_pixels is not None:
        options["max_pixels"] = str(limits.max_pixels)
    return _limited(_open(file, options), limits)


def _open(file: Any, options: dict[str, str]) -> Any:
    av = require_av()
    before_19 = int(av.__version__.partition(".")[0]) < 19  # refused tags that are not UTF-8 by default
    return av.open(file, "r", options=options, **({"metadata_errors": "replace"} if before_19 else {}))


def _limited(container: Any, limits: Limits) -> Any:
    for stream in container.streams:
        codec = stream.codec_context
        if codec is not None:
            codec.thread_type = "NONE" if limits.threads == 1 else "FRAME"
            codec.thread_count = limits.threads
            if limits.max_pixels is not None and stream.type == "video":
                codec.options = {"max_pixels": str(limits.max_pixels)}
    return container


class _Source:
    """A stream as read by libav.

    It records errors of the stream, because libav takes some of them for the end of the file. It also checks something
    that libav 8 does not: the header of a run of samples in a fragmented mp4 (ISO 14496-12, 8.8.8). libav trusts it and
    allocates 24 bytes for each announced sample, up to 2 GiB for a file of some hundred bytes.
    """

    __slots__ = ("_size", "_stream", "_tail", "failure", "inserted")

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._size = stream.seek(0, io.SEEK_END)
        self._tail = b""
        self.inserted = getattr(stream, "inserted", (0, b""))
        self.failure: BaseException | None = None
        stream.seek(0)

    def read(self, size: int) -> bytes:
        data: bytes = self._do(self._stream.read, size)
        if _RUN in data or self._tail:
            self._check_runs(self._tail + data)
        self._tail = data[-15:] if _RUN[:1] in data[-15:] else b""
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._tail = b""
        return self._do(self._stream.seek, offset, whence)

    def tell(self) -> int:
        return self._do(self._stream.tell)

    def _check_runs(self, data: bytes) -> None:
        place = data.find(_RUN)
        while place >= 0:
            size, version_and_flags, count = (
                int.from_bytes(data[place + offset : place + offset + 4], "big") for offset in (-4, 4, 8)
            )
            # Picture data may contain these letters, too: a real header has only these bits.
            if 16 <= size < 1 << 24 and not version_and_flags & ~0x01000F05 and count > self._size:
                self.failure = DecodingError(f"announces a run of {count} samples in a file of {self._size} bytes")
                raise self.failure
            place = data.find(_RUN, place + 4)

    def _do(self, what: Any, *arguments: int) -> Any:
        if self.failure is not None:  # the result would not be used
            raise self.failure
        try:
            return what(*arguments)
        except BaseException as failure:
            self.failure = failure
            raise


class Track:
    """One stream of a container; the others are not read. Gives packets, ticks, and header data."""

    prefetch: Prefetch | None = None
    """Reads ranges of the file in advance, together."""

    def __init__(self, container: Any, stream: Any) -> None:
        self.container = container
        self.stream = stream
        self.codec = stream.codec_context
        if self.codec is None:
            raise DecodingError(f"the file's {stream.type} has an unknown codec")
        self.tick: Fraction = stream.time_base
        self.format: str = container.format.name.partition(",")[0]
        self.index: Any = stream.index_entries
        # AVI only has decoding times. libav derives presentation times from them, which are late by a frame if one is
        # reordered, and wrong if more are: then the k-th frame is shown at the k-th time.
        self._reordered: int = self.codec.reorder_depth if stream.type == "video" else 0
        depth = self._reordered if self.format == "avi" else 0
        self.by_order = depth > 1
        self.late = int(depth == 1)
        self._vp8 = stream.type == "video" and self.codec.name in ("vp8", "libvpx")
        self.landed: int | None = None
        """Time of the first packet since the file was opened, or since the last seek."""
        self._size = max(container.size, 0)
        self._read = 0
        self.first: int = stream.start_time or 0
        """Start time, in ticks."""

    def announce(self, clips: Sequence[tuple[float, float]]) -> None:
        """Prefetch the bytes of clips, given their decoding times in ticks, if the stream supports it.

        Ranges that its index does not know yet are read on demand.
        """
        if self.prefetch is not None:
            self.prefetch(byte_ranges(self.index, clips, self._reordered))

    def jump(self, time: int, *, backward: bool = True) -> None:
        """Seek to the last keyframe before a decoding time, in ticks, or the next one after it.

        Without a keyframe in that direction, to the nearest in the other one.
        """
        # Matroska's index has the video's keyframes; seeking by another stream reads on to its position.
        video = self.container.streams.video
        anchor = video[0] if self.format == "matroska" and video else self.stream
        offset = round(time * self.tick / anchor.time_base)
        try:
            self.container.seek(offset, stream=anchor, backward=backward)
        except require_av().FFmpegError:
            self.container.seek(offset, stream=anchor, backward=not backward)

    def packets(self) -> Iterator[Any]:
        """Packets from the current position on, and finally an empty one, at which decoders return remaining frames.

        Raises DecodingError if the file ends before the end in its header, or its packets overlap too much.
        """
        self._read_no_other()
        self.landed = None
        last: int | None = None  # time of decoding
        ends_at: int | None = None
        for packet in self.container.demux(self.stream):
            if not packet.size:
                self._check_end(last, ends_at)
            self._check_packet(packet)
            if self.landed is None:
                self.landed = min((time for time in (packet.pts, packet.dts) if time is not None), default=None)
            last = packet.dts if packet.dts is not None else last
            if packet.pts is not None:
                ends_at = max(packet.pts if ends_at is None else ends_at, packet.pts + (packet.duration or 0))
            yield packet

    def is_shown(self, packet: Any) -> bool:
        """Whether a packet's frame is displayed: an edit list may exclude it; VP8 has reference-only frames."""
        return bool(packet.size) and not packet.is_discard and (not self._vp8 or bool(memoryview(packet)[0] & 0x10))

    def time_of(self, packet: Any) -> int | None:
        """Start time of a packet's frame, in ticks; with reordering, the k-th time is that of the k-th frame."""
        if self.by_order:
            return packet.dts
        return None if packet.pts is None else packet.pts - self.late

    def scan(self) -> tuple[list[int | None], int | None]:
        """Sorted start times of all frames, in ticks, and the end of the last one: from packets, without decoding.

        Frames without a time are listed last, as None.
        """
        times: list[int | None] = []
        end: int | None = None
        for packet in self.packets():
            if self.is_shown(packet):
                times.append(time := self.time_of(packet))
                if time is not None:
                    end = max(time if end is None else end, time + (packet.duration or 0))
        return sorted(times, key=lambda time: (time is None, time)), end

    def end(self) -> int | None:
        """End time, in ticks: read from the packets after the last keyframe, of the video if there is one."""
        duration = self.container.duration
        self.jump(round(duration / 1_000_000 / self.tick) if duration else 1 << 40)
        _, end = self.scan()
        if end is None:  # this stream ends before that keyframe
            self.jump(self.first)
            _, end = self.scan()
        return end

    def _read_no_other(self) -> None:
        discard = importlib.import_module("av.stream").Discard
        for stream in self.container.streams:
            stream.discard = discard.default if stream is self.stream else discard.all

    def _check_packet(self, packet: Any) -> None:
        """Raise DecodingError if a packet is truncated, or all packets together are too large."""
        if packet.size and packet.is_corrupt and self.format != "mpegts":  # there, packets may be lost in transmission
            raise DecodingError("the file is truncated: it ends inside a packet")
        self._read += packet.size
        if self._read > PASSES * self._size + (1 << 20):
            raise DecodingError(f"the packets of the file have more than {PASSES} times as many bytes as the file")

    def _check_end(self, last: int | None, ends_at: int | None) -> None:
        """Raise DecodingError if packets announced by the header are missing at the end."""
        announced: Fraction | int | None = None
        if self.format in _FORMATS_WITH_INDEX and len(self.index) and (last or 0) < self.index[-1].timestamp:
            ends_at, announced = last, self.index[-1].timestamp
        elif self.format in ("avi", "flac", "matroska"):
            announced = self._stated_end()
        if ends_at is not None and announced is not None and ends_at < announced:
            end_s, announced_s = float(ends_at * self.tick), float(announced * self.tick)
            raise DecodingError(f"the file is truncated: it ends at {end_s:.3f} s, before {announced_s:.3f} s")

    def _stated_end(self) -> Fraction | None:
        """Lower limit of the end time in the header, in ticks: a tag does not count samples that are cut off there."""
        if self.stream.duration is not None:
            return self.first + self.stream.duration - _SLACK_S / self.tick
        tagged = tagged_end_s(self.stream) if self.format == "matroska" else None
        return None if tagged is None else (tagged - _SLACK_S) / self.tick

    @cached_property
    def stated_times(self) -> list[int] | None:
        """Decoding time of each packet with a displayed frame, from the file's header; None if it has none."""
        # A header with far more frames than its index was written before the index, or is damaged.
        if self.format in _FORMATS_WITH_INDEX and 0 < self.stream.frames <= 2 * len(self.index):
            return [entry.timestamp for entry in self.index if not entry.is_discard]
        return None


def tagged_end_s(stream: Any) -> Fraction | None:
    """End time of a stream in seconds, from Matroska's DURATION tag, in any case."""
    clocks = (_CLOCK.match(value) for name, value in stream.metadata.items() if name.upper() == "DURATION")
    clock = next(clocks, None)
    return None if clock is None else sum(map(operator.mul, map(Fraction, clock.groups()), (3600, 60, 1)), Fraction(0))


def byte_ranges(entries: Any, clips: Iterable[tuple[float, float]], reordered: int) -> list[tuple[int, int]]:
    """The byte ranges needed to decode clips of a stream: from the keyframe before each to slightly after its end.

    Costs 5 µs per clip: libav searches its index in C.

    Args:
        entries: The `index_entries` of a stream of a container opened with PyAV, with all of its frames or keyframes.
            (libav reads the index of an mkv at the first seek.)
        clips: (first, last) time of each, in units of the stream's `time_base`.
        reordered: Maximum number of positions by which a frame is displayed later than decoded.

    Returns:
        (first byte, one past the last) of each; empty if the container has no index.
    """
    count = len(entries)
    if not count:
        return []
    ranges: list[tuple[int, int]] = []
    for first, last in clips:
        key = max(entries.search_timestamp(_ticks(first)), 0)
        after = entries.search_timestamp(_ticks(last), backward=False, any_frame=True)
        if after < 0:  # after the last entry
            after = count
        elif not entries[after].is_keyframe:
            after = min(after + reordered + _FRAMES_BEHIND, count)
        begin, end = entries[key].pos, entries[min(after, count - 1)]
        stop = end.pos + (end.size or _FAR if after == count else 0)
        if not end.size and key < after < count:  # mkv has keyframes without sizes: interpolate
            before = entries[after - 1]
            share = min(max((last - before.timestamp) / (end.timestamp - before.timestamp), 0), 1)
            stop = before.pos + math.ceil(share * (end.pos - before.pos))
        ranges.append((begin, stop))
    return ranges


def _ticks(time: float) -> int:
    return int(min(max(time, -_FAR), _FAR))
