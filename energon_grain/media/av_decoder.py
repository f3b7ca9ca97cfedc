# SPDX-License-Identifier: Apache-2.0
"""Video and audio files as objects that decode on request: a clip, some frames, or everything.

The interface is that of Megatron-Energon's `AVDecoder`. The content of clips is defined in the modules `video` and
`audio`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, BinaryIO, get_args

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, DecodingError, public
from energon_grain.media.audio import AudioTrack, AudioUnit
from energon_grain.media.container import Limits, Track, open_container, opened
from energon_grain.media.video import Clip as VideoClip, VideoTrack, VideoUnit
from energon_grain.samples.media_metadata import AVMetadata
from energon_grain.samples.sample import edataclass
from energon_grain.transforms.image import MAX_PIXELS
from energon_grain.transforms.media_types import AV_EXTENSIONS, MAX_PART_BYTES, AVDecode

Buffer = bytes | memoryview
Ranges = Sequence[tuple[float, float]]
Times = list[tuple[float, float]]

_WHOLE = [(-math.inf, math.inf)]


@edataclass
class AVData:
    """Clips of video and audio; lists of unrequested media are empty."""

    video_clips: list[Any] | None
    """uint8 (frames, 3, height, width) of each clip, red, green and blue. In memory the channels of a pixel are
    adjacent, so `clip.transpose(0, 2, 3, 1)`, channels last, needs no copy. NumPy arrays; tensors in the torch
    adapter."""
    video_timestamps: list[tuple[float, float]] | None
    """Start of the first frame and end of the last frame of each clip, in seconds."""
    audio_clips: list[Any] | None
    """(channels, samples) of each clip, in the decoder's type: float32 for AAC, MP3 and Opus, int16 or
    int32 for WAV and FLAC. NumPy arrays; tensors in the torch adapter."""
    audio_timestamps: list[tuple[float, float]] | None
    """Start and end of each clip, in seconds."""


@public
class AVDecoder:
    """A video or audio file that is decoded on request.

    Creating one reads nothing. Every call opens the file, reads its header and the requested data, and closes it. A
    decoder can be pickled if its stream can, and passed to other processes. Do not use it from several threads at once.

    Times are those of the file, in seconds. A video clip includes both ends: the frame shown at its start, the
    frame shown at its end, and all between. Audio is cut to the sample. Frames and samples equal a cut from the whole
    decoded file.

    All methods raise `DecodingError` if the file is damaged, is neither video nor audio, lacks the requested stream, or
    exceeds a limit, and `ConfigError` for invalid arguments.
    """

    def __init__(
        self,
        stream: BinaryIO,
        suppress_warnings: bool = False,
        *,
        max_pixels: int | None = MAX_PIXELS,
        max_part_bytes: int | None = MAX_PART_BYTES,
        threads: int = 1,
    ) -> None:
        """Store a file; nothing is read.

        Args:
            stream: A seekable binary file. Errors of its `read` are passed to the caller. If it has a `prefetch`, like
                `ByteStream`, it receives the byte ranges of clips, if the header contains them.
            suppress_warnings: For compatibility with Energon, where frames may be inexact; ignored.
            max_pixels: Maximum number of pixels of a frame; all frames of a call may have 16 times as many. None: no
                limit.
            max_part_bytes: Maximum size of the audio returned by a call. None: no limit.
            threads: Number of threads that decode video frames in parallel during a call; 0: one per processor. More
                than one is useless if a loader's workers keep all processors busy. May be changed later.

        Raises:
            ConfigError: The stream is a text stream, or not a stream; or `threads` is negative.
        """
        text = "t" in getattr(stream, "mode", "rb") or isinstance(stream, io.TextIOBase)
        if text or not hasattr(stream, "read"):
            raise ConfigError(
                f"AVDecoder: the stream must be a binary file, such as open(path, 'rb') or io.BytesIO(data); got "
                f"{'a text file' if text else f'a value of type {type(stream).__name__}'}"
            )
        if threads < 0:
            raise ConfigError(f"AVDecoder: threads={threads}: expected 0 or more")
        self.stream = stream
        self.suppress_warnings = suppress_warnings
        self.threads = threads
        self._max_pixels, self._max_part_bytes = max_pixels, max_part_bytes

    def get_video(self) -> AVData:
        """Return all frames, without audio."""
        return self.get_clips(video_clip_ranges=_WHOLE)

    def get_audio(self, *, audio_sample_rate: int | None = None) -> AVData:
        """All audio.

        Args:
            audio_sample_rate: Sample rate in Hz to resample to; None: unchanged.
        """
        return self.get_clips(audio_clip_ranges=_WHOLE, audio_sample_rate=audio_sample_rate)

    def get_video_with_audio(self, *, audio_sample_rate: int | None = None) -> AVData:
        """All frames and all audio; the file must have both.

        Args:
            audio_sample_rate: Sample rate in Hz to resample to; None: unchanged.
        """
        return self.get_clips(_WHOLE, _WHOLE, audio_sample_rate=audio_sample_rate)

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """The whole file: the frames of a video, or the samples of audio.

        Args:
            video_decode_audio: Whether to decode the audio of a video, too, if it has any.
        """
        with opened(self.stream, self._limits) as container:
            video, audio = bool(container.streams.video), bool(container.streams.audio)
            if not (video or audio):
                raise DecodingError("the file has neither video nor audio")
        return self.get_clips(
            _WHOLE if video else None, _WHOLE if audio and (video_decode_audio or not video) else None
        )

    def get_video_clips(
        self,
        video_clip_ranges: Ranges,
        video_unit: VideoUnit = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> tuple[list[Any], Times]:
        """Clips of the video, and their times.

        Args:
            video_clip_ranges: Start and end of each, both included: `(2, 2)` is one frame. They may overlap and be in
                any order; all are read in one pass. A range that begins after the end of the video yields no
                clip, so there may be fewer clips than ranges.
            video_unit: `seconds`; or `frames`, counted from 0 in display order. To count them, a file
                without an index of all frames (Matroska, WebM, transport streams) is read from end to end.
            video_out_frame_size: Width and height to scale frames to, bilinearly; None: unchanged.

        Returns:
            As in `AVData`: uint8 (frames, 3, height, width) of each clip; start of its first frame and end of its last
            frame, in seconds.
        """
        ranges = _checked("video_clip_ranges", video_clip_ranges)
        _check_choice("video_unit", video_unit, ("seconds", "frames"))
        if video_out_frame_size is not None and min(video_out_frame_size) < 1:
            raise ConfigError(f"video_out_frame_size={video_out_frame_size}: width and height must be at least 1")
        clips = self._video_clips(ranges, video_unit, video_out_frame_size)
        present = [clip for clip in clips if clip is not None]
        if not present and any(first <= 0 for first, _ in ranges):
            raise DecodingError("the video has no frames")
        return [self.array(frames) for frames, _ in present], [times for _, times in present]

    def get_audio_clips(
        self,
        audio_clip_ranges: Ranges,
        audio_unit: AudioUnit = "seconds",
        *,
        audio_sample_rate: int | None = None,
    ) -> tuple[list[Any], Times]:
        """Clips of the audio, and their times.

        Args:
            audio_clip_ranges: Start and end of each, the end excluded. They may overlap and be in any order; all are
                read in one pass. A clip ends at the end of the audio; a range outside it yields no clip, so
                there may be fewer clips than ranges.
            audio_unit: `seconds`; or `samples`, counted from time 0, at the rate of the file.
            audio_sample_rate: Sample rate in Hz to resample the clips to; None: unchanged.

        Returns:
            As in `AVData`: (channels, samples) of each clip, and its start and end in seconds.
        """
        ranges = _checked("audio_clip_ranges", audio_clip_ranges)
        _check_choice("audio_unit", audio_unit, ("seconds", "samples"))
        if audio_sample_rate is not None and audio_sample_rate < 1:
            raise ConfigError(f"audio_sample_rate={audio_sample_rate}: must be at least 1")
        with opened(self.stream, self._limits) as container:
            clips = self._audio(container).clips(ranges, audio_unit, audio_sample_rate)
        present = [clip for clip in clips if clip is not None]
        if not present and any(first == -math.inf for first, _ in ranges):
            raise DecodingError("the audio has no samples")
        return [self.array(samples) for samples, _ in present], [times for _, times in present]

    def get_clips(
        self,
        video_clip_ranges: Ranges | None = None,
        audio_clip_ranges: Ranges | None = None,
        video_unit: VideoUnit = "seconds",
        audio_unit: AudioUnit = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
        *,
        audio_sample_rate: int | None = None,
    ) -> AVData:
        """Clips of the video as from `get_video_clips`, and of the audio as from `get_audio_clips`; None for none."""
        data = AVData(video_clips=[], video_timestamps=[], audio_clips=[], audio_timestamps=[])
        if video_clip_ranges is not None:
            clips = self.get_video_clips(video_clip_ranges, video_unit, video_out_frame_size)
            data.video_clips, data.video_timestamps = clips
        if audio_clip_ranges is not None:
            clips = self.get_audio_clips(audio_clip_ranges, audio_unit, audio_sample_rate=audio_sample_rate)
            data.audio_clips, data.audio_timestamps = clips
        return data

    def has_video_stream(self) -> bool:
        """Whether the file has video, including a cover picture."""
        with opened(self.stream, self._limits) as container:
            return bool(container.streams.video)

    def has_audio_stream(self) -> bool:
        """Whether the file has audio."""
        with opened(self.stream, self._limits) as container:
            return bool(container.streams.audio)

    def get_video_fps(self) -> float:
        """Average frame rate, in frames per second."""
        fps = self.get_metadata(get_video_duration=False, get_video_frame_count=False, get_audio=False).video_fps
        return _required(fps, "video")

    def get_audio_samples_per_second(self) -> int:
        """Sample rate in Hz, per channel."""
        return _required(self.get_metadata(get_video=False, get_audio_duration=False).audio_sample_rate, "audio")

    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """Duration of the video in seconds (None without video), and its number of frames.

        Args:
            get_frame_count: Whether to count the frames if the header has no count, which reads the whole file.
                If false, their number may be None.
        """
        metadata = self.get_metadata(get_video_frame_count=get_frame_count, get_video_frame_size=False, get_audio=False)
        return metadata.video_duration, metadata.video_num_frames

    def get_audio_duration(self) -> float | None:
        """Duration of the audio in seconds; None without audio."""
        return self.get_metadata(get_video=False).audio_duration

    def _video_clips(self, ranges: Ranges, unit: VideoUnit, size: tuple[int, int] | None) -> list[VideoClip | None]:
        with opened(self.stream, self._limits, for_frames=True) as container:
            track = self._video(container)
            if unit == "seconds" or track.stated_times is not None:
                return track.clips(ranges, unit, size)
            times, _ = track.scan()
        with opened(self.stream, self._limits, for_frames=True) as container:
            return self._video(container).clips(ranges, unit, size, times)

    def get_metadata(
        self,
        get_video: bool = True,
        get_video_duration: bool = True,
        get_video_frame_count: bool = True,
        get_video_frame_size: bool = True,
        get_audio: bool = True,
        get_audio_duration: bool = True,
        get_audio_num_samples: bool = False,
    ) -> AVMetadata:
        """Metadata of the file, from its header as far as possible.

        Args:
            get_video: Whether to include the video.
            get_video_duration: Whether to read the whole file if its header has no duration of the video.
            get_video_frame_count: The same for the number of frames.
            get_video_frame_size: Whether to include the frame size.
            get_audio: Whether to include the audio.
            get_audio_duration: Whether to read the whole file if its header has no duration of the audio.
            get_audio_num_samples: Whether to count the samples, which decodes all audio; the duration is then that of
                the decoded samples.
        """
        metadata = AVMetadata()
        audio_is_read = False
        with opened(self.stream, self._limits) as container:
            if get_audio and container.streams.audio:
                track = self._audio(container)
                duration = track.stream.duration
                metadata.audio_sample_rate, metadata.audio_channels = track.rate, track.stream.channels
                metadata.audio_duration = _seconds(duration, track)
                audio_is_read = get_audio_num_samples or (get_audio_duration and duration is None)
            if get_video and container.streams.video:
                track = self._video(container)
                _describe_video(metadata, track, counted=get_video_frame_count, timed=get_video_duration)
                if get_video_frame_size:
                    metadata.video_width, metadata.video_height = track.codec.width, track.codec.height
        if audio_is_read:
            self._read_audio(metadata, counted=get_audio_num_samples)
        return metadata

    def _read_audio(self, metadata: AVMetadata, *, counted: bool) -> None:
        """Fill in the audio's duration, and the number of samples if `counted`, by reading all of it."""
        with opened(self.stream, self._limits) as container:
            track = self._audio(container)
            if counted:
                metadata.audio_num_samples, end = track.count()
            else:
                end = track.end()
            metadata.audio_duration = _seconds(None if end is None else end - track.first, track)

    def open(self) -> Any:
        """Open the file as a PyAV container, which the caller must close."""
        self.stream.seek(0)
        return open_container(self.stream, self._limits)

    @property
    def _limits(self) -> Limits:
        return Limits(self._max_pixels, self._max_part_bytes, self.threads)

    def array(self, values: npt.NDArray[Any]) -> Any:
        """Convert frames and samples for the caller: unchanged; a tensor in the torch adapter."""
        return values

    def _video(self, container: Any) -> VideoTrack:
        if not container.streams.video:
            raise DecodingError("the file has no video stream")
        track = VideoTrack(container, container.streams.video[0], self._limits)
        track.prefetch = getattr(self.stream, "prefetch", None)
        return track

    def _audio(self, container: Any) -> AudioTrack:
        if not container.streams.audio:
            raise DecodingError("the file has no audio stream")
        track = AudioTrack(container, container.streams.audio[0], self._limits)
        track.prefetch = getattr(self.stream, "prefetch", None)
        return track

    def __repr__(self) -> str:
        return f"AVDecoder({self.stream!r})"


