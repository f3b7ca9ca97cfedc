# SPDX-License-Identifier: Apache-2.0
"""Clips of a video: which frames they contain, and how to find these without decoding the whole file.

**Which frame is shown when.** A frame is shown from its own time until the next frame begins, the last one for its
duration. A clip from `a` to `b` is the frame shown at `a`, the frame shown at `b`, and all between. Both ends are
included, so a clip of zero length is one frame. Before the first frame, the first one counts; after the end there is
none.

Containers round times to their ticks, Matroska to milliseconds: at 24 frames per second, frames 0, 1, 2 begin at 0, 42
and 83 ms, although 1/24 s = 41.67 ms. So if a frame lasts several ticks, a time that is less than half a tick before a
frame selects that frame: `k / fps` is always frame k.

**How frames are found.** Clips are sorted by start and read in one pass, however many there are and however they
overlap: each frame is decoded once. If a keyframe is between the current position and the next clip, reading continues
there. Keyframes are those that libav knows from the header (mp4, avi) or from the index that it reads at the first seek
(Matroska). If the first decoded frame is after the requested one, as after a keyframe whose leading frames need earlier
pictures, reading begins one keyframe earlier.

**Frames by number** are counted in display order. With an index of all frames, the number of the first frame after a
keyframe is known; the number of another frame is the number of packets with an earlier time. Without one (Matroska,
WebM, transport streams, fragmented mp4), the packets of the whole file are read once, without decoding, for the time of
each frame.

**Skipped frames.** Between the keyframe and the clip, H.264 frames that no other frame refers to are skipped: with
B-frames these are half of all, or more. The frame shown at the start of the clip is known only when the next one
arrives; but a frame before another one that begins no later than the clip is not it.
"""

from __future__ import annotations

import importlib
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DecodingError
from energon_grain.media.container import Limits, Track
from energon_grain.transforms.image import PASSES, check_size

Frames = npt.NDArray[np.uint8]
Clip = tuple[Frames, tuple[float, float]]
VideoUnit = Literal["frames", "seconds"]

_FAR_S, _NEAR_S = 10.0, 1.0
"""Shorter distances are decoded rather than skipped if keyframes are unknown; the second value applies before the first
seek, which may make them known."""
_COARSE_TICKS = 4
_LEAST_TICKS, _MOST_TICKS = -(1 << 62), 1 << 62


@dataclass(slots=True)
class _Shown:
    """A frame in display order."""

    picture: Any
    number: int
    start: int
    end: int
    """End of its duration, in ticks."""
    until: int
    """Start of the next frame."""


