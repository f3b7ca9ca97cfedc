# SPDX-License-Identifier: Apache-2.0
"""Image decoding.

Pillow defines the result of decoding. JPEGs are decoded directly by libjpeg-turbo, with the same pixels in a third less
time and without holding the interpreter lock. Pillow decodes everything else.

For smaller images (`Fit`), libjpeg decodes a JPEG at 1/2, 3/8, 1/4 or 1/8 of its size: the smallest that is large
enough, from the coefficients of each block that matter at that size. Pillow resizes the rest of the way. The remaining
cost is little more than reading the Huffman codes.

nvImageCodec decodes many JPEGs at once on a GPU, on request. Images that it does not support are decoded as usual,
which also reports the errors of broken ones.

A few bytes can declare any size, and each scan of a progressive JPEG processes all of it again. The declared size is
therefore compared with a limit before decoding.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import simplejpeg

from energon_grain.errors import ConfigError
from energon_grain.extras import needed_for

if TYPE_CHECKING:
    from PIL.Image import Image

_logger = logging.getLogger("energon_grain")

Buffer = bytes | memoryview
Pixels = npt.NDArray[np.uint8]
ImageDecode = Literal[
    "l8", "rgb8", "rgba8", "l", "rgb", "rgba",
    "torchl8", "torchrgb8", "torchrgba8", "torchl", "torchrgb", "torch", "torchrgba",
    "pill", "pil", "pilrgb", "pilrgba",
]  # fmt: skip
ImageSize = int | tuple[int, int]
ImageDecoder = Literal["pillow", "nvimgcodec"]
ImageFilter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]

IMAGE_EXTENSIONS = frozenset(
    (  # noqa: SIM905 (a list would be sixty lines)
        "apng blp bmp bufr bw cur dcx dds dib emf eps fit fits flc fli ftc ftu gbr gif grib h5 hdf icb icns ico iim im "
        "j2c j2k jfif jp2 jpc jpe jpeg jpf jpg jpx mpeg mpg msp pbm pcd pcx pgm png pnm ppm ps psd pxr ras rgb rgba "
        "sgi tga tif tiff vda vst webp wmf xbm xpm"
    ).split()
)
"""Extensions of part names (in lower case) that mean an image."""

MAX_PIXELS = 1 << 27
"""Default maximum pixels of one picture: more than any camera has."""
PASSES = 16
"""Maximum total pixels of the scans of a JPEG or of the frames of a video, in multiples of the pixel limit."""
_SCALE = np.float32(255)


@dataclass(frozen=True, slots=True)
class ImageMode:
    """The result type of image decoding."""

    form: Literal["array", "planes", "pil"]
    """`array`: (H, W) or (H, W, C); `planes`: (H, W) or (C, H, W); `pil`: a Pillow image."""
    colour: Literal["L", "RGB", "RGBA"]
    scaled: bool
    """float32 in 0..1 instead of uint8."""


def _modes() -> dict[str, ImageMode]:
    colours: dict[str, Literal["L", "RGB", "RGBA"]] = {"l": "L", "rgb": "RGB", "rgba": "RGBA"}
    modes: dict[str, ImageMode] = {}
    for name, colour in colours.items():
        modes[name] = ImageMode("array", colour, scaled=True)
        modes[f"{name}8"] = ImageMode("array", colour, scaled=False)
        modes[f"torch{name}"] = ImageMode("planes", colour, scaled=True)
        modes[f"torch{name}8"] = ImageMode("planes", colour, scaled=False)
        modes[f"pil{name}"] = ImageMode("pil", colour, scaled=False)
    return {**modes, "torch": modes["torchrgb"], "pil": modes["pilrgb"]}


IMAGE_MODES = _modes()
"""Modes by the value of `image_decode`, one for each in `ImageDecode`."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Target size of images: pixels of the shorter side, or height and width, with one of Pillow's filters."""

    size: ImageSize
    filter: ImageFilter

    def of(self, width: int, height: int, most: int) -> tuple[int, int]:
        """Return the target width and height of a picture. Raises ValueError above `most` pixels."""
        if isinstance(self.size, tuple):
            tall, wide = self.size
        else:
            short = min(width, height)
            wide, tall = ((self.size * side + short // 2) // short for side in (width, height))
        if wide * tall > most:
            raise ValueError(
                f"a picture of {width} x {height} pixels would be resized to {wide} x {tall}, above "
                f"SampleDecoder(max_pixels={most})"
            )
        return wide, tall


def image_codec(image_decode: str, max_pixels: int | None = MAX_PIXELS, fit: Fit | None = None) -> Callable[..., Any]:
    """Return the function that decodes image files in a mode of `IMAGE_MODES`. Picklable.

    It raises ValueError, before decoding, if a file declares more than `max_pixels`.
    """
    mode = IMAGE_MODES[image_decode]
    most = sys.maxsize if max_pixels is None else max_pixels
    if mode.form == "pil":
        return partial(_open_image, colour=mode.colour, most=most, fit=fit)
    planes = mode.form == "planes" and mode.colour != "L"
    return partial(_decode, colour=mode.colour, planes=planes, scaled=mode.scaled, most=most, fit=fit)


def check_size(width: int, height: int, most: int) -> None:
    """Raise ValueError if a picture has more than `most` pixels."""
    if width * height > most:
        raise ValueError(
            f"the file declares a picture of {width} x {height} pixels, above SampleDecoder(max_pixels={most})"
        )


def decode_rows(
    codec: Callable[..., Pixels | npt.NDArray[np.float32]],
    column: list[bytes],
    groups: Sequence[range],
    as_value: Callable[[npt.NDArray[Any]], Any],
    ahead: Callable[[list[bytes]], Iterable[Pixels | None]] | None = None,
) -> list[Any]:
    """Decode images in groups that will probably be stacked.

    The images of a group with the shape of its first one are decoded into the rows of one array. Stacking them again
    then costs nothing (`batching.batch_pad_stack` recognises all rows of an array in order).

    Args:
        codec: Result of `image_codec`, for a mode that decodes to arrays.
        column: Bytes of images.
        groups: Ranges of `column`, which together cover it in order.
        as_value: Converts an array to a value without copying; iterating over the value yields its rows.
        ahead: Decodes a group at once, like `NvImageCodec`; the codec decodes images that are None.
    """
    images: list[Any] = []
    for group in groups:
        ready = iter([None] * len(group) if ahead is None else ahead(column[group.start : group.stop]))
        first = codec(column[group.start], ready=next(ready))
        stack = np.empty((len(group), *first.shape), first.dtype)
        stack[0] = first
        values = list(as_value(stack))
        images.append(values[0])
        for place, row, value, pixels in zip(group[1:], stack[1:], values[1:], ready, strict=True):
            image = codec(column[place], out=row, ready=pixels)
            images.append(value if image is row else as_value(image))
    return images


def _decode(
    data: Buffer,
    *,
    colour: str,
    planes: bool,
    scaled: bool,
    most: int,
    fit: Fit | None,
    out: npt.NDArray[Any] | None = None,
    ready: Pixels | None = None,
) -> npt.NDArray[Any]:
    """Decode the image, into `out` if it has the right shape; uses the pixels in `ready` if given."""
    direct = out if not (scaled or planes or colour == "L") else None
    pixels = ready
    if pixels is None and fit is None and data[:3] == _JPEG:
        pixels = _decode_jpeg(data, colour, planes, most, direct)
    if pixels is None:
        image = _open_image(data, colour=colour, most=most, fit=fit)
        if planes:
            pixels = np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
        else:
            pixels = np.array(image)
    if out is not None and out.shape != pixels.shape:
        out = None
    if scaled:
        # One float32 division per pixel, the same result as `x.astype(float32) / 255` in torch and numpy.
        return np.divide(pixels, _SCALE, out=out, dtype=np.float32)
    if out is None or pixels is out:
        return pixels
    np.copyto(out, pixels)
    return out


def _decode_jpeg(data: Buffer, colour: str, planes: bool, most: int, out: Pixels | None) -> Pixels | None:
    """Decode a JPEG, into `out` if it fits; None if Pillow must decode it or report the error."""
    try:
        height, width, stored, _ = simplejpeg.decode_jpeg_header(data)
        if stored not in _SOURCES[colour]:
            return None
        _check_jpeg(data, int(width), int(height), most)
        if planes:
            return _planes(simplejpeg.decode_jpeg(data, colorspace="RGBA"), len(colour))
        if out is not None and out.shape == (height, width, len(colour)):
            simplejpeg.decode_jpeg(data, colorspace=colour, buffer=out)
            return out
        pixels = simplejpeg.decode_jpeg(data, colorspace="GRAY" if colour == "L" else colour)
    except ValueError:
        return None
    return pixels[:, :, 0] if colour == "L" else pixels


_SOURCES = {"L": ("Gray",), "RGB": ("YCbCr", "RGB", "Gray"), "RGBA": ("YCbCr", "RGB", "Gray")}
# libjpeg's luminance differs from Pillow's RGB to L in the last bit, so only grey files are decoded to L directly


def _planes(pixels: Pixels, count: int) -> Pixels:
    """Convert (H, W, 4) to the (count, H, W) planes of its first channels.

    Reads four bytes as one word and truncates it: numpy uses vector instructions for that, twice as fast as transposing
    bytes.
    """
    if sys.byteorder != "little":
        return np.ascontiguousarray(pixels[:, :, :count].transpose(2, 0, 1))
    words: npt.NDArray[np.uint32] = pixels.view(np.uint32)[:, :, 0]
    planes = np.empty((count, *words.shape), np.uint8)
    planes[0] = words  # keeps the low byte
    for channel in range(1, count):
        planes[channel] = words >> np.uint32(8 * channel)
    return planes


def _open_image(data: Buffer, *, colour: str, most: int, fit: Fit | None = None) -> Image:
    """Decode with Pillow in the given colour mode, and resize if requested."""
    from PIL import Image

    if fit is not None:
        # The nearest pixels depend on the whole picture.
        found = _reduced_jpeg(data, colour, most, fit) if data[:3] == _JPEG and fit.filter != "nearest" else None
        if found is None:
            image = _open_image(data, colour=colour, most=most)
            found = image, image.size, fit.of(*image.size, most)
        image, within, size = found
        if not image.size == within == size:
            image = image.resize(size, Image.Resampling[fit.filter.upper()], (0, 0, within[0], within[1]))
        return image if image.mode == colour else image.convert(colour)
    with Image.open(io.BytesIO(data)) as image:
        check_size(*image.size, most)
        if data[:3] == _JPEG:
            _check_jpeg(data, *image.size, most)
        return image.convert(colour)


_EIGHTHS = (1, 2, 3, 4, 8)


def _reduced_jpeg(
    data: Buffer, colour: str, most: int, fit: Fit
) -> tuple[Image, tuple[float, float], tuple[int, int]] | None:
    """Decode a JPEG at the smallest fraction of its size that is large enough.

    Returns:
        The picture; the width and height of the file in it, whose last pixels may be cut; and the target size. None if
        Pillow must decode it or report the error.
    """
    from PIL import Image

    try:
        height, width, stored, _ = simplejpeg.decode_jpeg_header(data)
        if stored not in _SOURCES["RGB"]:
            return None
        width, height = int(width), int(height)
        _check_jpeg(data, width, height, most)
        size = fit.of(width, height, most)
        least = min(size[0], width), min(size[1], height)
        # Between 1/2 and 1, decoding takes longer than at full size.
        eighths = next(n for n in _EIGHTHS if -(-width * n // 8) >= least[0] and -(-height * n // 8) >= least[1])
        mode = "RGBA" if colour == "RGBA" else "L" if colour == "L" and stored == "Gray" else "RGBX"
        layout = "GRAY" if mode == "L" else mode
        pixels = simplejpeg.decode_jpeg(data, colorspace=layout, min_width=least[0], min_height=least[1], min_factor=2)
    except ValueError:
        return None
    tall, wide = pixels.shape[:2]
    assert (wide, tall) == (-(-width * eighths // 8), -(-height * eighths // 8))
    # Pillow stores colours in four bytes per pixel, so this copies nothing.
    image = Image.frombuffer(mode, (wide, tall), pixels, "raw", mode, 0, 1)
    image = image.convert("L") if mode == "RGBX" and colour == "L" else image
    return image, (width * eighths / 8, height * eighths / 8), size


_JPEG = b"\xff\xd8\xff"


def _check_jpeg(data: Buffer, width: int, height: int, most: int) -> None:
    """Raise ValueError if a JPEG has too many pixels, or too many scans for its pixels."""
    check_size(width, height, most)
    if width * height * (len(data) // _SCAN_BYTES) <= PASSES * most or _has_one_scan(data):
        return
    # The marker of a scan, which never occurs in image data, at even and odd offsets: faster than counting bytes.
    words = (np.frombuffer(data, "<u2", (len(data) - odd) // 2, odd) for odd in (0, 1))
    scans = sum(int(np.count_nonzero(each == 0xDAFF)) for each in words)
    if width * height * scans > PASSES * most:
        raise ValueError(
            f"a JPEG of {width} x {height} pixels and {scans} scans, above {PASSES} times the pixels of "
            f"SampleDecoder(max_pixels={most})"
        )


_SCAN_BYTES = 10  # the shortest header of a scan


def _has_one_scan(data: Buffer) -> bool:
    """Return whether the first scan of a JPEG is complete; False if unknown."""
    place, components = 2, 0
    while place + 10 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xDA:  # start of scan
            return data[place + 4] == components
        if marker in (0xC0, 0xC1):  # start of a frame that is not progressive
            components = data[place + 9]
        place += 2 + (data[place + 2] << 8 | data[place + 3])
    return False


@dataclass(frozen=True, slots=True)
class NvImageCodec:
    """Decodes JPEGs in batches with nvImageCodec, on the process's GPU, or on the CPU if there is none. Picklable.

    Raises ConfigError for modes other than arrays in RGB, and MissingPackageError.
    """

    image_decode: ImageDecode
    most: int | None

    def __post_init__(self) -> None:
        mode = IMAGE_MODES[self.image_decode]
        if mode.form == "pil" or mode.colour != "RGB":
            raise ConfigError(
                f"image_decode={self.image_decode!r}: image_decoder='nvimgcodec' decodes only to RGB arrays: use "
                f"rgb8, rgb, torchrgb8 or torchrgb"
            )
        _nvimgcodec()

    def __call__(self, column: Sequence[Buffer]) -> Iterator[Pixels | None]:
        """Yield uint8, (H, W, 3) or (3, H, W) by the mode, for each image; None if another decoder must try."""
        counts = [self._pixels(data) for data in column]
        batches = groupby(zip(column, counts, accumulate(counts), strict=True), lambda each: each[2] // _PIXELS_AT_ONCE)
        for _, batch in batches:
            yield from self._decode([bytes(data) if count else None for data, count, _ in batch])

    def _pixels(self, data: Buffer) -> int:
        """Return the pixels of a JPEG; 0 for files that other decoders handle.

        A file without the end marker of JPEG may be truncated, which a GPU does not always detect.
        """
        if data[:3] != _JPEG or data[-2:] != _END_OF_JPEG:
            return 0
        try:
            height, width, stored, _ = simplejpeg.decode_jpeg_header(data)
            _check_jpeg(data, int(width), int(height), sys.maxsize if self.most is None else self.most)
        except ValueError:
            return 0
        return int(width) * int(height) if stored in ("YCbCr", "Gray") else 0

    def _decode(self, files: list[bytes | None]) -> Iterator[Pixels | None]:
        codec = _nvimgcodec()
        planes = IMAGE_MODES[self.image_decode].form == "planes"
        params = codec.DecodeParams(
            apply_exif_orientation=False,
            color_spec=codec.ColorSpec.SRGB,
            sample_format=codec.SampleFormat.P_RGB if planes else codec.SampleFormat.I_RGB,
        )
        streams = [codec.CodeStream(file) for file in files if file is not None]
        found = iter(_decoder_of(os.getpid(), threading.get_ident()).decode(streams, params=params) if streams else [])
        for file in files:
            image = None if file is None else next(found)
            yield None if image is None else np.array(image.cpu())


_END_OF_JPEG = b"\xff\xd9"
_PIXELS_AT_ONCE = 1 << 26  # 200 MB on the device


@cache
def _nvimgcodec() -> Any:
    with needed_for("image_decoder='nvimgcodec'", instead="leave image_decoder out"):
        return importlib.import_module("nvidia.nvimgcodec")


@lru_cache(maxsize=256)
def _decoder_of(process: int, thread: int) -> Any:
    """Return the decoder of one thread: it must not be shared between threads, and does not survive a fork."""
    codec = _nvimgcodec()
    options = {"max_num_cpu_threads": 1, "options": ":fancy_upsampling=1"}  # like libjpeg
    try:
        return codec.Decoder(**options)
    except RuntimeError as error:
        _warn_of_cpu(process, str(error))
    backends = [codec.Backend(codec.CPU_ONLY)]
    return codec.Decoder(device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY, backends=backends, **options)


@cache
def _warn_of_cpu(process: int, error: str) -> None:
    """Log once per process that there is no GPU."""
    _logger.warning("process %d: nvImageCodec finds no GPU and decodes on the CPU: %s", process, error)
