# SPDX-License-Identifier: Apache-2.0
"""Video and audio files, opened with PyAV: bounded, and with everything that is wrong in them named.

A file is opened anew for every request, so a decoder holds nothing but its stream: it can be pickled, forked, and left
behind. Opening reads the header; of the rest, what is asked for is read, from the keyframe before it.

What libav may do with a file is limited, since anybody may have written it:

* Only the formats in `FORMATS` are tried. Playlists and the like, which name other files and addresses, are not.
* A picture of more than `max_pixels` is refused by libav itself, before memory is asked for.
* Packets that lie on top of each other are read as long as together they are no more than 16 files of that length.
* Threads are not started unless asked for: a loader has as many things to do as there are cores. None outlives a call.
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
"""Demultiplexers of libav that a file may be read by."""

MP4_OPTIONS = {"use_mfra_for": "pts"}
"""With these libav looks for `mfra` when it opens an mp4; other formats take no notice."""
_FORMATS_WITH_INDEX = ("mov", "avi")
"""Their headers say where every frame lies."""
_RUN, _FRAGMENTED = b"trun", b"mvex"
_FIRST_BYTES = 4096
_SLACK_S = Fraction(1, 4)
_FRAMES_BEHIND = 4
"""A decoder gives a frame when it has so many behind it, and as many more as frames are shown behind their place."""
_FAR = 1 << 62
_CLOCK = re.compile(r"(\d{1,6}):(\d{1,2}):(\d{1,2}(?:\.\d{1,12})?)")


def require_av() -> Any:
    """The module `av`. Raises MissingPackageError if PyAV is not installed."""
    with needed_for("decoding video and audio"):
        return importlib.import_module("av")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a file may ask for; None: any amount."""

    max_pixels: int | None = MAX_PIXELS
    """Of a frame. All frames of one request may have 16 times as many together."""
    max_part_bytes: int | None = MAX_PART_BYTES
    """Of the decoded audio of one request."""
    threads: int = 1
    """That decode pictures of a video side by side; 0: one for each processor."""


Prefetch = Callable[[Iterable[tuple[int, int]]], None]


@contextmanager
def opened(stream: BinaryIO, bounds: Bounds, *, for_frames: bool = False) -> Generator[Any]:
    """The file in `stream` as a PyAV container, to be read inside the block.

    Args:
        stream: The file.
        bounds: How much it may ask for.
        for_frames: Nothing but its frames is asked for: what only decoding tells of streams need not be known before.

    Raises:
        DecodingError: The file is damaged, or breaks a bound. (What goes wrong inside the block counts as that.)
        Exception: What reading from the stream raised, whatever libav made of it: it is no fault of the file.
        MissingPackageError: PyAV is not installed.
    """
    av = require_av()
    source = _Source(stream)
    container: Any = None
    try:
        container = open_container(source, bounds, for_frames)
        yield container
    except Exception as error:
        if source.failure is not None:
            raise source.failure from None
        if isinstance(error, EnergonGrainError) or (
            isinstance(error, MemoryError) and not isinstance(error, av.FFmpegError)
        ):
            raise
        raise DecodingError(f"the video or audio does not decode: {type(error).__name__}: {error}") from error
    finally:
        if container is not None:
            container.close()
        if (prefetch := getattr(stream, "prefetch", None)) is not None:
            prefetch(())  # a batch may hold many streams
    if source.failure is not None:
        raise source.failure


def open_container(file: Any, bounds: Bounds, for_frames: bool = False) -> Any:
    """The PyAV container of a seekable binary file, to be closed by the caller; what PyAV raises passes."""
    options = {"format_whitelist": FORMATS, **(MP4_OPTIONS if getattr(file, "inserted", (0, b""))[1] else {})}
    head = file.read(_FIRST_BYTES)
    if _FRAGMENTED in head:
        # Else libav goes to the fragment with the sound of a keyframe, which mostly is the one before the keyframe's.
        options["seek_streams_individually"] = "0"
    elif for_frames and head[4:8] == b"ftyp":
        # To open a file libav decodes the first picture, for what a table of samples says as well: how far pictures
        # are reordered. Without a decoder it goes by that; with so small a bound it looks for no sound behind it.
        file.seek(0)
        blind = {**options, "codec_whitelist": "none", "probesize": "2048"}
        container = _open(file, blind)
        if all(stream.frames for stream in container.streams.video):
            return _limited(container, bounds)
        container.close()
    file.seek(0)
    if bounds.max_pixels is not None:
        options["max_pixels"] = str(bounds.max_pixels)
    return _limited(_open(file, options), bounds)


def _open(file: Any, options: dict[str, str]) -> Any:
    av = require_av()
    before_19 = int(av.__version__.partition(".")[0]) < 19  # where tags that are no UTF-8 were refused by default
    return av.open(file, "r", options=options, **({"metadata_errors": "replace"} if before_19 else {}))