class AVWebdatasetDecoder:
    """Decodes the video and audio parts of samples, as configured in `SampleDecoder`."""

    _decoder = AVDecoder

    def __init__(
        self,
        video_decode_audio: bool,
        av_decode: AVDecode = "AVDecoder",
        *,
        max_pixels: int | None = MAX_PIXELS,
        max_part_bytes: int | None = MAX_PART_BYTES,
    ) -> None:
        """Store the settings; the arguments are those of `SampleDecoder`."""
        _check_choice("av_decode", av_decode, get_args(AVDecode))
        self.video_decode_audio = video_decode_audio
        self.av_decode = av_decode
        self._max_pixels, self._max_part_bytes = max_pixels, max_part_bytes

    def read_av_data(self, data: Buffer | BinaryIO) -> AVDecoder:
        """The decoder of a file, or of its bytes."""
        file = io.BytesIO(data) if isinstance(data, bytes | memoryview) else data
        return self._decoder(file, max_pixels=self._max_pixels, max_part_bytes=self._max_part_bytes)

    def decode(self, data: Buffer | BinaryIO) -> Any:
        """Decode a file, or its bytes, as `av_decode` selects: an `AVDecoder`, `AVData`, or a PyAV container.

        Raises:
            DecodingError: The file cannot be decoded, if it is decoded at once.
            MissingPackageError: PyAV is not installed.
        """
        decoder = self.read_av_data(data)
        if self.av_decode == "AVDecoder":
            return decoder
        return decoder.open() if self.av_decode == "pyav" else decoder.get_frames(self.video_decode_audio)

    def __call__(self, key: str, data: Buffer) -> Any:
        """The result of `decode` for a part with this name; None if it is neither video nor audio."""
        return self.decode(data) if key.lower().rpartition(".")[2] in AV_EXTENSIONS else None


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool = False,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
    *,
    audio_sample_rate: int | None = None,
) -> AVData:
    """Clips of equal length at equal distances, the first at the start, the last at the end.

    Args:
        av_decoder: The file.
        clip_duration_seconds: Length of each clip; 0: single frames, from the middle of the first frame's time to the
            middle of the last one's.
        num_clips: Number of clips.
        request_video: Whether to return clips of the video.
        request_audio: Whether to return clips of the audio; with both, the shorter one determines the end.
        video_out_frame_size: Width and height to scale frames to; None: unchanged.
        audio_sample_rate: Sample rate in Hz to resample the audio to; None: unchanged.

    Raises:
        ConfigError: Neither video nor audio is requested.
        DecodingError: The file is damaged, or lacks a requested stream.
    """
    if not (request_video or request_audio):
        raise ConfigError("get_clips_uniform: pass request_video=True, request_audio=True, or both")
    metadata = av_decoder.get_metadata(request_video, get_video_frame_count=False, get_audio=request_audio)
    durations = [_required(metadata.video_duration, "video")] if request_video else []
    durations += [_required(metadata.audio_duration, "audio")] if request_audio else []
    # A single frame is taken from the middle of its time.
    edge = 0.5 / _required(metadata.video_fps, "video") if clip_duration_seconds == 0 and request_video else 0.0
    starts = np.linspace(edge, min(durations) - (clip_duration_seconds or edge), num_clips).tolist()
    clips = [(start, start + clip_duration_seconds) for start in starts]
    return av_decoder.get_clips(
        clips if request_video else None,
        clips if request_audio else None,
        video_out_frame_size=video_out_frame_size,
        audio_sample_rate=audio_sample_rate,
    )