class VideoTrack(Track):
    """The video of a container, read forward."""

    def __init__(self, container: Any, stream: Any, limits: Limits) -> None:
        super().__init__(container, stream)
        rate = stream.average_rate
        self._interval = max(1, round(1 / (rate * self.tick))) if rate else 1
        """Average ticks between frames."""
        self._slack = 0.51 if self._interval >= _COARSE_TICKS else 1e-3
        # No H.264 picture refers to such a picture. In HEVC, pictures of other layers may; other codecs do not say.
        self._skips = self.codec.name == "h264" and not self.by_order
        self._wanted = -math.inf
        """Frames that end before this time, in ticks, are not needed."""
        self._lowest: int = min([self.first, *(entry.timestamp for entry in self.index[:1])])
        self._reformatter = importlib.import_module("av.video.reformatter").VideoReformatter()
        self._limits = limits
        self._pixels = 0
        self._frames: Iterator[_Shown] = self._shown(0)
        self._now: _Shown | None = None
        self._sought = False

    def clips(
        self,
        ranges: Sequence[tuple[float, float]],
        unit: VideoUnit,
        size: tuple[int, int] | None,
        times: Sequence[int | None] = (None,),
    ) -> list[Clip | None]:
        """The clip of each range; None if it begins after the end of the video.

        Args:
            ranges: First and last time of each, or first and last frame, both included.
            unit: Unit of `ranges`.
            size: Width and height of the frames; None: unchanged.
            times: Start time of each frame, in ticks, from `scan`: for frame numbers in a track without an index.
                If some have no time, frames are counted from the beginning.
        """
        if self._limits.max_pixels is not None:
            check_size(self.codec.width, self.codec.height, self._limits.max_pixels)
        if unit == "seconds":
            return self._gather([(first / self.tick, last / self.tick) for first, last in ranges], False, size)
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            return self._gather([(_floor(first), _floor(last)) for first, last in ranges], True, size)
        return self._gather([(_nth(known, first), _nth(known, last)) for first, last in ranges], False, size)

    def _gather(
        self, ranges: Sequence[tuple[float, float]], by_number: bool, size: tuple[int, int] | None
    ) -> list[Clip | None]:
        """Clips of ranges in frame numbers or in ticks."""
        self._announce(ranges, by_number)
        clips = _Clips(ranges, 0.0 if by_number else self._slack)
        while clips.running or clips.waiting:
            if clips.running:
                shown = next(self._frames, None)
            else:
                shown = self._find(*ranges[clips.waiting[-1]], by_number)
            if shown is None:
                break
            self._now = shown
            ends_at = shown.number + 1 if by_number else shown.until
            clips.begin(shown, ends_at)
            if clips.running:
                pixels = self._rgb(shown.picture, size)
                size = size or (pixels.shape[1], pixels.shape[0])  # later frames may have another size
                clips.add(pixels, shown, ends_at)
        return clips.made(self.tick)

    def _announce(self, ranges: Sequence[tuple[float, float]], by_number: bool) -> None:
        """Announce the ranges to read, if the index has their times."""
        if not (order := self.stated_times):
            return
        if by_number:
            most = len(order) - 1
            ranges = [(order[_within(first, most)], order[_within(last, most)]) for first, last in ranges]
        self.announce(list(ranges))

    def _find(self, place: float, last: float, by_number: bool) -> _Shown | None:
        """The frame at a time or number after the current position; None if there is none."""
        slack = 0.0 if by_number else self._slack
        self._wanted = -math.inf if by_number else place
        if (seek := self._keyframe_before(place, by_number)) is not None:
            self._seek(seek, place + slack, last, by_number)
        for shown in self._frames:
            if (shown.number + 1 if by_number else shown.until) > place + slack:
                return shown
        return None

    def _keyframe_before(self, place: float, by_number: bool) -> tuple[int, bool] | None:
        """Seek target for a frame, and whether it is exactly a keyframe; None if reading on is better."""
        order = self.stated_times
        if by_number and not order:
            return None
        here = self._now.start if self._now else self._lowest
        target = order[min(int(place), len(order) - 1)] if by_number and order else _whole(place)
        if order is not None or self._index_reaches(target):
            entry = self.index.search_timestamp(target)
            time = self.index[entry].timestamp if entry >= 0 else here
            return (time, True) if time > here else None
        return None if place - here < self._far_ticks else (target, False)

    @property
    def _far_ticks(self) -> float:
        """Shorter distances are decoded rather than skipped."""
        return (_FAR_S if self._sought or not len(self.index) else _NEAR_S) / self.tick

    def _index_reaches(self, time: int) -> bool:
        """Some containers only index keyframes that were read; an mp4, the fragments."""
        return bool(len(self.index)) and self.index[-1].timestamp >= time

    def _seek(self, target: tuple[int, bool], place: float, last: float, by_number: bool) -> None:
        """Seek so that the next frame is shown at `place` or before, and can be decoded."""
        self._sought = True
        (time, exact), step = target, 1
        while True:
            self.jump(time, backward=not exact)
            if self.stated_times is None:  # the index is known only after the seek
                self.announce([(time, last)])
            self._frames = self._shown(None)
            first = next(self._frames, None)
            if first is not None:
                self._frames = chain((first,), self._frames)
                if (first.number if by_number else first.start) <= place:
                    return
            if time <= self._lowest:
                return
            time = max(self._lowest, min(time, time if self.landed is None else self.landed) - step)
            exact, step = False, 2 * step

    def _shown(self, base: int | None) -> Iterator[_Shown]:
        """The frames from the current position on; `base` is the number of the first; None: from the index."""
        held: _Shown | None = None  # until the start of the next one is known
        for found in self._decoded(base):
            if held is not None:
                yield _with_end(held, found if isinstance(found, int) else found.start)
            held = None if isinstance(found, int) else found
        if held is not None:
            yield held

    def _decoded(self, base: int | None) -> Iterator[_Shown | int]:
        """As `_shown`, each with its own duration; some preceded by their start time as soon as it is known."""
        peeks = self._peeks
        times: list[int] = []
        last: _Shown | None = None
        count = 0
        for packet in self.packets():
            time = self.time_of(packet)
            if packet.size and base is None:
                base = self._number_at(packet)
            if time is not None and self.is_shown(packet):
                insort(times, time)
                if peeks:
                    yield time
            if self._skips:
                self._skip_before_wanted(time, times)
            for picture in packet.decode():
                last = self._frame(picture, last, times, count, base or 0)
                count += 1
                yield last

    @property
    def _peeks(self) -> bool:
        """Whether the start of the next frame is known without decoding: every packet is an independent frame."""
        return bool(self.codec.codec.intra_only) and not self.by_order and self._limits.threads == 1

    def _number_at(self, packet: Any) -> int:
        return 0 if packet.dts is None else bisect_left(self.stated_times or (), packet.dts)

    def _frame(self, picture: Any, last: _Shown | None, times: list[int], count: int, base: int) -> _Shown:
        """A picture with its number and times; `count` were decoded before it, `times` are those of the packets."""
        start = self._start_of(picture, last, times[count] if self.by_order and count < len(times) else None)
        ranked = self.stated_times is not None and not self.by_order
        end = start + (picture.duration or self._interval)
        return _Shown(picture, base + (bisect_left(times, start) if ranked else count), start, end, end)

    def _skip_before_wanted(self, time: int | None, times: Sequence[int]) -> None:
        """Let the decoder skip unreferenced frames before the requested one."""
        earlier = bisect_right(times, self._wanted)
        ends_at = earlier > 0 and time is not None and time < times[earlier - 1]
        self.codec.skip_frame = "NONREF" if ends_at else "DEFAULT"

    def _start_of(self, picture: Any, last: _Shown | None, by_order: int | None) -> int:
        """Start of a picture, after the last one: from its position in the order, its own time, or the last one."""
        start = by_order
        if start is None and picture.pts is not None:
            start = picture.pts - self.late
        if start is None:
            start = picture.dts if last is None else last.end
        if start is None:
            start = self.first
        return last.end if last is not None and start <= last.start else start

    def _rgb(self, picture: Any, size: tuple[int, int] | None) -> Frames:
        """The frame as (H, W, 3)."""
        width, height = size or (picture.width, picture.height)
        if self._limits.max_pixels is not None:
            check_size(picture.width, picture.height, self._limits.max_pixels)
            self._pixels += width * height
            if self._pixels > PASSES * self._limits.max_pixels:
                raise DecodingError(
                    f"the frames have more than {PASSES} times max_pixels={self._limits.max_pixels} in total; take "
                    f"shorter clips or smaller frames, or raise the limit"
                )
        rgb = self._reformatter.reformat(picture, width, height, "rgb24", interpolation="BILINEAR", threads=1)
        return rgb.to_ndarray()


