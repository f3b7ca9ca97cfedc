# SPDX-License-Identifier: Apache-2.0
"""Decoders of sample parts, selected by the extension of the part's name."""

from __future__ import annotations

import ast
import difflib
import importlib
import io
import json
import logging
import math
import os
import pickle
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from multiprocessing import parent_process
from types import ModuleType
from typing import Any, cast, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, DecodingError, IndexFileError, ReadError, UntrustedCodeError, public
from energon_grain.extras import needed_for
from energon_grain.lazy_names import by_name
from energon_grain.transforms.image import (
    IMAGE_EXTENSIONS,
    IMAGE_MODES,
    MAX_PIXELS,
    Fit,
    ImageDecode,
    ImageDecoder,
    ImageFilter,
    ImageSize,
    NvImageCodec,
    decode_rows,
    image_codec,
)
from energon_grain.transforms.media_types import AV_EXTENSIONS, MAX_PART_BYTES, AVDecode, media_extension

_logger = logging.getLogger("energon_grain")

Buffer = bytes | memoryview
Codec = Callable[[Buffer], Any]
PICKLE_ENVIRONMENT = "ENERGON_GRAIN_ALLOW_PICKLE"
LAZY_BYTES = 4 << 20
"""Size above which a file in a bucket takes about twice as long to transfer as its first byte."""

TEXT_EXTENSIONS = frozenset({"txt", "text", "transcript"})
JSON_EXTENSIONS = frozenset({"json", "jsn"})

_decode_json = msgspec.json.Decoder().decode
WHOLE_COLUMN: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(TEXT_EXTENSIONS, bytes.decode),
    **dict.fromkeys(JSON_EXTENSIONS, _decode_json),
}
"""C functions with the results of the codecs for valid `bytes`, for `map` over many values. On any error, the codec
decides its meaning."""

_OBJECT = np.dtype(object)
_NPY_MAGIC = b"\x93NUMPY"
_MOST_HEADER_BYTES = 10_000  # numpy's own limit
_TENBIN_MAGIC = b"~TenBin~"
_TENBIN_TYPES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"})
_GZIP = 16 + zlib.MAX_WBITS
_GZIP_BYTES = 1 << 18  # unpacked per step


def text_codec(part: str) -> Callable[[Buffer], str]:
    """Return a function that decodes UTF-8 text; it raises `DecodingError` with the name `part`."""

    def decode(data: Buffer) -> str:
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise DecodingError(f"part {part!r}: {error}") from error

    return decode


def integer_codec(part: str) -> Callable[[Buffer], int]:
    """Return a function that decodes a decimal integer, with optional spaces; it raises `DecodingError` with `part`."""

    def decode(data: Buffer) -> int:
        try:
            return int(bytes(data))
        except ValueError as error:
            raise DecodingError(f"part {part!r}: {error}") from error

    return decode


def json_codec(part: str) -> Callable[[Buffer], Any]:
    """Return a function that decodes JSON like Python's `json` (including NaN and lone surrogates), but faster.

    It raises `DecodingError` with the name `part`.
    """

    def decode(data: Buffer) -> Any:
        try:
            return _decode_json(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        try:
            return json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise DecodingError(f"part {part!r}: {type(error).__name__}: {error}") from error

    return decode


def decode_npy(data: Buffer, *, allow_pickle: bool = False) -> npt.NDArray[Any]:
    """Decode a `.npy` file to a writable array in its saved memory order: a `bytearray` in place. Raises ValueError."""
    size = _npy_header_size(data)
    shape, fortran, dtype = _npy_header(bytes(data[:size])) if size else ((), False, _OBJECT)
    if dtype.hasobject or not dtype.itemsize:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=allow_pickle)
    if min(shape, default=0) < 0:
        raise ValueError(f"the header declares an array of shape {shape}")
    count = math.prod(shape)
    if len(data) - size < count * dtype.itemsize:
        raise ValueError(f"the header declares {count * dtype.itemsize} bytes, the file has {len(data) - size}")
    array = np.frombuffer(data, dtype, count, size).reshape(shape, order="F" if fortran else "C")
    return array if isinstance(data, bytearray) and array.flags.aligned else array.copy(order="K")


