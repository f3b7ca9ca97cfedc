# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a part to its value, by the end of the part's name."""

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
"""So many bytes of a bucket take about twice as long as the first one."""

TEXT_EXTENSIONS = frozenset({"txt", "text", "transcript"})
JSON_EXTENSIONS = frozenset({"json", "jsn"})

_decode_json = msgspec.json.Decoder().decode
WHOLE_COLUMN: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(TEXT_EXTENSIONS, bytes.decode),
    **dict.fromkeys(JSON_EXTENSIONS, _decode_json),
}
"""Functions in C that give what the codecs give for good `bytes`, for `map` over many values. Whatever they raise, the
codec decides what it means."""

_OBJECT = np.dtype(object)
_NPY_MAGIC = b"\x93NUMPY"
_MOST_HEADER_BYTES = 10_000  # numpy's own bound
_TENBIN_MAGIC = b"~TenBin~"
_TENBIN_TYPES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"})
_GZIP = 16 + zlib.MAX_WBITS
_GZIP_BYTES = 1 << 18  # unpacked at once


def text_codec(part: str) -> Callable[[Buffer], str]:
    """A function that decodes UTF-8 text; raises `DecodingError` naming `part`."""

    def decode(data: Buffer) -> str:
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise DecodingError(f"part {part!r}: {error}") from error

    return decode


def integer_codec(part: str) -> Callable[[Buffer], int]:
    """A function that decodes a decimal integer, space around it allowed; raises `DecodingError` naming `part`."""

    def decode(data: Buffer) -> int:
        try:
            return int(bytes(data))
        except ValueError as error:
            raise DecodingError(f"part {part!r}: {error}") from error

    return decode


def json_codec(part: str) -> Callable[[Buffer], Any]:
    """A function that decodes JSON as Python's `json` does (NaN and lone surrogates included), only faster.

    It raises `DecodingError` naming `part`.
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
    """The array in a `.npy` file, writable and in the memory order that it was saved in. Raises ValueError."""
    size = _npy_header_size(data)
    shape, fortran, dtype = _npy_header(bytes(data[:size])) if size else ((), False, _OBJECT)
    if dtype.hasobject or not dtype.itemsize:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=allow_pickle)
    if min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape} is announced")
    count = math.prod(shape)
    if len(data) - size < count * dtype.itemsize:
        raise ValueError(f"{count * dtype.itemsize} bytes of array data announced, {len(data) - size} present")
    flat = np.frombuffer(data, dtype, count, size)
    return flat.reshape(shape, order="F" if fortran else "C").copy(order="K")


def decode_npz(data: Buffer, *, allow_pickle: bool = False, max_bytes: int | None = None) -> dict[str, Any]:
    """The arrays in a `.npz` file by name; members that are no arrays as bytes. Raises ValueError."""
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
    """Raise ValueError where an archive announces too much; no member is read further than it announces."""
    members = archive.infolist()
    announced = sum(member.file_size for member in members)
    if max_bytes is not None and announced > max_bytes:
        raise ValueError(f"unpacks to {announced} bytes; SampleDecoder(max_part_bytes={max_bytes}) unpacks no more")
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise ValueError("is packed by another method than deflate")


def decode_tenbin(data: Buffer) -> list[npt.NDArray[Any]]:
    """The arrays of a tensor binary as WebDataset's `tenbin` writes it.

    The file is a row of chunks: `~TenBin~`, int64 length, and as many bytes, padded to a multiple of 64. Each array is
    a header chunk of int64s (type name, label, number of dimensions, sizes) and a data chunk. Raises ValueError.
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
            raise ValueError(f"an array header of type {name!r} with {len(numbers)} numbers is not valid")
        arrays.append(np.frombuffer(content, f"<{name}").reshape([int(size) for size in numbers[3:]]).copy())
    return arrays


def _npy_header_size(data: Buffer) -> int:
    """Bytes before the array data; 0 for damaged files, which are left to numpy."""
    if data[:7] == _NPY_MAGIC + b"\1":
        return 10 + int.from_bytes(data[8:10], "little")
    if data[:7] in (_NPY_MAGIC + b"\2", _NPY_MAGIC + b"\3"):
        return 12 + int.from_bytes(data[8:12], "little")
    return 0