class _Clips:
    """The clips of several ranges, filled by frames in ascending order.

    Attributes:
        waiting: Indices of clips that have not started, the first one to start last.
        running: Indices of clips that include the current frame.
    """

    def __init__(self, ranges: Sequence[tuple[float, float]], slack: float) -> None:
        self._ranges, self._slack = ranges, slack
        self._frames: list[list[Frames]] = [[] for _ in ranges]
        self._times: list[tuple[int, int]] = [(0, 0)] * len(ranges)
        self.waiting = sorted(range(len(ranges)), key=lambda clip: ranges[clip][0], reverse=True)
        self.running: list[int] = []

    def begin(self, shown: _Shown, ends_at: float) -> None:
        """Start clips that begin before a frame ends."""
        while self.waiting and ends_at > self._ranges[self.waiting[-1]][0] + self._slack:
            clip = self.waiting.pop()
            self.running.append(clip)
            self._times[clip] = shown.start, shown.end

    def add(self, pixels: Frames, shown: _Shown, ends_at: float) -> None:
        """Add a frame to the running clips, and end those that end with it."""
        for clip in self.running:
            self._frames[clip].append(pixels)
            self._times[clip] = self._times[clip][0], shown.end
        self.running = [clip for clip in self.running if ends_at <= self._ranges[clip][1] + self._slack]

    def made(self, tick: Fraction) -> list[Clip | None]:
        """Frames (n, 3, H, W) and times in seconds; None for a range without frames."""
        return [
            (np.stack(clip).transpose(0, 3, 1, 2), (float(start * tick), float(end * tick))) if clip else None
            for clip, (start, end) in zip(self._frames, self._times, strict=True)
        ]


def _with_end(shown: _Shown, following: int) -> _Shown:
    """Set the end of a frame, given the start of the next one; its own duration counts if it agrees within a tick."""
    if abs(shown.end - following) > 1:
        shown.end = following
    shown.until = following
    return shown


def _nth(times: Sequence[int], number: float) -> float:
    """Start time of a frame, given its number."""
    return float(times[max(int(number), 0)]) if number < len(times) else math.inf


def _within(place: float, most: int) -> int:
    return int(min(max(place, 0), most))


def _floor(number: float) -> float:
    return math.floor(number) if math.isfinite(number) else number


def _whole(ticks: float) -> int:
    return math.floor(min(max(ticks, _LEAST_TICKS), _MOST_TICKS))
