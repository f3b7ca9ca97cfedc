# SPDX-License-Identifier: Apache-2.0
"""What is known of images, videos and sounds from the first bytes of their files, without decoding them.

Pillow tells what an image is when it opens it, from its header: 17 µs for a JPEG of which the first 16 KiB are there.
WebP, of which Pillow reads all, and WAV, in which libav looks for more than its header says, are read here; other
videos and sounds by PyAV. What it takes from one file is bounded, whatever its header says.
"""

from __future__ import annotations

import enum
import fnmatch
import io
import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from energon_grain.errors import ConfigError, DecodingError, public
from energon_grain.samples.media_metadata import AVMetadata, ImageMetadata
from energon_grain.transforms.media_types import media_extension

HEADER_BYTES = 16 << 10
"""What `read_header` wants of the beginning of a file. With so much, most files need no second look."""
MAX_HEADER_BYTES = 64 << 20
"""Of a file, no more is read to find its header: the index of a very long video has some 10 MiB."""
HEADER_FUNCTION, HEADER_VERSION = f"{__name__}:read_header", 1
"""What fills the columns of media, and its version, which changes with what it finds."""
_WINDOW_BYTES = 64 << 10

IMAGE_ENDINGS = frozenset("bmp gif ico j2k jp2 jpx jpeg jpg png tif tiff webp".split())  # noqa: SIM905
AV_ENDINGS = frozenset("aac avi flac m4a m4v mkv mov mp3 mp4 ogg wav webm".split())  # noqa: SIM905
"""Those of Energon: other files are media only where a pattern or their first bytes say so."""
_STILL_BRANDS = frozenset({b"avif", b"avis", b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"})
_SOUNDS = (b"OggS", b"\xff\xf1", b"\xff\xf9")


class MediaFilterStrategy(str, enum.Enum):  # noqa: UP042 (its `str()` is that of Energon's)
    """How files are told to be media."""

    EXTENSION = "EXTENSION"
    """By the endings of their names."""
    HEADER = "HEADER"
    """By what they begin with, else by the endings of their names."""
    GLOB = "GLOB"
    """Files whose names fit a pattern; of these by what they begin with, else by their endings."""


@public
class MediaFilterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which files are looked at for metadata of media.

    Attributes:
        strategy: How they are told.
        patterns: Of `GLOB`: shell patterns, such as `*.jpg`, compared with whole names whatever their case. `*` goes
            across folders.
    """

    strategy: MediaFilterStrategy
    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, glob: str | None, header: bool, extension: bool) -> MediaFilterConfig:
        """The filter that options ask for.

        Args:
            glob: Patterns with commas between them.
            header: Whether to go by first bytes.
            extension: Whether to go by endings.

        Raises:
            ConfigError: Not exactly one of them is given.
        """
        if sum(map(bool, (glob, header, extension))) != 1:
            raise ConfigError(
                "which files are media: give exactly one of extension, header and glob (commands: "
                "--media-metadata-by-extension, --media-metadata-by-header, --media-metadata-by-glob '*.jpg,*.mp4')"
            )
        if glob:
            patterns = tuple(pattern.strip() for pattern in glob.split(",") if pattern.strip())
            if not patterns:
                raise ConfigError(f"media by glob {glob!r}: holds no pattern, such as '*.jpg'.")
            return cls(MediaFilterStrategy.GLOB, patterns)
        return cls(MediaFilterStrategy.HEADER if header else MediaFilterStrategy.EXTENSION)

    @classmethod
    def of(cls, value: Any) -> MediaFilterConfig:
        """The same of an object that has these attributes, such as Energon's own. Raises ConfigError."""
        try:
            strategy = MediaFilterStrategy(getattr(value.strategy, "value", value.strategy))
            return value if isinstance(value, cls) else cls(strategy, tuple(value.patterns or ()))
        except (AttributeError, ValueError, TypeError):
            raise ConfigError(f"media_filter: expected a MediaFilterConfig, got {value!r}") from None

    def may_take(self, name: str) -> bool:
        """Whether a file with this name is to be looked at: for `HEADER`, which goes by contents, every one."""
        if self.strategy is MediaFilterStrategy.GLOB:
            return _any_of(self.patterns)(name.lower()) is not None
        return self.strategy is MediaFilterStrategy.HEADER or _kind_by_name(name) is not None

    def expects(self, name: str) -> bool:
        """Whether a file with this name is looked at and must turn out to be a medium, by its ending."""
        return _kind_by_name(name) is not None and self.may_take(name)


@lru_cache(maxsize=16)
def _any_of(patterns: tuple[str, ...]) -> Callable[[str], re.Match[str] | None]:
    return re.compile("|".join(fnmatch.translate(pattern.lower()) for pattern in patterns)).match


def _kind_by_name(name: str) -> str | None:
    ending = name.rsplit("/", 1)[-1].rpartition(".")[2].lower()
    return "image" if ending in IMAGE_ENDINGS else "av" if ending in AV_ENDINGS else None


def _kind_by_content(head: bytes) -> str | None:
    if head[4:8] == b"ftyp":
        return "image" if head[8:12] in _STILL_BRANDS else "av"
    ending = media_extension(head)
    if ending is not None:
        return "av" if ending in AV_ENDINGS or ending == "flv" else "image"
    return "av" if head.startswith(_SOUNDS) else None


def read_header(
    head: bytes, size_bytes: int, read_at: Callable[[int, int], bytes], name: str, by: MediaFilterConfig
) -> ImageMetadata | AVMetadata | None:
    """Say what is known of a file, if it is a medium. Nothing is decoded.

    Numbers of frames and samples that no header has are durations times rates, rounded: frames in mkv and webm, samples
    of compressed sound.

    Args:
        head: Its first `HEADER_BYTES`, or all of it.
        size_bytes: Of the file.
        read_at: Gives bytes of it: how many from which offset, fewer only at its end.
        name: Of the file, with its ending.
        by: How media are told. It has taken the name.

    Raises:
        DecodingError: It should be a medium, but its header is damaged, or of a kind that is not known.
        MissingPackageError: It is a video or a sound, and PyAV is not installed.
    """
    kind = None if by.strategy is MediaFilterStrategy.EXTENSION else _kind_by_content(head)
    kind = kind or _kind_by_name(name)
    if kind is None:
        return None
    file = _File(head, size_bytes, read_at)
    try:
        return _read_image(head, size_bytes, file) if kind == "image" else _read_av(head, size_bytes, file)
    except DecodingError:
        raise
    except _DAMAGED as error:
        if isinstance(error, _NotReadError):
            raise error.why from error
        raise DecodingError(
            f"has no readable header of {'an image' if kind == 'image' else 'a medium'}: {error}"
        ) from error


_HEADER_FIRST = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM")
_DAMAGED = (ValueError, OSError, SyntaxError, struct.error, TypeError, LookupError, ArithmeticError, EOFError, Warning)
"""What Pillow raises of headers that it does not expect, and warns of, where warnings are errors."""


class _NotReadError(ValueError):
    """Bytes could not be read, for which the file is not to blame."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


class _File:
    """A file to be read here and there: what libraries take for one."""

    def __init__(self, head: bytes, size_bytes: int, read_at: Callable[[int, int], bytes]) -> None:
        self._window, self._window_at = head, 0
        self._size, self._read_at, self._at = size_bytes, read_at, 0
        self._left = MAX_HEADER_BYTES

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative seek position {start + offset}")
        self._at = start + offset
        return self._at

    def read(self, size_bytes: int = -1) -> bytes:
        stop = self._size if size_bytes < 0 else min(self._at + size_bytes, self._size)
        if stop <= self._at:
            return b""
        begin = self._at - self._window_at
        if begin < 0 or stop > self._window_at + len(self._window):
            wanted = min(max(stop - self._at, _WINDOW_BYTES), self._size - self._at)
            self._left -= wanted
            if self._left < 0:
                raise ValueError(f"it is not within {MAX_HEADER_BYTES >> 20} MiB")
            try:
                self._window, self._window_at, begin = self._read_at(self._at, wanted), self._at, 0
            except OSError as error:
                raise _NotReadError(error) from error
        data = self._window[begin : begin + stop - self._at]
        self._at += len(data)
        return data


def _read_image(head: bytes, size_bytes: int, file: _File) -> ImageMetadata:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _read_webp(head)
    if head[:4] == b"\0\0\1\0":
        return _read_icon(head, file)
    try:
        # Of these the header comes first, and what is cut off is missed.
        found = _ask_pillow(io.BytesIO(head) if head.startswith(_HEADER_FIRST) else file, head)
    except _DAMAGED:
        if len(head) >= size_bytes or not head.startswith(_HEADER_FIRST):
            raise
        found = _ask_pillow(file, head)
    if found.width < 1 or found.height < 1:
        raise ValueError(f"{found.width} x {found.height} pixels")
    return found


def _ask_pillow(file: Any, head: bytes) -> ImageMetadata:
    """What `Image.open` says, which also refuses what is large when it is decoded: that is no matter here."""
    from PIL import Image

    Image.init()
    for name in Image.ID:
        make, accepts = Image.OPEN[name]
        if accepts is not None and accepts(head[:16]) is True:
            file.seek(0)
            try:
                with make(file, "") as image:
                    return ImageMetadata(
                        width=image.width,
                        height=image.height,
                        format=image.format or name,
                        mode=image.mode or "UNKNOWN",
                    )
            except Image.DecompressionBombError as error:  # of a GIF's first frame
                raise ValueError(str(error)) from error
    raise ValueError("its first bytes are those of no image")


def _read_icon(head: bytes, file: _File) -> ImageMetadata:
    """Of its pictures Pillow takes the largest, with the most colours, and makes it RGBA unless it is PNG."""
    entries = [struct.unpack_from("<BBBxHHII", head, 6 + 16 * n) for n in range(int.from_bytes(head[4:6], "little"))]
    width, height, _, _, _, size_bytes, at = max(
        entries, key=lambda entry: ((entry[0] or 256) * (entry[1] or 256), entry[4])
    )
    file.seek(at)
    picture = file.read(min(size_bytes, HEADER_BYTES))
    if picture.startswith(b"\x89PNG"):
        inside = _ask_pillow(io.BytesIO(picture), picture)
        return ImageMetadata(width=inside.width, height=inside.height, format="ICO", mode=inside.mode)
    if not picture:
        raise ValueError("its pictures are not there")
    return ImageMetadata(width=width or 256, height=height or 256, format="ICO", mode="RGBA")


def _read_webp(head: bytes) -> ImageMetadata:
    """The container specification of WebP, RFC 9649."""
    if head[12:16] == b"VP8X":
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
        has_alpha = bool(head[20] & 0x10)
    elif head[12:16] == b"VP8L" and head[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", head, 21)
        width, height, has_alpha = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, bool(bits >> 28 & 1)
    elif head[12:16] == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", head, 26))
        has_alpha = False
    else:
        raise ValueError("no picture follows the header of WebP")
    if len(head) < 30 or not width * height:
        raise ValueError("the header of WebP is cut short")
    return ImageMetadata(width=width, height=height, format="WEBP", mode=("RGB", "RGBA")[has_alpha])


def _read_av(head: bytes, size_bytes: int, file: _File) -> AVMetadata:
    found = _read_wav(head, size_bytes) if head[:4] == b"RIFF" and head[8:12] == b"WAVE" else None
    return found or _read_by_libav(file)


def _read_wav(head: bytes, size_bytes: int) -> AVMetadata | None:
    """Of plain samples, as nearly all are; None of what is not that plain."""
    at, rate, channels, frame_bytes = 12, 0, 0, 0
    while at + 8 <= len(head):
        name, length = head[at : at + 4], int.from_bytes(head[at + 4 : at + 8], "little")
        if name == b"fmt " and at + 24 <= len(head):
            form, channels, rate, _, frame_bytes, _ = struct.unpack_from("<HHIIHH", head, at + 8)
            if form not in (1, 3, 0xFFFE):  # integers, floats, and either with more said
                return None
        if name == b"data":
            if not (rate and channels and frame_bytes):
                return None
            samples = min(length, size_bytes - at - 8) // frame_bytes
            return AVMetadata(
                audio_duration=samples / rate,
                audio_channels=channels,
                audio_sample_rate=rate,
                audio_num_samples=samples,
            )
        at += 8 + length + length % 2
    return None


def _read_by_libav(file: _File) -> AVMetadata:
    from energon_grain.media.container import Bounds, opened  # who looks at pictures needs none of it

    try:
        with opened(file, Bounds()) as container:  # type: ignore[arg-type]
            return _of_streams(container)
    except DecodingError as error:
        raise DecodingError(f"has no readable header of a medium: {error}") from error


def _of_streams(container: Any) -> AVMetadata:
    found = AVMetadata()
    # Of codecs that this libav has not, nothing more is known.
    pictures = [each for each in container.streams.video if each.codec_context and not each.disposition & _COVER]
    sounds = [each for each in container.streams.audio if each.codec_context]
    if pictures:
        _describe_video(found, container, pictures[0])
    if sounds:
        _describe_audio(found, container, sounds[0])
    if not found.to_dict():
        raise DecodingError("it holds neither video nor sound")
    return found


def _describe_video(found: AVMetadata, container: Any, stream: Any) -> None:
    rate = stream.average_rate or stream.guessed_rate
    found.video_duration = _seconds(container, stream)
    found.video_fps = float(rate) if rate else None
    found.video_width, found.video_height = stream.width or None, stream.height or None
    found.video_num_frames = stream.frames or _count(found.video_duration, found.video_fps)


def _describe_audio(found: AVMetadata, container: Any, stream: Any) -> None:
    found.audio_duration = _seconds(container, stream)
    found.audio_channels, found.audio_sample_rate = stream.channels or None, stream.rate or None
    found.audio_num_samples = _count(found.audio_duration, found.audio_sample_rate)


_COVER = 1024
"""libav's AV_DISPOSITION_ATTACHED_PIC: the picture on a record's sleeve is no video."""


def _seconds(container: Any, stream: Any) -> float | None:
    """How long a stream is: as it says itself, as Matroska's tag says, or as its container."""
    from energon_grain.media.container import tagged_end_s

    base = stream.time_base
    if stream.duration is not None and base:
        return max(0.0, float(stream.duration * base))
    if (end := tagged_end_s(stream)) is not None:
        began = stream.start_time * base if stream.start_time is not None and base else 0
        return max(0.0, float(end - began))
    return None if container.duration is None else max(0.0, container.duration / 1e6)


def _count(seconds: float | None, rate: float | None) -> int | None:
    return None if seconds is None or not rate else round(seconds * rate)