@lru_cache(maxsize=256)
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type. Cached: the samples of a dataset share a few headers."""
    stream = io.BytesIO(header)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    return _npy_header_3(header[12:])


def _npy_header_3(text: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """That of version 3, whose field names may be any text: numpy has no function for it alone."""
    if len(text) > _MOST_HEADER_BYTES:
        raise ValueError(f"an array header of {len(text)} bytes; at most {_MOST_HEADER_BYTES} are read")
    said = ast.literal_eval(text.decode("utf-8"))
    if not isinstance(said, dict) or said.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("an array header that does not say type, order and shape")
    if not isinstance(said["shape"], tuple) or not all(type(length) is int for length in said["shape"]):
        raise ValueError(f"an array of shape {said['shape']} is announced")
    return said["shape"], bool(said["fortran_order"]), np.lib.format.descr_to_dtype(said["descr"])


def gunzip(data: Buffer, max_bytes: int | None) -> bytes:
    """What gzip packed, in one member or several. Raises ValueError and zlib.error."""
    most = sys.maxsize if max_bytes is None else max_bytes
    pieces: list[bytes] = []
    size = place = 0
    while place < len(data):
        member = zlib.decompressobj(wbits=_GZIP)
        while not member.eof:
            packed = data[place : place + _GZIP_BYTES]
            if not packed:
                raise ValueError("ends inside of what gzip packed")
            pieces.append(member.decompress(packed, min(most - size + 1, sys.maxsize)))
            size += len(pieces[-1])
            if size > most:
                raise ValueError(f"unpacks to more than SampleDecoder(max_part_bytes={most}) allows")
            place += len(packed) - len(member.unused_data)
        while data[place : place + 1] == b"\0":  # padding
            place += 1
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def torch_file(data: Buffer, max_bytes: int | None) -> io.BytesIO:
    """What `torch.save` wrote, for `torch.load`. Raises ValueError."""
    file = io.BytesIO(data)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            check_unpacked(archive, max_bytes)
    file.seek(0)
    return file


def _check_allowed(part: str, what: str, *, allowed: bool) -> None:
    if not allowed:
        raise UntrustedCodeError(
            f"part {part!r} is {what} and may run any code when it is loaded; if you trust the data, pass "
            "SampleDecoder(allow_pickle=True), else leave the part out (field_map, part_filter) or take raw bytes "
            "(decoder=None)"
        )


def _installed(module: str, part: str) -> ModuleType:
    with needed_for(f"decoding part {part!r}", instead="take raw bytes (decoder=None)"):
        return importlib.import_module(module)


@public
class SampleDecoder:
    """Decodes the parts of samples.

    The text after the last dot of a part's name says what it is (`jpg`, and `left.jpg` too); `.gz` behind it is
    unpacked first. Unknown ones stay bytes.

    | end of the name | value |
    |---|---|
    | `txt` `text` `transcript` | str, from UTF-8 |
    | `cls` `cls2` `index` `inx` `id` | int |
    | `json` `jsn` | what the JSON says |
    | image formats, in any case | by `image_decode` |
    | `mp4` `mov` `avi` `mkv` `webm` `flv` `mp3` `flac` `wav`, in any case | by `av_decode` |
    | `npy`, `npz`, `ten` `tb` | array, dictionary of arrays, list of arrays |
    | `mp` `msg`, `cbor` | what it contains, with `energon-grain[codecs]` installed |
    | `pkl` `pickle` `pyd`, `pth` | refused without `allow_pickle` |

    Immutable, picklable, and safe to use from several threads.
    """

    _av_decoder = "energon_grain.media.av_decoder.AVWebdatasetDecoder"
    """Makes the decoder of videos and sounds, of some of the options; imported with the first of them."""

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
        """Set what parts decode to.

        Args:
            image_decode: `l8`, `rgb8`, `rgba8`: uint8 (H, W) or (H, W, C). `l`, `rgb`, `rgba`: the same as float32 in
                0..1. With `torch` in front: (H, W) or (C, H, W), `torch` alone for `torchrgb`; numpy arrays here,
                tensors in the torch adapter. `pill`, `pilrgb`, `pilrgba`, `pil` for `pilrgb`: Pillow images.
            image_size: Pixels that the shorter side of an image gets, the other one in proportion; or (height, width),
                whatever the proportions were. None: images stay as they are. A JPEG of twice the size or more is
                decoded at a fraction of it first, which is faster and differs a little from resizing the whole.
            image_filter: How images are resized: Pillow's `nearest`, `box`, `bilinear`, `hamming`, `bicubic` or
                `lanczos`.
            image_decoder: `pillow`: Pillow, and libjpeg-turbo with its pixels. `nvimgcodec`: JPEGs by nvImageCodec, in
                batches, on the GPU that is the process's current one, with `energon-grain[nvimgcodec]` installed; on
                the CPU, with a warning, where there is none. For images in RGB that stay as they are; those of a GPU
                may differ by rounding.
            av_decode: `AVDecoder`: an object that decodes when asked, as much as is asked for. `torch`: an `AVData` of
                everything in the file, numpy arrays here, tensors in the torch adapter. `pyav`: an opened PyAV
                container.
            video_decode_audio: Whether `torch` decodes the audio of videos too, of those that have some.
            guess_content: Tell images, video and audio from their first bytes rather than from the part's name.
            allow_pickle: Decode pickles and torch files. They can run any code: only for data that you trust. None, the
                default: if `ENERGON_GRAIN_ALLOW_PICKLE=1` is in the environment, for programs that cannot say so.
            max_part_bytes: To how many bytes a part may be unpacked (`.gz`, `npz`, archives of torch, audio); None: any
                number. 2 GiB by default.
            max_pixels: How many pixels an image or a frame may have; None: any number, up to Pillow's own
                `Image.MAX_IMAGE_PIXELS`. The scans of a JPEG, and the frames of a video, may have 16 times as many
                together. 2^27 by default, 134 million.

                A part that announces more does not decode, before anything is allocated; the error policy decides
                about its sample, as about any that is broken.
            lazy_bytes: From how many bytes on a video or audio file in a tar is not read with its sample: the
                `AVDecoder` or PyAV container reads what frames take when it is asked for them. 4 MiB by default; None:
                all are read with their samples, which is best for those that are decoded whole and lie in a bucket.

        Raises:
            ConfigError: A value is not among those listed, a bound is below 1, or an option needs a package that is not
                installed.
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
                f"image_size={image_size!r}: image_decoder='nvimgcodec' decodes whole images only; leave one of them "
                "out (without nvImageCodec, JPEGs are decoded at a fraction of their size)"
            )
        self._ahead = NvImageCodec(image_decode, max_pixels) if image_decoder == "nvimgcodec" else None
        self._image_value = self._planes_value if mode.form == "planes" else _unchanged
        self._rows_pay = mode.form != "pil" and not guess_content

    def decoder_for(self, part: str) -> Codec | None:
        """The function that decodes the bytes (or a view of the bytes) of a part, None where they stay bytes.

        The function raises `DecodingError`, naming the part. Resolved once a name, then remembered.

        Raises:
            UntrustedCodeError: The part is a pickle or torch file, and those are not allowed.
            MissingPackageError: Decoding takes a package that is not installed.
        """
        try:
            return self._codecs[part]
        except KeyError:
            codec = self._codecs[part] = self._resolve(part)
            return codec

    def lazy_from(self, part: str) -> int | None:
        """From how many bytes on `decoder_for(part)` takes a seekable binary file as well as bytes; None: it does not.

        A decoder with a `decoder_for` of its own gets bytes, unless it has a `lazy_from` of its own too.
        """
        by_name = part.rpartition(".")[2].lower() in AV_EXTENSIONS and not self._config["guess_content"]
        ours = type(self).decoder_for is SampleDecoder.decoder_for
        return self._config["lazy_bytes"] if by_name and ours and self._config["av_decode"] != "torch" else None

    def decode_column(self, part: str, column: list[bytes], groups: Sequence[range] = ()) -> list[Any]:
        """Decode the same part of many samples: what `decoder_for(part)` gives for each, at a lower price.

        Args:
            part: Name of the part.
            column: Its bytes, one value a sample.
            groups: Places of `column`, together all of them in order, that will probably be stacked; images of a group
                come as the rows of one array.

        Raises:
            Exception: A value does not decode; which one, and what is wrong with it, `decoder_for(part)` says.
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
        """Decode one file by its whole name, `folder/key.part`; a name without a part stays bytes.

        Raises:
            DecodingError: The bytes do not decode.
            UntrustedCodeError: The file is a pickle or torch file, and those are not allowed.
            MissingPackageError: Decoding takes a package that is not installed.
        """
        key, _, part = fname.rpartition("/")[2].partition(".")
        codec = self.decoder_for(part if key and part else "")
        return raw if codec is None else codec(raw)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Decode a dictionary of parts. Entries whose names begin with `__` are no parts and stay.

        Raises:
            DecodingError: A part does not decode.
            UntrustedCodeError: A part is a pickle or torch file, and those are not allowed.
            MissingPackageError: Decoding takes a package that is not installed.
        """
        decoded: dict[str, Any] = {}
        for part, data in sample.items():
            codec = None if part.startswith("__") else self.decoder_for(part)
            decoded[part] = data if codec is None else codec(data)
        return decoded

    def config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
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
        basic: list[Codec | None] = []  # resolved only if needed: it may refuse the part

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
        """What an image in one of the `torch…` modes becomes: the array itself; a tensor in the torch adapter."""
        return planes

    def _av_codec(self, part: str) -> Codec:
        """The function that decodes a video or audio file. Raises MissingPackageError."""
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
        """The function that decodes what `torch.save` wrote. Raises UntrustedCodeError and MissingPackageError."""
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
    """Decodes parts that are called as columns of a table: what they are is known, whatever their names.

    Args:
        decoder: Decodes them, by the ends of names.
        endings: Which end stands for a column; a list's entries, `name.0`, are as their column.
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
    """Say once in a program what images are by default, if it uses JAX. See decisions/image-layout.md."""
    _logger.info(
        "images are decoded as in Energon: float32 in 0..1, channels first. With JAX, uint8 with channels last is "
        "usual and cheaper: decoder = SampleDecoder(image_decode='rgb8') in your task encoder. image_decode='torchrgb' "
        "keeps the default without this message"
    )


def _guarded(part: str, decode: Codec) -> Codec:
    """`decode`, with its errors as `DecodingError` naming the part, but those that are not of the data."""

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
        raise ConfigError(f"{option}={value!r}: must be at least 1, or None for no bound")


def _checked_size(size: Any) -> ImageSize:
    """An `image_size`, of which configurations in files give lists."""
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
        raise ConfigError(f"{option}={value!r} is not one of {', '.join(choices)}{hint}")


DEFAULT_DECODER = SampleDecoder()
"""That of task encoders that choose none."""
