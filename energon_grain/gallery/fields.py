# SPDX-License-Identifier: Apache-2.0
"""How a part of a sample is shown: as a picture, audio, a video or text; or why it cannot be shown.

The kind of a part depends on the end of its name, as in decoding, and on its first bytes if the name does not tell.
Pictures and values go through the loader's decoder, so a part that the loader refuses is refused here, too. Bytes are
kept for a page up to a limit; otherwise only a thumbnail, an outline or a few frames are kept.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.filesize import decimal

from energon_grain.errors import DecodingError, MissingPackageError
from energon_grain.media.container import Limits, opened, require_av
from energon_grain.transforms.decode import SampleDecoder, gunzip
from energon_grain.transforms.image import IMAGE_EXTENSIONS, MAX_PIXELS, check_size
from energon_grain.transforms.media_types import AV_EXTENSIONS, MAX_PART_BYTES, media_extension

THUMBNAIL_PIXELS = 640
"""Longest side of a reduced picture."""
FRAMES = 6
"""Frames of a video to show."""
_FRAME_PIXELS = 320
_PICTURE_BYTES = 250_000
"""Larger picture files are not kept: a page has many pictures, and a thumbnail shows as much."""
_PEAKS = 400
_FRAMES_DECODED = 600
"""Most frames to decode of a video. If key frames are rare, frames before the wanted ones are decoded, too."""
_SECONDS_HEARD = 600
_LEAST_HEARD = 2000
"""Fewest samples of audio in an array; fewer numbers are shown as numbers."""
_MOST_LETTERS = 20_000
_MOST_NUMBERS = 8
_ONE_LINE = 60
_AUDIO = frozenset({"aac", "flac", "m4a", "mp3", "oga", "ogg", "opus", "wav"})
_VIDEO = (AV_EXTENSIONS - _AUDIO) | {"m4v", "mpeg", "mpg", "ogv"}
_MIME = {
    "apng": "image/apng",
    "bmp": "image/bmp",
    "mpo": "image/jpeg",
    "gif": "image/gif",
    "jpeg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "m4a": "audio/mp4",
    "mp3": "audio/mpeg",
    "oga": "audio/ogg",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "wav": "audio/wav",
    "m4v": "video/mp4",
    "mov": "video/mp4",
    "mp4": "video/mp4",
    "ogv": "video/ogg",
    "webm": "video/webm",
}
"""Types of media that browsers show and play, by file ending or by Pillow's name of the format."""
_PLAYED = frozenset({"h264", "vp8", "vp9", "av1", "theora"})
"""Video codecs that browsers play."""
_DECODER = SampleDecoder(image_decode="pilrgba")


