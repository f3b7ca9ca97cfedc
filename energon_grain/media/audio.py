# SPDX-License-Identifier: Apache-2.0
"""Clips of audio, exact to the sample.

A clip from `a` to `b` seconds starts at sample round(a · rate) and has round((b − a) · rate) samples, as far as the
file has them. Positions of sample frames are counted from the first one read, whose time is in the container. In
Matroska, with ticks of milliseconds, it may be off by a millisecond; elsewhere it is exact.

Decoders of MP3, AAC and Opus need a few frames until their output equals that of decoding from the start. Therefore
reading begins half a second before a clip, and the clip equals a cut from the whole decoded file.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DecodingError
from energon_grain.media.container import Limits, Track

Samples = npt.NDArray[Any]
Clip = tuple[Samples, tuple[float, float]]
AudioUnit = Literal["samples", "seconds"]

_PREROLL_S = 0.5
_FAR_S = 2.0
"""Shorter distances are decoded rather than skipped."""
_FILTER = 64
"""Samples on each side, of the lower of the two rates, that affect a resampled one, with a reserve."""


@dataclass(slots=True)
class _Piece:
    """A clip being assembled."""

    first: float
    """The index of its first sample, as requested; infinite for the start and the end."""
    end: float
    margin: int
    """Number of extra samples on each side."""
    samples: list[Samples] = field(default_factory=list[Samples])
    begins: int = 0
    """The index of the first stored sample."""

    def take(self, begin: int, samples: Samples) -> int:
        """Keep the needed samples of a frame whose first sample has the index `begin`. Returns their bytes."""
        low = max(self.first - self.margin, begin)
        high = min(self.end + self.margin, begin + samples.shape[1])
        if low >= high:
            return 0
        if not self.samples:
            self.begins = int(low)
        self.samples.append(samples[:, int(low) - begin : int(high) - begin])
        return self.samples[-1].nbytes


class AudioTrack(Track):
    """The audio of a container, read forward."""

    def __init__(self, container: Any, stream: Any, limits: Limits) -> None:
        super().__init__(container, stream)
        self.rate: int = stream.sample_rate
        if not self.rate:
            raise DecodingError("the audio has no sample rate")
        self._most = limits.max_part_bytes
        self._bytes = 0
        self._here: float = -math.inf
        """Read position: the index of the next sample."""
        self._pieces = self._decoded()
        self._samples_a_tick = float(self.tick * self.rate)
        self._kind = ""
        self._end: int | None = None
        """End of the last decoded frame, in ticks."""

    def count(self) -> tuple[int, int | None]:
        """Decode all samples; returns their number, and the end of the last frame, in ticks."""
        total = sum(samples.shape[1] for _, samples in self._pieces)
        return total, self._end

    def clips(self, ranges: Sequence[tuple[float, float]], unit: AudioUnit, rate: int | None) -> list[Clip | None]:
        """The clip of each range; None if it is outside the audio.

        Args:
            ranges: Start and end of each clip.
            unit: Unit of `ranges`.
            rate: Sample rate of the clips in Hz; None: unchanged.
        """
        scale = self.rate if unit == "seconds" else 1
        rate = None if rate == self.rate else rate
        margin = 0
        if rate is not None:
            step = self.rate // math.gcd(self.rate, rate)
            margin = step * math.ceil(_FILTER * max(1.0, self.rate / rate) / step)
        clips: list[_Piece] = []
        for first, last in ranges:
            begin = _nearest(first * scale)
            length = _nearest((last - first) * scale) if math.isfinite(begin) else math.inf
            clips.append(_Piece(begin, begin + length if math.isfinite(length) else last * scale, margin))
        self._gather(clips)
        seconds = 1.0 if unit == "seconds" else 1 / self.rate
        given = [(first * seconds, last * seconds) for first, last in ranges]
        return [self._finished(clip, times, rate) for clip, times in zip(clips, given, strict=True)]

    def _gather(self, clips: Sequence[_Piece]) -> None:
        """Fill clips in one forward pass through the file."""
        self._announce(clips)
        waiting = sorted(clips, key=lambda clip: clip.first, reverse=True)
        running: list[_Piece] = []
        sought = 0  # number of waiting clips at the last seek
        while running or waiting:
            if not running and len(waiting) != sought:
                sought = len(waiting)
                self._approach(waiting[-1].first - waiting[-1].margin)
            piece = next(self._pieces, None)
            if piece is None:
                break
            begin, samples = piece
            end = begin + samples.shape[1]
            while waiting and waiting[-1].first - waiting[-1].margin < end:
                running.append(waiting.pop())
            for clip in running:
                self._count_bytes(clip.take(begin, samples))
            running = [clip for clip in running if clip.end + clip.margin > end]

    def _announce(self, clips: Sequence[_Piece]) -> None:
        """Announce the clips to read, if the index has their times."""
        if self.stated_times is None:
            return
        scale, before = self.rate * float(self.tick), _PREROLL_S * self.rate
        self.announce([((c.first - c.margin - before) / scale, (c.end + c.margin) / scale) for c in clips])

    def _count_bytes(self, more: int) -> None:
        self._bytes += more
        if self._most is not None and self._bytes > self._most:
            raise DecodingError(
                f"the audio has more than max_part_bytes={self._most} bytes; take shorter clips, or raise the limit"
            )

    def _approach(self, number: float) -> None:
        """Seek so that a sample, and those that its decoding depends on, can be read."""
        if number - self._here < _FAR_S * self.rate and not math.isinf(self._here):
            return
        if math.isinf(self._here) and number <= (_FAR_S + self.first * self.tick) * self.rate:
            return  # the file is at its beginning
        back = _PREROLL_S
        while True:
            time = math.floor((number / self.rate - back) / self.tick)
            self.jump(max(time, self.first))
            self._pieces = self._decoded()
            piece = next(self._pieces, None)
            if piece is not None and (piece[0] <= number - _PREROLL_S * self.rate / 2 or time <= self.first):
                self._pieces = chain((piece,), self._pieces)
                return
            if time <= self.first:
                return
            back *= 4

    def _decoded(self) -> Iterator[tuple[int, Samples]]:
        """Frames from the current position on: the index of the first sample of each, and its samples."""
        number: int | None = None
        for packet in self.packets():
            for frame in packet.decode():
                if frame.pts is not None:
                    stated = round(frame.pts * self._samples_a_tick)
                    # Ticks are rounded, but samples are contiguous: only a difference of more than a tick is a gap.
                    if number is None or abs(stated - number) > max(2, self._samples_a_tick):
                        number = stated
                    self._end = frame.pts + frame.duration
                number = number or 0
                samples = _channels_first(frame)
                self._kind = frame.format.name
                self._here = number + samples.shape[1]
                yield number, samples
                number += samples.shape[1]

    def _finished(self, clip: _Piece, given: tuple[float, float], rate: int | None) -> Clip | None:
        """A clip without its margins, at the requested rate, and its times."""
        samples = np.concatenate(clip.samples, axis=1) if clip.samples else np.empty((0, 0))
        first = int(max(clip.begins, clip.first)) if clip.samples else 0
        end = int(min(clip.begins + samples.shape[1], clip.end))
        if first >= end:
            return None
        start_s = given[0] if clip.begins <= clip.first else first / self.rate
        end_s = given[1] if clip.end <= end else float((self._end or 0) * self.tick)
        before, count = first - clip.begins, end - first
        if rate is not None:
            step = self.rate // math.gcd(self.rate, rate)
            samples = self._resampled(samples[:, before % step :], rate)  # a sample of both rates begins here
            before, count = before // step * (rate * step // self.rate), max(1, round(count * rate / self.rate))
        return np.ascontiguousarray(samples[:, before : before + count]), (float(start_s), float(end_s))

    def _resampled(self, samples: Samples, rate: int) -> Samples:
        """The samples at another rate, resampled per channel for any channel layout."""
        av = importlib.import_module("av")
        kind = self._kind if self._kind.endswith("p") else f"{self._kind}p"
        channels: list[Samples] = []
        for channel in samples:
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(channel[np.newaxis]), kind, "mono")
            frame.sample_rate = self.rate
            resampler = av.AudioResampler(format=kind, layout="mono", rate=rate)
            parts = [part.to_ndarray() for part in (*resampler.resample(frame), *resampler.resample(None))]
            channels.append(np.concatenate(parts, axis=1))
        return np.concatenate(channels)


def _channels_first(frame: Any) -> Samples:
    samples: Samples = frame.to_ndarray()
    if frame.format.is_planar:
        return samples
    return samples.reshape(frame.samples, frame.layout.nb_channels).T


def _nearest(number: float) -> float:
    return math.floor(number + 0.5) if math.isfinite(number) else number
