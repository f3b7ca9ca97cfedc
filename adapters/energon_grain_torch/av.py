"""Video and audio files as tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from energon_grain.samples.sample import edataclass
from energon_grain.transforms.image import PASSES, check_size
from energon_grain.transforms.media import decode_pyav, media_extension

Buffer = bytes | memoryview
Clip = tuple[torch.Tensor, tuple[float, float]]

_VIDEO = frozenset({"avi", "m4v", "mkv", "mov", "mp4", "webm"})
_AUDIO = frozenset({"flac", "mp3", "wav"})


@edataclass
class AVData:
    """Clips of video and audio; one of each where a whole file was decoded, none of what it was not asked for."""

    video_clips: list[torch.Tensor] | None
    """uint8 (frames, 3, height, width) of each clip."""
    video_timestamps: list[tuple[float, float]] | None
    """Start and end of each video clip, in seconds."""
    audio_clips: list[torch.Tensor] | None
    """(channels, samples) of each clip, in the type that the file holds."""
    audio_timestamps: list[tuple[float, float]] | None
    """Start and end of each audio clip, in seconds."""


def decode_av(
    data: Buffer, *, audio_of_videos: bool, max_part_bytes: int | None = None, max_pixels: int | None = None
) -> AVData | Buffer:
    """All of a video or audio file; the bytes themselves where they are neither.

    Args:
        data: The file.
        audio_of_videos: Whether videos are decoded with their audio, which they must then have.
        max_part_bytes: Of the audio, decoded; None: any number.
        max_pixels: Of a frame; all frames together may have 16 times as many. None: any number.

    Raises:
        ValueError: A stream that is needed is not there, or a bound is broken.
    """
    most_bytes = sys.maxsize if max_part_bytes is None else max_part_bytes
    most_pixels = sys.maxsize if max_pixels is None else max_pixels
    extension = media_extension(data)
    if extension in _VIDEO:
        video = _video(data, most_pixels)
        audio = _audio(data, most_bytes) if audio_of_videos else []
    elif extension in _AUDIO:
        video, audio = [], _audio(data, most_bytes)
    else:
        return data
    return AVData(
        video_clips=[clip for clip, _ in video],
        video_timestamps=[times for _, times in video],
        audio_clips=[clip for clip, _ in audio],
        audio_timestamps=[times for _, times in audio],
    )


def _video(data: Buffer, most_pixels: int) -> list[Clip]:
    frames: list[npt.NDArray[np.uint8]] = []
    start = end = 0.0
    pixels = 0
    with decode_pyav(data) as container:
        _require(container.streams.video, "video")
        codec = container.streams.video[0].codec_context
        check_size(codec.width, codec.height, most_pixels)
        for frame in container.decode(video=0):
            check_size(frame.width, frame.height, most_pixels)
            pixels += frame.width * frame.height
            if pixels > PASSES * most_pixels:
                raise ValueError(
                    f"the frames have more than {PASSES} times SampleDecoder(max_pixels={most_pixels}) together; "
                    f"decode clips of long videos with av_decode='AVDecoder', or raise the bound"
                )
            start = start if frames else float(frame.pts * frame.time_base)
            end = float((frame.pts + frame.duration) * frame.time_base)
            frames.append(frame.reformat(format="rgb24").to_ndarray())
    return [(torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2), (start, end))] if frames else []


def _audio(data: Buffer, most_bytes: int) -> list[Clip]:
    """The samples from time 0 on; encoders put some before it."""
    pieces: list[npt.NDArray[Any]] = []
    start = end = 0.0
    with decode_pyav(data) as container:
        _require(container.streams.audio, "audio")
        rate = container.streams.audio[0].sample_rate
        size = 0
        container.seek(0)
        for frame in container.decode(audio=0):
            begin = float(frame.pts * frame.time_base)
            end = begin + float(frame.duration * frame.time_base)
            early = int(max(0.0, -begin) * rate + 0.5)
            if early < frame.samples:
                start = start if pieces else max(0.0, begin)
                pieces.append(_channels_first(frame)[:, early:])
                size += pieces[-1].nbytes
                if size > most_bytes:
                    raise ValueError(f"the audio has more than SampleDecoder(max_part_bytes={most_bytes}) bytes")
    return [(torch.from_numpy(np.concatenate(pieces, axis=1)), (start, end))] if pieces else []


def _channels_first(frame: Any) -> npt.NDArray[Any]:
    samples: npt.NDArray[Any] = frame.to_ndarray()
    if frame.format.is_planar:
        return samples
    return samples.reshape(frame.samples, frame.layout.nb_channels).T


def _require(streams: Any, kind: str) -> None:
    if not streams:
        raise ValueError(f"the file has no {kind} stream")