Kind = Literal["picture", "film", "sound", "failed", "text", "json", "numbers", "bytes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A part, as it is shown.

    Attributes:
        name: Name of the part.
        note: Its size, length, format, type or shape.
        kind: How it is shown.
        field: The fields of the sample that it fills, from the field map.
        decoded: The values of these fields that differ from the part.
        text: A text, or a value written as text; for a part that does not decode, the reason.
        images: The picture, or some evenly spread frames of a video; empty if it could not be decoded.
        peaks: (n,) loudest sample of each stretch of audio, 0 to 1; empty if it could not be decoded.
        data: The file, if a browser shows or plays it and it is small enough; else None.
        mime: Media type of the file.
        left_out: Reason why `data` is None.
    """

    name: str
    note: str
    kind: Kind
    field: str = ""
    decoded: tuple[Shown, ...] = ()
    text: str = ""
    images: Sequence[Image.Image] = ()
    peaks: npt.NDArray[np.float32] = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))
    data: bytes | None = None
    mime: str = ""
    left_out: str = ""

    @property
    def heading(self) -> str:
        """The name of the part, with the fields that it fills."""
        return f"{self.name} → {self.field}" if self.field else self.name

    def summary(self) -> dict[str, Any]:
        """The part as JSON."""
        found: dict[str, Any] = {"name": self.name, "field": self.field, "kind": self.kind, "note": self.note}
        if self.decoded:
            found["decoded"] = [field.summary() for field in self.decoded]
        if self.kind in ("picture", "film", "sound"):
            return found
        return {**found, "error" if self.kind == "failed" else "text": self.text}


def show_part(name: str, value: Any, *, most_bytes: int) -> Shown:
    """Decide how a part is shown.

    Args:
        name: Name of the part, as `jpg` or `left.png.gz`.
        value: Its bytes, a row of an array, or the output of hooks.
        most_bytes: Largest file to keep for a page.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return _file(name, value, most_bytes) if isinstance(value, bytes) else _value(name, value, "")
    except MemoryError:
        raise
    except Exception as error:  # of a decoder, which can raise anything on bad data
        note = decimal(len(value)) if isinstance(value, bytes) else type(value).__name__
        return Shown(kind="failed", name=name, note=note, text=f"{type(error).__name__}: {error}")


def _file(name: str, data: bytes, most_bytes: int) -> Shown:
    plain, unpacked = name, data
    if name.lower().endswith(".gz"):
        plain, unpacked = name[:-3], gunzip(data, MAX_PART_BYTES)
    ending = plain.rpartition(".")[2].lower()
    known = ending in IMAGE_EXTENSIONS or ending in _AUDIO or ending in _VIDEO or _DECODER.decoder_for(plain)
    if not known:
        ending = media_extension(unpacked) or ending
    if ending in _VIDEO or ending in _AUDIO:
        show, kind = (_film, "film") if ending in _VIDEO else (_sound, "sound")
        try:
            return show(name, unpacked, ending, most_bytes)
        except MissingPackageError as error:
            described = f"{decimal(len(unpacked))}; {error}"
            return Shown(kind=kind, name=name, note=described, **_kept(unpacked, ending, most_bytes))
    if ending in IMAGE_EXTENSIONS:
        return _picture(name, unpacked, most_bytes)
    return _words(name, plain, unpacked)


def _picture(name: str, data: bytes, most_bytes: int) -> Shown:
    with Image.open(io.BytesIO(data)) as header:
        width, height = header.size
        check_size(width, height, MAX_PIXELS)
        kind = (header.format or "").lower()
        image = Image.fromarray(_spread(np.asarray(header))) if header.mode[0] in "IF" else None
    if image is None:
        image = cast("Image.Image", cast("Callable[[bytes], Any]", _DECODER.decoder_for("png"))(data))
    file = _kept(data, kind, min(most_bytes, _PICTURE_BYTES))
    smaller = file["left_out"] and max(width, height) > THUMBNAIL_PIXELS
    file["left_out"] = f"shown at {THUMBNAIL_PIXELS} pixels" if smaller else ""
    note = f"{width} × {height}, {kind}, {decimal(len(data))}"
    return Shown(kind="picture", name=name, note=note, images=[_small(image, THUMBNAIL_PIXELS)], **file)


def _kept(data: bytes, kind: str, most_bytes: int, codec: str = "") -> dict[str, Any]:
    """The file for a page, or the reason why there is none, as attributes of `Shown`."""
    if kind not in _MIME or (codec and codec not in _PLAYED):
        return {"left_out": f"not played by browsers: {f'{codec} in ' if codec else ''}{kind}"}
    if len(data) > most_bytes:
        return {"left_out": f"not in this page: larger than {decimal(most_bytes)}"}
    return {"data": data, "mime": _MIME[kind], "left_out": ""}


def _small(image: Image.Image, longest: int) -> Image.Image:
    if image.mode == "RGBA" and image.getchannel("A").getextrema() == (255, 255):
        image = image.convert("RGB")
    image.thumbnail((longest, longest))
    return image


def _spread(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Scale numbers of any range to black and white; numbers within 0 and 1 keep their range."""
    low, high = float(np.nanmin(pixels)), float(np.nanmax(pixels))
    if pixels.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    scaled = (pixels.astype(np.float64) - low) * (255 / (high - low if high > low else 1))
    return np.nan_to_num(scaled).astype(np.uint8)


def _sound(name: str, data: bytes, ending: str, most_bytes: int) -> Shown:
    with opened(io.BytesIO(data), Limits()) as container:
        if not container.streams.audio:
            raise DecodingError("the file has no audio stream")
        context = container.streams.audio[0].codec_context
        rate, channels, codec = context.sample_rate, context.channels, context.name
        peaks, samples = _outline(container, rate)
        known = container.duration
    seconds = max(samples / rate, known / 1e6 if known else 0)
    layout = {1: "mono", 2: "stereo"}.get(channels, f"{channels} channels")
    note = f"{_seconds(seconds)}, {rate / 1000:g} kHz, {layout}, {codec}, {decimal(len(data))}"
    return Shown(kind="sound", name=name, note=note, peaks=peaks, **_kept(data, ending, most_bytes))


def _outline(container: Any, rate: int) -> tuple[npt.NDArray[np.float32], int]:
    """The loudest sample of each of at most `_PEAKS` stretches, and the number of samples that were decoded."""
    resampler = require_av().AudioResampler(format="fltp")
    block = 64
    found: list[npt.NDArray[np.float32]] = []
    samples = 0
    for frame in container.decode(audio=0):
        for piece in resampler.resample(frame):
            loud = np.abs(piece.to_ndarray()).max(axis=0)
            padded = np.pad(loud, (0, -len(loud) % block))
            found.append(padded.reshape(-1, block).max(axis=1))
            samples += len(loud)
        if samples > _SECONDS_HEARD * rate:
            break
    if not samples:
        raise DecodingError("the audio stream has no samples")
    return _peaks(np.concatenate(found)), samples


def _peaks(loud: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    loud = np.nan_to_num(loud).clip(0, 1)
    cuts = np.linspace(0, len(loud), min(_PEAKS, len(loud)) + 1).astype(np.int64)
    return np.maximum.reduceat(loud, cuts[:-1]).astype(np.float32)


def _film(name: str, data: bytes, ending: str, most_bytes: int) -> Shown:
    with opened(io.BytesIO(data), Limits()) as container:
        if not container.streams.video:
            raise DecodingError("the file has no video stream")
        stream = container.streams.video[0]
        codec, rate = stream.codec_context.codec.canonical_name, stream.average_rate
        width, height = stream.codec_context.width, stream.codec_context.height
        seconds = float(container.duration / 1e6) if container.duration else 0.0
        frames = tuple(_frames(container, stream, seconds))
    if not frames:
        raise DecodingError("the video stream has no frames")
    note = f"{_seconds(seconds)}, {width} × {height}, " if seconds else f"{width} × {height}, "
    note += f"{float(rate):.4g} frames/s, " if rate else ""
    file = _kept(data, ending, most_bytes, codec)
    file["left_out"] = f"frames only; {file['left_out']}" if file["left_out"] else ""
    return Shown(kind="film", name=name, note=f"{note}{codec}, {decimal(len(data))}", images=frames, **file)


def _frames(container: Any, stream: Any, seconds: float) -> Iterator[Image.Image]:
    """The middle frame of each of `FRAMES` equal stretches; if the length is unknown, the first frame."""
    left = _FRAMES_DECODED
    begin = float((stream.start_time or 0) * stream.time_base)
    for number in range(FRAMES):
        at = begin + seconds * (number + 0.5) / FRAMES
        if seconds:
            container.seek(int(at / stream.time_base), stream=stream)
        last = None
        for frame in container.decode(stream):
            last, left = frame, left - 1
            if frame.time is None or frame.time >= at or left <= _FRAMES_DECODED * (FRAMES - 1 - number) // FRAMES:
                break
        if last is not None:
            scale = min(1, _FRAME_PIXELS / max(last.width, last.height))
            yield last.to_image(width=max(1, round(last.width * scale)), height=max(1, round(last.height * scale)))
        if not seconds:
            return


def _words(name: str, plain: str, data: bytes) -> Shown:
    codec = _DECODER.decoder_for(plain)
    value = data if codec is None else codec(data)
    note = decimal(len(data))
    if not isinstance(value, bytes):
        return _value(name, value, note)
    head = value[:_MOST_LETTERS]
    try:
        text = head.decode("utf-8", "strict" if len(head) == len(value) else "ignore")
    except UnicodeDecodeError:
        text = "\0"
    if any(ord(letter) < 9 for letter in text[:1000]):
        return Shown(kind="bytes", name=name, note=note, text=value[:64].hex(" "))
    return Shown(kind="text", name=name, note=note, text=text)


def _value(name: str, value: Any, note: str) -> Shown:
    if isinstance(value, Image.Image):
        size = f"{value.width} × {value.height}, {value.mode}"
        return Shown(kind="picture", name=name, note=size, images=[_small(value.convert("RGBA"), THUMBNAIL_PIXELS)])
    if isinstance(value, np.ndarray) or (hasattr(value, "__array__") and np.ndim(value)):  # also of torch and JAX
        return _array(name, np.asarray(value), note)
    if isinstance(value, str):
        letters = f"{len(value):,} characters" if len(value) > 200 else ""
        return Shown(kind="text", name=name, note=", ".join(filter(None, [letters, note])), text=_cut(value))
    text = json.dumps(value, ensure_ascii=False, default=_summary)
    if len(text) > _ONE_LINE:
        text = json.dumps(value, indent=2, ensure_ascii=False, default=_summary)
    return Shown(kind="json", name=name, note=note, text=_cut(text))


def _array(name: str, array: npt.NDArray[Any], note: str) -> Shown:
    """An array as a picture, video or audio, with channels first or last; otherwise as numbers."""
    note = ", ".join([*([note] if note else []), f"{array.dtype.name} {list(array.shape)}"])
    if array.dtype == np.uint8 or (array.dtype.kind == "f" and array.ndim > 2):
        frames = _frames_of(array)
        if frames:
            return Shown(kind="film" if array.ndim == 4 else "picture", name=name, note=note, images=frames)
    if _is_sound(array):
        loud = np.abs(array.reshape(-1, array.shape[-1])).max(axis=0)
        return Shown(kind="sound", name=name, note=note, peaks=_peaks(loud))
    return Shown(kind="numbers", name=name, note=note, text=_summary(array))


def _is_sound(array: npt.NDArray[Any]) -> bool:
    if array.dtype.kind != "f" or not 1 <= array.ndim <= 2:
        return False
    if array.shape[-1] < _LEAST_HEARD or array[..., 0].size > 2:
        return False
    return bool(np.abs(array).max() <= 1 and array.min() < 0 < array.max())


def _frames_of(array: npt.NDArray[Any]) -> list[Any]:
    """Reduced pictures of an image, or of some frames of a video; empty if it is neither."""
    shots = array if array.ndim == 4 else array[np.newaxis]
    chosen = np.unique(np.linspace(0, len(shots) - 1, FRAMES).astype(np.int64)) if len(shots) else []
    longest = _FRAME_PIXELS if array.ndim == 4 else THUMBNAIL_PIXELS
    return [_small(frame, longest) for frame in map(_pixels, shots[chosen]) if frame is not None]


def _pixels(array: npt.NDArray[Any]) -> Image.Image | None:
    """A picture of (H, W), (H, W, C) or (C, H, W) numbers; None if the shape does not fit a picture."""
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim not in (2, 3) or min(array.shape[:2]) < 8 or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        return None
    array = array[:, :, 0] if array.shape[2:] == (1,) else array
    return Image.fromarray(np.ascontiguousarray(array if array.dtype == np.uint8 else _spread(array)))


def _summary(value: Any) -> str:
    """A short text for a value that JSON cannot hold."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc" or not value.size:
        return _cut(repr(value))
    array = cast("npt.NDArray[Any]", value)
    first = ", ".join(f"{number:.6g}" for number in array.reshape(-1)[:_MOST_NUMBERS].tolist())
    more = ", …" if array.size > _MOST_NUMBERS else ""
    if array.size <= _MOST_NUMBERS or array.dtype.kind == "c":
        return f"[{first}{more}]"
    with np.errstate(all="ignore"):
        low, mean, high = array.min(), array.mean(dtype=np.float64), array.max()
    return f"[{first}{more}]\nmin {low:.6g}, mean {mean:.6g}, max {high:.6g}"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}… ({len(text):,} characters)"


def _seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{int(seconds) // 60}:{math.floor(seconds) % 60:02d} min"