def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: bool = False,
) -> Any:
    """Single frames at equal distances, from the first to the last.

    Args:
        av_decoder: The file.
        num_frames: Number of frames.
        video_out_frame_size: Width and height to scale frames to; None: unchanged.
        return_timestamps: Whether to return their times, too.

    Returns:
        uint8 (num_frames, 3, height, width); with `return_timestamps`, that and a list of their start times in seconds.

    Raises:
        DecodingError: The file is damaged, or has no video.
    """
    data = get_clips_uniform(av_decoder, 0, num_frames, request_video=True, video_out_frame_size=video_out_frame_size)
    if not data.video_clips:
        raise DecodingError("the video has no frames")
    frames = av_decoder.array(np.concatenate([np.asarray(clip) for clip in data.video_clips]))
    return (frames, [start for start, _ in data.video_timestamps or []]) if return_timestamps else frames


def _checked(name: str, ranges: Ranges) -> Ranges:
    if any(np.shape(each) != (2,) for each in ranges):
        raise ConfigError(f"{name}={ranges!r}: expected a list of (start, end)")
    for first, last in ranges:
        if not first <= last or first == math.inf:
            raise ConfigError(f"{name}: the range ({first}, {last}) must start before it ends")
    return ranges


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{option}={value!r} is not one of {', '.join(choices)}")


def _required(value: Any, kind: str) -> Any:
    if value is None:
        raise DecodingError(f"the file has no {kind} stream, or its header lacks the needed metadata of it")
    return value


def _describe_video(metadata: AVMetadata, track: VideoTrack, *, counted: bool, timed: bool) -> None:
    """Fill in duration, number of frames and rate; values missing in the header are read only if requested."""
    duration, end = track.stream.duration, None
    count = None if track.stated_times is None else len(track.stated_times)
    if counted and count is None:
        times, end = track.scan()
        count = len(times)
    elif timed and duration is None:
        end = track.end()
    duration = end - track.first if duration is None and end is not None else duration
    metadata.video_duration, metadata.video_num_frames = _seconds(duration, track), count
    if track.stream.average_rate:
        metadata.video_fps = float(track.stream.average_rate)
    elif count and metadata.video_duration:
        metadata.video_fps = count / metadata.video_duration


def _seconds(ticks: float | None, track: Track) -> float | None:
    return None if ticks is None else float(ticks * track.tick)