def decode_npz(data: Buffer, *, allow_pickle: bool = False, max_bytes: int | None = None) -> dict[str, Any]:
    """Decode a `.npz` file to arrays by name; other members stay bytes. Raises ValueError."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        check_unpacked(archive, max_bytes)
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    return {
        name.removesuffix(".npy"): decode_npy(member, allow_pickle=allow_pickle)
        if member.startswith(_NPY_MAGIC)
        else member
        for name, member in members.items()
    }


def check_unpacked(archive: zipfile.ZipFile, max_bytes: int | None) -> None:
    """Raise ValueError if an archive declares too much data; no member is read beyond its declared size."""
    members = archive.infolist()
    announced = sum(member.file_size for member in members)
    if max_bytes is not None and announced > max_bytes:
        raise ValueError(f"unpacks to {announced} bytes, above SampleDecoder(max_part_bytes={max_bytes})")
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise ValueError("uses a compression method other than deflate")


def decode_tenbin(data: Buffer) -> list[npt.NDArray[Any]]:
    """Decode a tensor binary, as written by WebDataset's `tenbin`, to its arrays.

    The file is a sequence of chunks: `~TenBin~`, int64 length, and that many bytes, padded to a multiple of 64. Each
    array is a header chunk of int64s (type name, label, number of dimensions, sizes) and a data chunk. Raises
    ValueError.
    """
    chunks: list[memoryview] = []
    view = memoryview(data)
    offset = 0
    while offset < len(view):
        size = int.from_bytes(view[offset + 8 : offset + 16], "little", signed=True)
        if bytes(view[offset : offset + 8]) != _TENBIN_MAGIC or not 0 <= size <= len(view) - offset - 16:
            raise ValueError(f"no valid chunk at byte {offset} of {len(view)}")
        chunks.append(view[offset + 16 : offset + 16 + size])
        offset += 16 + -(-size // 64) * 64
    arrays: list[npt.NDArray[Any]] = []
    for header, content in zip(chunks[::2], chunks[1::2], strict=True):
        numbers = np.frombuffer(header, "<i8")
        name = bytes(header[:8]).rstrip(b"\0").decode("ascii")
        if name not in _TENBIN_TYPES or len(numbers) < 3 or len(numbers) != 3 + numbers[2]:
            raise ValueError(f"invalid array header of type {name!r} with {len(numbers)} numbers")
        arrays.append(np.frombuffer(content, f"<{name}").reshape([int(size) for size in numbers[3:]]).copy())
    return arrays


def _npy_header_size(data: Buffer) -> int:
    """Return the bytes before the array data; 0 for damaged files, which numpy handles."""
    if data[:7] == _NPY_MAGIC + b"\1":
        return 10 + int.from_bytes(data[8:10], "little")
    if data[:7] in (_NPY_MAGIC + b"\2", _NPY_MAGIC + b"\3"):
        return 12 + int.from_bytes(data[8:12], "little")
    return 0


@lru_cache(maxsize=256)
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order, and type. Cached, because the samples of a dataset share a few headers."""
    stream = io.BytesIO(header)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    return _npy_header_3(header[12:])