def _limited(container: Any, bounds: Bounds) -> Any:
    for stream in container.streams:
        codec = stream.codec_context
        if codec is not None:
            codec.thread_type = "NONE" if bounds.threads == 1 else "FRAME"
            codec.thread_count = bounds.threads
            if bounds.max_pixels is not None and stream.type == "video":
                codec.options = {"max_pixels": str(bounds.max_pixels)}
    return container


class _Source:
    """A stream as libav reads it.

    It remembers what the stream raised, as libav takes some failures for the end of the file. And it looks for one
    thing that libav 8 does not check: the header of a run of samples in a fragmented mp4 (ISO 14496-12, 8.8.8), which
    it believes, and allocates 24 bytes for each sample announced, up to 2 GiB for a file of some hundred bytes.
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
            # Picture data may have those letters, too: a real header has these bits and no others.
            if 16 <= size < 1 << 24 and not version_and_flags & ~0x01000F05 and count > self._size:
                self.failure = DecodingError(f"a run of {count} samples is announced, in a file of {self._size} bytes")
                raise self.failure
            place = data.find(_RUN, place + 4)

    def _do(self, what: Any, *arguments: int) -> Any:
        if self.failure is not None:  # whatever is asked for now, the answer will not be used
            raise self.failure
        try:
            return what(*arguments)
        except BaseException as failure:
            self.failure = failure
            raise


class Track:
    """One stream of a container, the others left unread: its packets, its ticks, and what its header says."""

    prefetch: Prefetch | None = None
    """Reads bytes of the file together that will be asked for."""

    def __init__(self, container: Any, stream: Any) -> None:
        self.container = container
        self.stream = stream
        self.codec = stream.codec_context
        if self.codec is None:
            raise DecodingError(f"no decoder for the {stream.type} in the file is known")
        self.tick: Fraction = stream.time_base
        self.format: str = container.format.name.partition(",")[0]
        self.index: Any = stream.index_entries
        # AVI has times of decoding alone. Those of presentation, which libav derives from them, are late by a frame
        # where one is reordered, and wrong where more are: then the k-th frame is shown at the k-th time.
        self._reordered: int = self.codec.reorder_depth if stream.type == "video" else 0
        depth = self._reordered if self.format == "avi" else 0
        self.by_order = depth > 1
        self.late = int(depth == 1)
        self._vp8 = stream.type == "video" and self.codec.name in ("vp8", "libvpx")
        self.landed: int | None = None
        """The time of the first packet since the file was opened, or since the last seek."""
        self._size = max(container.size, 0)
        self._read = 0
        self.first: int = stream.start_time or 0
        """When it begins, in ticks."""

    def announce(self, clips: Sequence[tuple[float, float]]) -> None:
        """Let the file be read ahead where clips from one time of decoding to another lie, in ticks, if it can be.

        What its index does not know by now is read when it is asked for.
        """
        if self.prefetch is not None:
            self.prefetch(byte_ranges(self.index, clips, self._reordered))

    def jump(self, time: int, *, backward: bool = True) -> None:
        """Go to the last keyframe before a time of decoding, in ticks, or the next one behind it.

        Where there is none in that direction, to the nearest in the other one.
        """
        # Matroska's index has the keyframes of the video; seeking by another stream reads on to where that is.
        video = self.container.streams.video
        anchor = video[0] if self.format == "matroska" and video else self.stream
        offset = round(time * self.tick / anchor.time_base)
        try:
            self.container.seek(offset, stream=anchor, backward=backward)
        except require_av().FFmpegError:
            self.container.seek(offset, stream=anchor, backward=not backward)

    def packets(self) -> Iterator[Any]:
        """Its packets from here on, and at the end an empty one, at which decoders give what they hold back.

        Raises DecodingError if the file ends before its header says it does, or its packets lie on top of each other.
        """
        self._read_no_other()
        self.landed = None
        last: int | None = None  # time of decoding
        over: int | None = None
        for packet in self.container.demux(self.stream):
            if not packet.size:
                self._check_end(last, over)
            self._check_packet(packet)
            if self.landed is None:
                self.landed = min((time for time in (packet.pts, packet.dts) if time is not None), default=None)
            last = packet.dts if packet.dts is not None else last
            if packet.pts is not None:
                over = max(packet.pts if over is None else over, packet.pts + (packet.duration or 0))
            yield packet

    def is_shown(self, packet: Any) -> bool:
        """Whether what is in a packet is given: an edit list may leave it out; VP8 has frames for reference alone."""
        return bool(packet.size) and not packet.is_discard and (not self._vp8 or bool(memoryview(packet)[0] & 0x10))

    def time_of(self, packet: Any) -> int | None:
        """When what is in a packet begins, in ticks, but for the order: the k-th time is that of the k-th frame."""
        if self.by_order:
            return packet.dts
        return None if packet.pts is None else packet.pts - self.late

    def scan(self) -> tuple[list[int | None], int | None]:
        """Times of all that comes, in ticks and in order, and when the last one is over: from packets, not decoded.

        What has no time is listed, as None, at the end.
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
        """When it is over, in ticks: from what lies behind the last keyframe, of the video where there is some."""
        duration = self.container.duration
        self.jump(round(duration / 1_000_000 / self.tick) if duration else 1 << 40)
        _, end = self.scan()
        if end is None:  # it ends before that keyframe
            self.jump(self.first)
            _, end = self.scan()
        return end

    def _read_no_other(self) -> None:
        discard = importlib.import_module("av.stream").Discard
        for stream in self.container.streams:
            stream.discard = discard.default if stream is self.stream else discard.all

    def _check_packet(self, packet: Any) -> None:
        """Raise DecodingError where a packet is cut short, or all of them have too many bytes."""
        if packet.size and packet.is_corrupt and self.format != "mpegts":  # there it may have been lost on the way
            raise DecodingError("the file is cut short: it ends inside of a packet")
        self._read += packet.size
        if self._read > PASSES * self._size + (1 << 20):
            raise DecodingError(f"the packets of the file have more than {PASSES} times as many bytes as the file")

    def _check_end(self, last: int | None, over: int | None) -> None:
        """Raise DecodingError where the last packet is not the last one that the header knows of."""
        announced: Fraction | int | None = None
        if self.format in _FORMATS_WITH_INDEX and len(self.index) and (last or 0) < self.index[-1].timestamp:
            over, announced = last, self.index[-1].timestamp
        elif self.format in ("avi", "flac", "matroska"):
            announced = self._stated_end()
        if over is not None and announced is not None and over < announced:
            end_s, announced_s = float(over * self.tick), float(announced * self.tick)
            raise DecodingError(f"the file is cut short: it ends at {end_s:.3f} s, of {announced_s:.3f} s at least")

    def _stated_end(self) -> Fraction | None:
        """A little before it is over, in ticks, by its header: a tag has the end without what is cut off there."""
        if self.stream.duration is not None:
            return self.first + self.stream.duration - _SLACK_S / self.tick
        tagged = tagged_end_s(self.stream) if self.format == "matroska" else None
        return None if tagged is None else (tagged - _SLACK_S) / self.tick

    @cached_property
    def stated_times(self) -> list[int] | None:
        """When each packet whose frame is shown is decoded, by the header of the file; None: that does not say."""
        # A header that announces many more than the index has was written before the index, or is damaged.
        if self.format in _FORMATS_WITH_INDEX and 0 < self.stream.frames <= 2 * len(self.index):
            return [entry.timestamp for entry in self.index if not entry.is_discard]
        return None


