# SPDX-License-Identifier: Apache-2.0
"""Metadata of images, video and audio from the first bytes of their files, without decoding.

Pillow describes an image when it opens it, from its header: 17 µs for a JPEG whose first 16 KiB are available. This
module itself parses WebP, which Pillow reads completely, and WAV, for which libav reads more than the header. PyAV
reads other video and audio. The bytes read from one file are limited, whatever its header contains.
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
"""Bytes from the start of a file that `read_header` needs. Most files need no second read."""
MAX_HEADER_BYTES = 64 << 20
"""Maximum number of bytes read to find a header: the index of a very long video has about 10 MiB."""
HEADER_FUNCTION, HEADER_VERSION = f"{__name__}:read_header", 1
"""The function that computes media columns, and its version, which changes with its results."""
_WINDOW_BYTES = 64 << 10

IMAGE_ENDINGS = frozenset("bmp gif ico j2k jp2 jpx jpeg jpg png tif tiff webp".split())  # noqa: SIM905
AV_ENDINGS = frozenset("aac avi flac m4a m4v mkv mov mp3 mp4 ogg wav webm".split())  # noqa: SIM905
"""Energon's extensions: other files are media only if a pattern or their first bytes match."""
_STILL_BRANDS = frozenset({b"avif", b"avis", b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"})
_SOUNDS = (b"OggS", b"\xff\xf1", b"\xff\xf9")


class MediaFilterStrategy(str, enum.Enum):  # noqa: UP042 (its `str()` is that of Energon's)
    """How media files are recognised."""

    EXTENSION = "EXTENSION"
    """Extension: bmp gif ico j2k jp2 jpx jp(e)g png tif(f) webp aac avi flac m4a m4v mkv mov mp3 mp4 ogg wav webm."""
    HEADER = "HEADER"
    """By their first bytes, else by file extension."""
    GLOB = "GLOB"
    """Files whose names match a pattern; among these by their first bytes, else by file extension."""


@public
class MediaFilterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects the files whose media headers are read.

    Attributes:
        strategy: How media files are recognised.
        patterns: For `GLOB`: shell patterns, such as `*.jpg`, matched against whole names, ignoring case. `*` also
            matches slashes.
    """

    strategy: MediaFilterStrategy
    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, glob: str | None, header: bool, extension: bool) -> MediaFilterConfig:
        """The filter for command-line options.

        Args:
            glob: Comma-separated patterns.
            header: Whether to recognise files by their first bytes.
            extension: Whether to recognise files by extension.

        Raises:
            ConfigError: Not exactly one option is set.
        """
        if sum(map(bool, (glob, header, extension))) != 1:
            raise ConfigError(
                "media filter: set exactly one of extension, header and glob (commands: "
                "--media-metadata-by-extension, --media-metadata-by-header, --media-metadata-by-glob '*.jpg,*.mp4')"
            )
        if glob:
            patterns = tuple(pattern.strip() for pattern in glob.split(",") if pattern.strip())
            if not patterns:
                raise ConfigError(f"media by glob {glob!r}: expected patterns such as '*.jpg', got none")
            return cls(MediaFilterStrategy.GLOB, patterns)
        return cls(MediaFilterStrategy.HEADER if header else MediaFilterStrategy.EXTENSION)

    @classmethod
    def of(cls, value: Any) -> MediaFilterConfig:
        """Convert an object with these attributes, such as Energon's own class. Raises ConfigError."""
        try:
            strategy = MediaFilterStrategy(getattr(value.strategy, "value", value.strategy))
            return value if isinstance(value, cls) else cls(strategy, tuple(value.patterns or ()))
        except (AttributeError, ValueError, TypeError):
            raise ConfigError(f"media_filter: expected a MediaFilterConfig, got {value!r}") from None

    def may_take(self, name: str) -> bool:
        """Whether the header of a file with this name is read; with `HEADER`, that of every file."""
        if self.strategy is MediaFilterStrategy.GLOB:
            return _any_of(self.patterns)(name.lower()) is not None
        return self.strategy is MediaFilterStrategy.HEADER or _kind_by_name(name) is not None

    def expects(self, name: str) -> bool:
        """Whether the extension of a file that the filter selects promises a medium."""
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
    """Read the metadata of a file, if it is a medium. Nothing is decoded.

    Numbers of frames and samples that are not in a header are computed as duration times rate, rounded: frames in mkv
    and webm, samples of compressed audio.

    Args:
        head: Its first `HEADER_BYTES`, or the whole file.
        size_bytes: Size of the file.
        read_at: Reads bytes: (offset, count); returns fewer only at the end.
        name: Name of the file, with its extension.
        by: The filter, which has accepted the name.

    Raises:
        DecodingError: The file should be a medium, but its header is damaged, or of an unknown kind.
        MissingPackageError: It is video or audio, and PyAV is not installed.
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
"""Exceptions that Pillow raises for unexpected headers, and its warnings, if warnings are errors."""


class _NotReadError(ValueError):
    """Bytes could not be read; not a fault of the file."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


class _File:
    """A file-like object with limited random access, for libraries."""

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
                raise ValueError(f"not found within {MAX_HEADER_BYTES >> 20} MiB")
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
        # In these formats the header comes first, and truncation is noticed.
        found = _ask_pillow(io.BytesIO(head) if head.startswith(_HEADER_FIRST) else file, head)
    except _DAMAGED:
        if len(head) >= size_bytes or not head.startswith(_HEADER_FIRST):
            raise
        found = _ask_pillow(file, head)
    if found.width < 1 or found.height < 1:
        raise ValueError(f"{found.width} x {found.height} pixels")
    return found


def _ask_pillow(file: Any, head: bytes) -> ImageMetadata:
    """Like `Image.open`, but without its limit on decoded size, which is irrelevant for metadata."""
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
    raise ValueError("it does not begin with the header of an image")


def _read_icon(head: bytes, file: _File) -> ImageMetadata:
    """Pillow uses the largest picture with the most colours, and converts it to RGBA unless it is PNG."""
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
        raise ValueError("its pictures are missing")
    return ImageMetadata(width=width or 256, height=height or 256, format="ICO", mode="RGBA")


def _read_webp(head: bytes) -> ImageMetadata:
    """Parses the WebP container specification, RFC 9649."""
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
        raise ValueError("no picture follows the WebP header")
    if len(head) < 30 or not width * height:
        raise ValueError("the WebP header is truncated")
    return ImageMetadata(width=width, height=height, format="WEBP", mode=("RGB", "RGBA")[has_alpha])


def _read_av(head: bytes, size_bytes: int, file: _File) -> AVMetadata:
    found = _read_wav(head, size_bytes) if head[:4] == b"RIFF" and head[8:12] == b"WAVE" else None
    return found or _read_by_libav(file)


def _read_wav(head: bytes, size_bytes: int) -> AVMetadata | None:
    """Parses plain PCM, the usual case; None for other formats."""
    at, rate, channels, frame_bytes = 12, 0, 0, 0
    while at + 8 <= len(head):
        name, length = head[at : at + 4], int.from_bytes(head[at + 4 : at + 8], "little")
        if name == b"fmt " and at + 24 <= len(head):
            form, channels, rate, _, frame_bytes, _ = struct.unpack_from("<HHIIHH", head, at + 8)
            if form not in (1, 3, 0xFFFE):  # integers, floats, extensible
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
    from energon_grain.media.container import Limits, opened  # not needed for images

    try:
        with opened(file, Limits()) as container:  # type: ignore[arg-type]
            return _of_streams(container)
    except DecodingError as error:
        raise DecodingError(f"has no readable header of a medium: {error}") from error


def _of_streams(container: Any) -> AVMetadata:
    found = AVMetadata()
    # For codecs that this libav lacks, nothing more is known.
    pictures = [each for each in container.streams.video if each.codec_context and not each.disposition & _COVER]
    sounds = [each for each in container.streams.audio if each.codec_context]
    if pictures:
        _describe_video(found, container, pictures[0])
    if sounds:
        _describe_audio(found, container, sounds[0])
    if not found.to_dict():
        raise DecodingError("it holds neither video nor audio")
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
"""libav's AV_DISPOSITION_ATTACHED_PIC: cover art is not video."""


def _seconds(container: Any, stream: Any) -> float | None:
    """Duration of a stream: its own, from Matroska's tag, or of its container."""
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