def _npy_header_3(text: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Parse a header of version 3, whose field names may be any text. Numpy has no function for it alone."""
    if len(text) > _MOST_HEADER_BYTES:
        raise ValueError(f"an array header of {len(text)} bytes, above the limit of {_MOST_HEADER_BYTES}")
    header = ast.literal_eval(text.decode("utf-8"))
    if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("the array header lacks type, order or shape")
    if not isinstance(header["shape"], tuple) or not all(type(length) is int for length in header["shape"]):
        raise ValueError(f"the header declares an array of shape {header['shape']}")
    return header["shape"], bool(header["fortran_order"]), np.lib.format.descr_to_dtype(header["descr"])


def gunzip(data: Buffer, max_bytes: int | None) -> bytes:
    """Decompress gzip data of one or several members. Raises ValueError and zlib.error."""
    most = sys.maxsize if max_bytes is None else max_bytes
    pieces: list[bytes] = []
    size = place = 0
    while place < len(data):
        member = zlib.decompressobj(wbits=_GZIP)
        while not member.eof:
            packed = data[place : place + _GZIP_BYTES]
            if not packed:
                raise ValueError("the gzip data is truncated")
            pieces.append(member.decompress(packed, min(most - size + 1, sys.maxsize)))
            size += len(pieces[-1])
            if size > most:
                raise ValueError(f"unpacks to more than SampleDecoder(max_part_bytes={most}) allows")
            place += len(packed) - len(member.unused_data)
        while data[place : place + 1] == b"\0":  # padding
            place += 1
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def torch_file(data: Buffer, max_bytes: int | None) -> io.BytesIO:
    """Return a file of `torch.save` for `torch.load`. Raises ValueError."""
    file = io.BytesIO(data)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            check_unpacked(archive, max_bytes)
    file.seek(0)
    return file


def _check_allowed(part: str, what: str, *, allowed: bool) -> None:
    if not allowed:
        raise UntrustedCodeError(
            f"part {part!r} is {what} and can run any code when it is loaded. If you trust the data, use "
            "SampleDecoder(allow_pickle=True); otherwise leave the part out (field_map, part_filter) or read raw bytes "
            "(decoder=None)"
        )


def _installed(module: str, part: str) -> ModuleType:
    with needed_for(f"decoding part {part!r}", instead="read raw bytes (decoder=None)"):
        return importlib.import_module(module)


@public
class SampleDecoder:
    """Decodes the parts of samples.

    The text after the last dot of a part's name selects the decoder (`jpg`, also for `left.jpg`); a final `.gz` is
    decompressed first. Parts with other extensions stay bytes.

    | extension | value |
    |---|---|
    | `txt` `text` `transcript` | str, from UTF-8 |
    | `cls` `cls2` `index` `inx` `id` | int |
    | `json` `jsn` | the JSON value |
    | image formats, in any case | by `image_decode` |
    | `mp4` `mov` `avi` `mkv` `webm` `flv` `mp3` `flac` `wav`, in any case | by `av_decode` |
    | `npy`, `npz`, `ten` `tb` | array, dictionary of arrays, list of arrays |
    | `mp` `msg`, `cbor` | the contained value, with `energon-grain[codecs]` installed |
    | `pkl` `pickle` `pyd`, `pth` | rejected without `allow_pickle` |

    Immutable, picklable, and safe to use from several threads.
    """

    _av_decoder = "energon_grain.media.av_decoder.AVWebdatasetDecoder"
    """Makes the decoder of video and audio from some of the options; imported on first use."""

    def __init__(
        self,
        *,
        image_decode: ImageDecode = "torchrgb",
        image_size: ImageSize | None = None,
        image_filter: ImageFilter = "bicubic",
        image_decoder: ImageDecoder = "pillow",
        av_decode: AVDecode = "AVDecoder",
        video_decode_audio: bool = False,
        guess_content: bool = False,
        allow_pickle: bool | None = None,
        max_part_bytes: int | None = MAX_PART_BYTES,
        max_pixels: int | None = MAX_PIXELS,
        lazy_bytes: int | None = LAZY_BYTES,
    ) -> None:
        """Set the results of decoding.

        Args:
            image_decode: `l8`, `rgb8`, `rgba8`: uint8 (H, W) or (H, W, C). `l`, `rgb`, `rgba`: the same as float32 in
                0..1. With the prefix `torch`: (H, W) or (C, H, W); `torch` alone is `torchrgb`. These are numpy arrays,
                or tensors in the torch adapter. `pill`, `pilrgb`, `pilrgba`, `pil` for `pilrgb`: Pillow images.
            image_size: Pixels of the shorter side after resizing in proportion; or (height, width), regardless of
                proportions. None: no resizing. A JPEG of at least twice the size is decoded at a fraction of it first,
                which is faster and differs slightly from resizing the whole.
            image_filter: Filter for resizing: Pillow's `nearest`, `box`, `bilinear`, `hamming`, `bicubic` or `lanczos`.
            image_decoder: `pillow`: Pillow, and libjpeg-turbo with the same pixels. `nvimgcodec`: JPEGs by
                nvImageCodec, in batches, on the current GPU of the process, with `energon-grain[nvimgcodec]` installed;
                on the CPU, with a warning, if there is no GPU. Only for RGB images without resizing; GPU results may
                differ by rounding.
            av_decode: `AVDecoder`: an object that decodes on request, as much as requested. `torch`: an `AVData` of
                everything in the file, with numpy arrays, or tensors in the torch adapter. `pyav`: an opened PyAV
                container.
            video_decode_audio: Whether `torch` also decodes the audio of videos that have audio.
            guess_content: Detect images, video and audio by their first bytes instead of the part's name.
            allow_pickle: Decode pickles and torch files. They can run any code: only for data that you trust. None, the
                default: if the environment has `ENERGON_GRAIN_ALLOW_PICKLE=1`, for programs that cannot set the
                    argument.
            max_part_bytes: Maximum bytes of an unpacked part (`.gz`, `npz`, archives of torch, audio); None: no limit.
                Default: 2 GiB.
            max_pixels: Maximum pixels of an image or a frame; None: no limit except Pillow's own
                `Image.MAX_IMAGE_PIXELS`. The scans of a JPEG, and the frames of a video, may together have 16 times as
                many. Default: 2^27, 134 million. A part that declares more is rejected before any memory is allocated;
                the error policy handles its sample like any broken one.
            lazy_bytes: Minimum size of video and audio files in tars that are not read with their samples: the
                `AVDecoder` or PyAV container reads the bytes of frames on request. Default: 4 MiB. None: all files are
                read with their samples, which is best for files in a bucket that are decoded as a whole.

        Raises:
            ConfigError: A value is not one of those listed, a limit is below 1, or an option needs a package that is
                not installed.
        """
        _check_choice("image_decode", image_decode, tuple(IMAGE_MODES))
        _check_choice("image_filter", image_filter, get_args(ImageFilter))
        _check_choice("image_decoder", image_decoder, get_args(ImageDecoder))
        _check_choice("av_decode", av_decode, get_args(AVDecode))
        _check_bound("max_part_bytes", max_part_bytes)
        _check_bound("max_pixels", max_pixels)
        _check_bound("lazy_bytes", lazy_bytes)
        self._config: dict[str, Any] = {
            "image_decode": image_decode,
            "image_size": image_size if image_size is None else _checked_size(image_size),
            "image_filter": image_filter,
            "image_decoder": image_decoder,
            "av_decode": av_decode,
            "video_decode_audio": video_decode_audio,
            "guess_content": guess_content,
            "allow_pickle": os.environ.get(PICKLE_ENVIRONMENT) == "1" if allow_pickle is None else allow_pickle,
            "max_part_bytes": max_part_bytes,
            "max_pixels": max_pixels,
            "lazy_bytes": lazy_bytes,
        }
        self._codecs: dict[str, Codec | None] = {}
        mode = IMAGE_MODES[image_decode]
        size = self._config["image_size"]
        self._pixels = image_codec(image_decode, max_pixels, None if size is None else Fit(size, image_filter))
        if image_decoder == "nvimgcodec" and size is not None:
            raise ConfigError(
                f"image_size={image_size!r}: image_decoder='nvimgcodec' decodes only whole images: remove one of them "
                "(without nvImageCodec, JPEGs are decoded at a fraction of their size)"
            )
        self._ahead = NvImageCodec(image_decode, max_pixels) if image_decoder == "nvimgcodec" else None
        self._image_value = self._planes_value if mode.form == "planes" else _unchanged
        self._rows_pay = mode.form != "pil" and not guess_content

    def decoder_for(self, part: str) -> Codec | None:
        """Return the function that decodes the bytes (or a view of the bytes) of a part; None if they stay bytes.

        The function raises `DecodingError` with the part's name. Resolved once per name, then cached.

        Raises:
            UntrustedCodeError: The part is a pickle or torch file, which are not allowed.
            MissingPackageError: Decoding needs a package that is not installed.
        """
        try:
            return self._codecs[part]
        except KeyError:
            codec = self._codecs[part] = self._resolve(part)
            return codec

    def lazy_from(self, part: str) -> int | None:
        """Return the size above which `decoder_for(part)` accepts a seekable binary file instead of bytes; None: never.

        A subclass with its own `decoder_for` receives bytes, unless it also has its own `lazy_from`.
        """
        by_name = part.rpartition(".")[2].lower() in AV_EXTENSIONS and not self._config["guess_content"]
        ours = type(self).decoder_for is SampleDecoder.decoder_for
        return self._config["lazy_bytes"] if by_name and ours and self._config["av_decode"] != "torch" else None

    def decode_column(self, part: str, column: list[bytes], groups: Sequence[range] = ()) -> list[Any]:
        """Decode the same part of many samples, with the results of `decoder_for(part)`, but faster.

        Args:
            part: Name of the part.
            column: Its bytes, one value per sample.
            groups: Ranges of `column`, which together cover it in order, of values that will probably be stacked;
                images of a group become the rows of one array.

        Raises:
            Exception: A value cannot be decoded; `decoder_for(part)` raises the error with the details.
        """
        codec = self.decoder_for(part)
        if codec is None:
            return list(column)
        if type(self).decoder_for is SampleDecoder.decoder_for:
            ending = part.rpartition(".")[2]
            codec = WHOLE_COLUMN.get(ending, codec)
            if self._rows_pay and ending.lower() in IMAGE_EXTENSIONS:
                if groups:
                    return decode_rows(self._pixels, column, groups, self._image_value, self._ahead)
                if self._ahead is not None:
                    ready = zip(column, self._ahead(column), strict=True)
                    return [self._image_value(self._pixels(data, ready=pixels)) for data, pixels in ready]
        return list(map(codec, column))

    def decode(self, fname: str, raw: Buffer) -> Any:
        """Decode one file by its full name, `folder/key.part`; a name without a part stays bytes.

        Raises:
            DecodingError: The bytes cannot be decoded.
            UntrustedCodeError: The file is a pickle or torch file, which are not allowed.
            MissingPackageError: Decoding needs a package that is not installed.
        """
        key, _, part = fname.rpartition("/")[2].partition(".")
        codec = self.decoder_for(part if key and part else "")
        return raw if codec is None else codec(raw)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Decode a dictionary of parts. Entries whose names start with `__` are not parts and stay.

        Raises:
            DecodingError: A part cannot be decoded.
            UntrustedCodeError: A part is a pickle or torch file, which are not allowed.
            MissingPackageError: Decoding needs a package that is not installed.
        """
        decoded: dict[str, Any] = {}
        for part, data in sample.items():
            codec = None if part.startswith("__") else self.decoder_for(part)
            decoded[part] = data if codec is None else codec(data)
        return decoded

    def config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return dict(self._config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SampleDecoder) and type(self) is type(other) and self._config == other._config

    def __hash__(self) -> int:
        return hash(tuple(self._config.items()))

    def __repr__(self) -> str:
        return f"SampleDecoder({', '.join(f'{name}={value!r}' for name, value in self._config.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._config), ()

    def _resolve(self, part: str) -> Codec | None:
        name = part.removesuffix(".gz") if part.endswith(".gz") else "" if part == "gz" else part
        extension = name.rpartition(".")[2]
        codec = self._guessing(name) if self._config["guess_content"] else self._by_extension(name, extension)
        if name == part:
            return codec
        most: int | None = self._config["max_part_bytes"]
        return _guarded(part, lambda data: gunzip(data, most) if codec is None else codec(gunzip(data, most)))

    def _by_extension(self, part: str, extension: str) -> Codec | None:
        return self._media(part, extension.lower()) or self._basic(part, extension)

    def _guessing(self, part: str) -> Codec:
        extension = part.rpartition(".")[2].lower()
        basic: list[Codec | None] = []  # resolved only if needed, because it may reject the part

        def decode(data: Buffer) -> Any:
            codec = self._media(part, media_extension(data) or extension)
            if codec is None:
                if not basic:
                    basic.append(self._basic(part, part.rpartition(".")[2]))
                codec = basic[0]
            return data if codec is None else codec(data)

        return decode

    def _media(self, part: str, extension: str) -> Codec | None:
        if extension in IMAGE_EXTENSIONS:
            if self is DEFAULT_DECODER and "jax" in sys.modules and parent_process() is None:
                _hint_at_layout()
            return _guarded(part, self._image)
        return self._av_codec(part) if extension in AV_EXTENSIONS else None

    def _image(self, data: Buffer) -> Any:
        if self._ahead is None:
            return self._image_value(self._pixels(data))
        return self._image_value(self._pixels(data, ready=next(self._ahead([data]))))

    def _planes_value(self, planes: npt.NDArray[Any]) -> Any:
        """Return the value of an image in a `torch…` mode: the array; a tensor in the torch adapter."""
        return planes

    def _av_codec(self, part: str) -> Codec:
        """Return the function that decodes a video or audio file. Raises MissingPackageError."""
        if self._config["av_decode"] != "AVDecoder":
            by_name("energon_grain.media.container.require_av")()
        options = ("video_decode_audio", "av_decode", "max_pixels", "max_part_bytes")
        decoder = by_name(self._av_decoder)(**{option: self._config[option] for option in options})

        def decode(data: Buffer) -> Any:
            try:
                return decoder.decode(data)
            except DecodingError as error:
                raise DecodingError(f"part {part!r}: {error}") from error

        return _guarded(part, decode)

    def _torch_codec(self, part: str) -> Codec:
        """Return the function that decodes files of `torch.save`. Raises UntrustedCodeError and MissingPackageError."""
        _check_allowed(part, "a torch file, which is a pickle inside,", allowed=self._config["allow_pickle"])
        torch = _installed("torch", part)
        most: int | None = self._config["max_part_bytes"]
        return lambda data: torch.load(torch_file(data, most), map_location="cpu", weights_only=False)

    def _basic(self, part: str, extension: str) -> Codec | None:
        allowed: bool = self._config["allow_pickle"]
        if extension in TEXT_EXTENSIONS:
            return text_codec(part)
        if extension in JSON_EXTENSIONS:
            return json_codec(part)
        if extension in ("cls", "cls2", "index", "inx", "id"):
            return integer_codec(part)
        if extension == "npy":
            return _guarded(part, partial(decode_npy, allow_pickle=allowed))
        if extension == "npz":
            most: int | None = self._config["max_part_bytes"]
            return _guarded(part, partial(decode_npz, allow_pickle=allowed, max_bytes=most))
        if extension in ("ten", "tb"):
            return _guarded(part, decode_tenbin)
        if extension in ("mp", "msg"):
            return _guarded(part, _installed("msgpack", part).unpackb)
        if extension == "cbor":
            return _guarded(part, _installed("cbor2", part).loads)
        if extension in ("pkl", "pickle", "pyd"):
            _check_allowed(part, "a pickle", allowed=allowed)
            return _guarded(part, pickle.loads)
        if extension == "pth":
            return _guarded(part, self._torch_codec(part))
        return None


class ColumnDecoder(SampleDecoder):
    """Decodes parts that are named like table columns: their types are known, regardless of names.

    Args:
        decoder: Decodes them, by extension.
        endings: Extension for each column; entries of a list, `name.0`, use that of their column.
    """

    def __init__(self, decoder: SampleDecoder, endings: Mapping[str, str]) -> None:
        self._inner, self._endings = decoder, dict(endings)
        self._config = decoder.config()

    def _named(self, part: str) -> str:
        column = part if part in self._endings else part.rpartition(".")[0]
        return f"{part}.{self._endings[column]}" if column in self._endings else part

    def decoder_for(self, part: str) -> Codec | None:
        return self._inner.decoder_for(self._named(part))

    def decode_column(self, part: str, column: list[bytes], groups: Sequence[range] = ()) -> list[Any]:
        return self._inner.decode_column(self._named(part), column, groups)

    def decode(self, fname: str, raw: Buffer) -> Any:
        return self._inner.decode(self._named(fname), raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ColumnDecoder) and (self._inner, self._endings) == (other._inner, other._endings)

    def __hash__(self) -> int:
        return hash(self._inner)

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnDecoder, (self._inner, self._endings)


@cache
def _hint_at_layout() -> None:
    """Log the default image layout once per program, if it uses JAX. See decisions/image-layout.md."""
    _logger.info(
        "images are decoded as in Energon: float32 in 0..1, channels first. JAX programs usually prefer uint8 with "
        "channels last, which is also cheaper: set decoder = SampleDecoder(image_decode='rgb8') in the task encoder. "
        "image_decode='torchrgb' keeps the default without this message"
    )


def _guarded(part: str, decode: Codec) -> Codec:
    """Wrap `decode`: errors of the data become `DecodingError` with the part's name, other errors pass."""

    def guarded(data: Buffer) -> Any:
        try:
            return decode(data)
        except (MemoryError, ImportError, DecodingError, ReadError, IndexFileError):
            raise
        except Exception as error:
            raise DecodingError(f"part {part!r}: {type(error).__name__}: {error}") from error

    return guarded


def _unchanged(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return value


def _check_bound(option: str, value: object) -> None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ConfigError(f"{option}={value!r}: expected at least 1, or None for no limit")


def _checked_size(size: Any) -> ImageSize:
    """Check an `image_size`, which is a list in configuration files."""
    pair = isinstance(size, tuple | list)
    sides: tuple[Any, ...] = tuple(cast("Sequence[Any]", size)) if pair else (size,)
    whole = all(hasattr(side, "__index__") and not isinstance(side, bool) and side >= 1 for side in sides)
    if not whole or len(sides) != 1 + pair:
        raise ConfigError(f"image_size={size!r}: expected the pixels of the shorter side, or (height, width)")
    return (int(sides[0]), int(sides[1])) if pair else int(size)


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        close = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"{option}={value!r}: expected one of {', '.join(choices)}{hint}")


DEFAULT_DECODER = SampleDecoder()
"""Default decoder of task encoders."""
