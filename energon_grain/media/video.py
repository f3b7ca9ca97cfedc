# SPDX-License-Identifier: Apache-2.0
"""Clips of a video: which frames they have, and how those are found without decoding all of it.

**Which frame is shown when.** A frame is shown from its own time until the next frame begins, the last one for its
duration. A clip from `a` to `b` is the frame that is shown at `a`, that at `b`, and all between: both ends belong to
it, so a clip of no length is one frame. Before the first frame, the first one counts; after the end there is none.

Containers round times to their ticks, Matroska to milliseconds: at 24 frames a second, frames 0, 1, 2 begin at 0, 42
and 83 ms, where 1/24 s = 41.67 ms is meant. So where a frame lasts for several ticks, a time that is less than half a
tick before a frame means that frame: `k / fps` is always frame k.

**How frames are found.** Clips are taken in the order of their beginnings and read in one go, however many there are
and however they overlap: each frame is decoded once. Where the next clip begins behind another keyframe, the file is
read on from there. Keyframes are those that libav knows from the header (mp4, avi) or from the index that it reads at
the first seek (Matroska). Where the first frame that comes out lies behind the one that is wanted, as after a
keyframe whose leading frames need the pictures before it, reading begins one keyframe earlier.

**Frames by number** are counted in the order of display. With an index of all frames, the number of the first frame
after a keyframe is known, and that of the others is how many packets have an earlier time. Without one (Matroska, WebM,
transport streams, fragmented mp4), the packets of the whole file are read once, without decoding, to tell the time of
each frame.

**What need not be decoded.** Between the keyframe and the clip, frames of H.264 that no other one refers to are left
out: with B-frames these are half of all, and more. Which frame is shown at the beginning of the clip is not known
before the next one comes; but a frame that lies before another one which is not behind the beginning is not it.
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
from energon_grain.media.container import Bounds, Track
from energon_grain.transforms.image import PASSES, check_size

Frames = npt.NDArray[np.uint8]
Clip = tuple[Frames, tuple[float, float]]
VideoUnit = Literal["frames", "seconds"]

_FAR_S, _NEAR_S = 10.0, 1.0
"""Where keyframes are not known, less than this is decoded rather than skipped; before the first seek, from which they
may be known, less than that."""
_COARSE_TICKS = 4
_LEAST_TICKS, _MOST_TICKS = -(1 << 62), 1 << 62


@dataclass(slots=True)
class _Shown:
    """A frame in the order of display."""

    picture: Any
    number: int
    start: int
    end: int
    """When its duration is over, in ticks."""
    until: int
    """When the next frame begins."""


class VideoTrack(Track):
    """The video of a container, read forward."""

    def __init__(self, container: Any, stream: Any, bounds: Bounds) -> None:
        super().__init__(container, stream)
        rate = stream.average_rate
        self._interval = max(1, round(1 / (rate * self.tick))) if rate else 1
        """Ticks between frames, on average."""
        self._slack = 0.51 if self._interval >= _COARSE_TICKS else 1e-3
        # Nothing refers to such a picture of H.264. Of HEVC, pictures of other layers may; of others it is not said.
        self._skips = self.codec.name == "h264" and not self.by_order
        self._wanted = -math.inf
        """Nothing that is over by then is asked for, in ticks."""
        self._lowest: int = min([self.first, *(entry.timestamp for entry in self.index[:1])])
        self._reformatter = importlib.import_module("av.video.reformatter").VideoReformatter()
        self._bounds = bounds
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
        """The clip of each range; None where it begins after the end of the video.

        Args:
            ranges: First and last moment of each, or first and last frame, both included.
            unit: What `ranges` are in.
            size: Width and height of the frames; None: as they are.
            times: When each frame begins, in ticks, as `scan` gives it: for frames of a track that is not `numbered`.
                If there are some without a time, they are counted from the beginning.
        """
        if self._bounds.max_pixels is not None:
            check_size(self.codec.width, self.codec.height, self._bounds.max_pixels)
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
            over = shown.number + 1 if by_number else shown.until
            clips.begin(shown, over)
            if clips.running:
                pixels = self._rgb(shown.picture, size)
                size = size or (pixels.shape[1], pixels.shape[0])  # should later frames have another one
                clips.add(pixels, shown, over)
        return clips.made(self.tick)

    def _announce(self, ranges: Sequence[tuple[float, float]], by_number: bool) -> None:
        """Say which ranges will be read, where the index knows their times."""
        if not (order := self.stated_times):
            return
        if by_number:
            most = len(order) - 1
            ranges = [(order[_within(first, most)], order[_within(last, most)]) for first, last in ranges]
        self.announce(list(ranges))

    def _find(self, place: float, last: float, by_number: bool) -> _Shown | None:
        """The frame at a time or of a number, behind where the track stands; None where there is none."""
        slack = 0.0 if by_number else self._slack
        self._wanted = -math.inf if by_number else place
        if (seek := self._keyframe_before(place, by_number)) is not None:
            self._seek(seek, place + slack, last, by_number)
        for shown in self._frames:
            if (shown.number + 1 if by_number else shown.until) > place + slack:
                return shown
        return None

    def _keyframe_before(self, place: float, by_number: bool) -> tuple[int, bool] | None:
        """Where to seek to for a frame, and whether that is exactly a keyframe; None where reading on is better."""
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
        """Less than this is decoded rather than skipped."""
        return (_FAR_S if self._sought or not len(self.index) else _NEAR_S) / self.tick

    def _index_reaches(self, time: int) -> bool:
        """Of some containers, the index has the keyframes that were met, and no others; of an mp4, the fragments."""
        return bool(len(self.index)) and self.index[-1].timestamp >= time

    def _seek(self, target: tuple[int, bool], place: float, last: float, by_number: bool) -> None:
        """Let the next frame be one that is shown at a place or before, and decodes."""
        self._sought = True
        (time, exact), step = target, 1
        while True:
            self.jump(time, backward=not exact)
            if self.stated_times is None:  # of a container that says only now what lies there
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
        """The frames from where the container stands; `base` is the number of the first, None: the index says."""
        held: _Shown | None = None  # until it is known when the next one begins
        for found in self._decoded(base):
            if held is not None:
                yield _lasting(held, found if isinstance(found, int) else found.start)
            held = None if isinstance(found, int) else found
        if held is not None:
            yield held

    def _decoded(self, base: int | None) -> Iterator[_Shown | int]:
        """As `_shown`, each with its own duration; before some, the time when they begin, as soon as it is known."""
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
        """Where every packet is a frame of its own, the next one need not be decoded to know when it begins."""
        return bool(self.codec.codec.intra_only) and not self.by_order and self._bounds.threads == 1

    def _number_at(self, packet: Any) -> int:
        return 0 if packet.dts is None else bisect_left(self.stated_times or (), packet.dts)

    def _frame(self, picture: Any, last: _Shown | None, times: list[int], count: int, base: int) -> _Shown:
        """A picture with its number and times; `count` were decoded before it, `times` are those of the packets."""
        start = self._start_of(picture, last, times[count] if self.by_order and count < len(times) else None)
        ranked = self.stated_times is not None and not self.by_order
        end = start + (picture.duration or self._interval)
        return _Shown(picture, base + (bisect_left(times, start) if ranked else count), start, end, end)

    def _skip_before_wanted(self, time: int | None, times: Sequence[int]) -> None:
        """Let the decoder leave out a frame that others do not need, before the one that is wanted."""
        earlier = bisect_right(times, self._wanted)
        over = earlier > 0 and time is not None and time < times[earlier - 1]
        self.codec.skip_frame = "NONREF" if over else "DEFAULT"

    def _start_of(self, picture: Any, last: _Shown | None, by_order: int | None) -> int:
        """When a picture begins, which is after the last one: by its place in the order, its own time, or the last."""
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
        if self._bounds.max_pixels is not None:
            check_size(picture.width, picture.height, self._bounds.max_pixels)
            self._pixels += width * height
            if self._pixels > PASSES * self._bounds.max_pixels:
                raise DecodingError(
                    f"the frames have more than {PASSES} times max_pixels={self._bounds.max_pixels} together; take "
                    f"shorter clips or smaller frames, or raise the bound"
                )
        rgb = self._reformatter.reformat(picture, width, height, "rgb24", interpolation="BILINEAR", threads=1)
        return rgb.to_ndarray()


class _Clips:
    """The clips of several ranges, filled by frames in ascending order.

    Attributes:
        waiting: Numbers of clips that have not begun, the first one to begin last.
        running: Those that take the frame that is shown.
    """

    def __init__(self, ranges: Sequence[tuple[float, float]], slack: float) -> None:
        self._ranges, self._slack = ranges, slack
        self._frames: list[list[Frames]] = [[] for _ in ranges]
        self._times: list[tuple[int, int]] = [(0, 0)] * len(ranges)
        self.waiting = sorted(range(len(ranges)), key=lambda clip: ranges[clip][0], reverse=True)
        self.running: list[int] = []

    def begin(self, shown: _Shown, over: float) -> None:
        """Let clips run that begin before a frame is over."""
        while self.waiting and over > self._ranges[self.waiting[-1]][0] + self._slack:
            clip = self.waiting.pop()
            self.running.append(clip)
            self._times[clip] = shown.start, shown.end

    def add(self, pixels: Frames, shown: _Shown, over: float) -> None:
        """Give a frame to the running clips, and end those that it ends."""
        for clip in self.running:
            self._frames[clip].append(pixels)
            self._times[clip] = self._times[clip][0], shown.end
        self.running = [clip for clip in self.running if over <= self._ranges[clip][1] + self._slack]

    def made(self, tick: Fraction) -> list[Clip | None]:
        """Frames (n, 3, H, W) and times in seconds; None for a range that no frame is in."""
        return [
            (np.stack(clip).transpose(0, 3, 1, 2), (float(start * tick), float(end * tick))) if clip else None
            for clip, (start, end) in zip(self._frames, self._times, strict=True)
        ]


def _lasting(shown: _Shown, following: int) -> _Shown:
    """A frame before one that begins then: what its duration says counts, but for rounding, as long as that is true."""
    if abs(shown.end - following) > 1:
        shown.end = following
    shown.until = following
    return shown


def _nth(times: Sequence[int], number: float) -> float:
    """When a frame begins, by its number."""
    return float(times[max(int(number), 0)]) if number < len(times) else math.inf


def _within(place: float, most: int) -> int:
    return int(min(max(place, 0), most))


def _floor(number: float) -> float:
    return math.floor(number) if math.isfinite(number) else number


def _whole(ticks: float) -> int:
    return math.floor(min(max(ticks, _LEAST_TICKS), _MOST_TICKS))
