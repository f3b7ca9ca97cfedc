"""Small videos and sounds, made by PyAV, whose frames and samples say which they are."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

WIDTH, HEIGHT = 64, 48


def picture(number: int) -> np.ndarray:
    """(H, W, 3): the number in eight stripes, black or white, above a slope of colour."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[32:, :, 0] = number * 7 % 256
    pixels[32:, :, 1] = np.arange(WIDTH) * 4
    for bit in range(8):
        pixels[:32, 8 * bit : 8 * bit + 8] = 255 * (number >> bit & 1)
    return pixels


def numbers(clip: np.ndarray) -> list[int]:
    """Which pictures the frames of a clip, (F, 3, H, W), are."""
    stripes = np.asarray(clip)[:, :, 8:24].mean(axis=(1, 2)).reshape(len(clip), 8, 8)[:, :, 2:6].mean(axis=2) > 128
    return (stripes @ (1 << np.arange(8))).tolist()


@dataclass(frozen=True)
class Film:
    """How a video is encoded; frame k shows picture k."""

    format: str
    codec: str
    options: dict[str, str] = field(default_factory=dict)
    frames: int = 40
    rate: Fraction = Fraction(30)
    group: int = 10
    reordered: int = 0
    times: Sequence[int] | None = None
    """When each frame begins, in units of `1 / rate`; None: 0, 1, 2, …"""
    muxer: dict[str, str] = field(default_factory=dict)
    sound: str | None = None
    """Codec of a sound of the same length."""

    @property
    def starts(self) -> list[Fraction]:
        """When each frame begins, in seconds."""
        return [Fraction(time) / self.rate for time in self.times or range(self.frames)]

    def encode(self) -> bytes:
        """The file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "file")
            with av.open(str(path), "w", format=self.format, container_options=dict(self.muxer)) as container:
                self._fill(container)
            return path.read_bytes()

    def _fill(self, container: av.container.OutputContainer) -> None:
        stream = container.add_stream(self.codec, rate=self.rate)
        stream.width, stream.height = WIDTH, HEIGHT
        stream.pix_fmt = "yuvj420p" if self.codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size = self.group
        stream.codec_context.max_b_frames = self.reordered
        stream.codec_context.options = dict(self.options)
        stream.codec_context.time_base = 1 / self.rate
        shift = max(0, -min(self.times or [0]))
        audio = container.add_stream(self.sound, rate=48000, layout="stereo") if self.sound else None
        packets = []
        for number, time in enumerate(self.times or range(self.frames)):
            frame = av.VideoFrame.from_ndarray(picture(number), "rgb24").reformat(format=stream.pix_fmt)
            frame.pts, frame.time_base = time + shift, 1 / self.rate
            packets += stream.encode(frame)
        packets += stream.encode()
        for packet in packets:
            ticks = round(shift / self.rate / packet.time_base)
            packet.pts, packet.dts = packet.pts - ticks, packet.dts - ticks
        if audio is not None:
            packets += encoded(audio, sound(int(48000 * self.frames / self.rate)), 48000)
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            container.mux(packet)


X264 = {"preset": "veryfast", "crf": "16", "tune": "psnr", "x264-params": "scenecut=0"}
OPEN = {**X264, "x264-params": "scenecut=0:open-gop=1"}
UNEVEN = np.cumsum([1, 1, 3, 2, 7, 1, 1, 4, 2, 2, 5] * 4)[:40].tolist()

FILMS = {
    "mp4": Film("mp4", "libx264", X264),
    "mp4-reordered": Film("mp4", "libx264", X264, reordered=2),
    "mp4-open": Film("mp4", "libx264", OPEN, reordered=2),
    "mp4-uneven": Film("mp4", "libx264", X264, reordered=2, times=UNEVEN),
    "mp4-late": Film("mp4", "libx264", X264, reordered=2, times=range(25, 65)),
    "mp4-trimmed": Film("mp4", "libx264", X264, reordered=2, times=range(-5, 35)),
    "mp4-ntsc": Film("mp4", "libx264", X264, rate=Fraction(30000, 1001)),
    "mp4-fragments": Film("mp4", "libx264", X264, reordered=2, muxer={"movflags": "frag_keyframe+empty_moov"}),
    "mp4-hevc": Film(
        "mp4",
        "libx265",
        {"preset": "ultrafast", "x265-params": "log-level=none:open-gop=1:keyint=10:bframes=3:scenecut=0"},
    ),
    "mp4-faststart-sound": Film("mp4", "libx264", X264, muxer={"movflags": "faststart"}, sound="aac"),
    "mov-mjpeg": Film("mov", "mjpeg"),
    "mkv": Film("matroska", "libx264", X264, rate=Fraction(24)),
    "mkv-reordered": Film("matroska", "libx264", X264, rate=Fraction(30000, 1001), reordered=2),
    "mkv-open": Film("matroska", "libx264", OPEN, reordered=2),
    "mkv-uneven": Film("matroska", "libx264", X264, reordered=2, times=UNEVEN),
    "mkv-negative": Film("matroska", "libx264", X264, times=range(-12, 28), muxer={"avoid_negative_ts": "disabled"}),
    "mkv-sound": Film("matroska", "libx264", X264, sound="aac"),
    "webm-vp8": Film("webm", "libvpx", {"deadline": "realtime", "cpu-used": "8", "b": "400k"}, rate=Fraction(24)),
    "webm-vp9": Film(
        "webm", "libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "crf": "20", "b": "0"}, sound="libopus"
    ),
    "avi": Film("avi", "mpeg4", {"b": "800k"}),
    "avi-reordered": Film("avi", "mpeg4", {"b": "800k"}, reordered=2),
    "avi-h264": Film("avi", "libx264", X264, reordered=2),
    "avi-mjpeg": Film("avi", "mjpeg"),
    "mpegts": Film("mpegts", "libx264", X264, reordered=2),
    "flv": Film("flv", "libx264", X264, reordered=2),
}


def sound(count: int, rate: int = 48000, channels: int = 2) -> np.ndarray:
    """int16 (channels, samples): a rising tone, and a steady one."""
    time = np.arange(count) / rate
    tones = np.stack([np.sin(2 * np.pi * (300 + 200 * time) * time), np.sin(2 * np.pi * 997 * time) / 2])
    return (tones[:channels] * 20000).astype(np.int16)


def encoded(stream: av.AudioStream, samples: np.ndarray, rate: int) -> list[av.Packet]:
    """The packets of a sound."""
    codec = stream.codec_context
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T.reshape(1, -1)), "s16", codec.layout.name)
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    resampler = av.AudioResampler(codec.format, codec.layout, rate, frame_size=codec.frame_size or 1024)
    packets = []
    for part in (*resampler.resample(frame), *resampler.resample(None)):
        packets += stream.encode(part)
    return packets + stream.encode()


def encode_sound(format: str, codec: str, count: int = 144000, rate: int = 48000, channels: int = 2) -> bytes:
    """A file of `sound`."""
    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        stream = container.add_stream(codec, rate=rate, layout="stereo" if channels == 2 else "mono")
        for packet in encoded(stream, sound(count, rate, channels), rate):
            container.mux(packet)
    return file.getvalue()


SOUNDS = {
    "wav": ("wav", "pcm_s16le"),
    "wav24": ("wav", "pcm_s24le"),
    "flac": ("flac", "flac"),
    "mp3": ("mp3", "mp3"),
    "m4a": ("mp4", "aac"),
    "aac": ("adts", "aac"),
    "opus": ("ogg", "libopus"),
    "mka": ("matroska", "aac"),
    "webm": ("webm", "libopus"),
}