def tagged_end_s(stream: Any) -> Fraction | None:
    """When a stream is over, in seconds: as the tag says that Matroska has for it, in whatever case."""
    clocks = (_CLOCK.match(value) for name, value in stream.metadata.items() if name.upper() == "DURATION")
    clock = next(clocks, None)
    return None if clock is None else sum(map(operator.mul, map(Fraction, clock.groups()), (3600, 60, 1)), Fraction(0))


def byte_ranges(entries: Any, clips: Iterable[tuple[float, float]], reordered: int) -> list[tuple[int, int]]:
    """The bytes that decoding clips of a stream takes: from the keyframe before each to a little behind its end.

    Costs 5 µs a clip: libav searches through its index in C.

    Args:
        entries: The `index_entries` of a stream of a container opened with PyAV, of all of its frames or keyframes.
            (libav reads the index of an mkv when something is sought in it.)
        clips: (first, last) time of each, in units of the stream's `time_base`.
        reordered: How many places after its own a frame may be shown.

    Returns:
        (first byte, one past the last) of each; none where the container has no index.
    """
    count = len(entries)
    if not count:
        return []
    ranges: list[tuple[int, int]] = []
    for first, last in clips:
        key = max(entries.search_timestamp(_ticks(first)), 0)
        after = entries.search_timestamp(_ticks(last), backward=False, any_frame=True)
        if after < 0:  # behind the last one
            after = count
        elif not entries[after].is_keyframe:
            after = min(after + reordered + _FRAMES_BEHIND, count)
        begin, end = entries[key].pos, entries[min(after, count - 1)]
        stop = end.pos + (end.size or _FAR if after == count else 0)
        if not end.size and key < after < count:  # of an mkv, which has keyframes and no sizes: about so far
            before = entries[after - 1]
            share = min(max((last - before.timestamp) / (end.timestamp - before.timestamp), 0), 1)
            stop = before.pos + math.ceil(share * (end.pos - before.pos))
        ranges.append((begin, stop))
    return ranges


def _ticks(time: float) -> int:
    return int(min(max(time, -_FAR), _FAR))
