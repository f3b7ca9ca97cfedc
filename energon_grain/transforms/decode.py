"""From the bytes of a part to its value, by the end of the part's name."""

from __future__ import annotations

import difflib
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import numpy.typing as npt

from energon_grain.errors import ConfigError, DecodingError
from energon_grain.transforms.array import decode_npy, decode_npz, decode_tenbin
from energon_grain.transforms.content import media_extension
from energon_grain.transforms.image import (
    IMAGE_EXTENSIONS,
    IMAGE_MODES,
    MAX_PIXELS,
    ImageDecode,
    decode_rows,
    image_codec,
)
from energon_grain.transforms.media import AV_EXTENSIONS, AVDecode, decode_lazily, decode_pyav, require_av
from energon_grain.transforms.serialised import (
    CBOR_EXTENSIONS,
    MSGPACK_EXTENSIONS,
    PICKLE_EXTENSIONS,
    TORCH_EXTENSIONS,
    cbor_codec,
    msgpack_codec,
    pickle_codec,
    torch_codec,
)
from energon_grain.transforms.text import (
    INTEGER_EXTENSIONS,
    JSON_EXTENSIONS,
    TEXT_EXTENSIONS,
    WHOLE_COLUMN,
    integer_codec,
    json_codec,
    text_codec,
)

Buffer = bytes | memoryview
Codec = Callable[[Buffer], Any]
MAX_PART_BYTES = 1 << 31


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

    def __init__(
        self,
        *,
        image_decode: ImageDecode = "torchrgb",
        av_decode: AVDecode = "AVDecoder",
        video_decode_audio: bool = False,
        guess_content: bool = False,
        allow_pickle: bool = False,
        max_part_bytes: int | None = MAX_PART_BYTES,
        max_pixels: int | None = MAX_PIXELS,
    ) -> None:
        """Set what parts decode to.

        Args:
            image_decode: `l8`, `rgb8`, `rgba8`: uint8 (H, W) or (H, W, C). `l`, `rgb`, `rgba`: the same as float32 in
                0..1. With `torch` in front: (H, W) or (C, H, W), `torch` alone for `torchrgb`; numpy arrays here,
                tensors in the torch adapter. `pill`, `pilrgb`, `pilrgba`, `pil` for `pilrgb`: Pillow images.
            av_decode: `AVDecoder`: an object that decodes when asked. `pyav`: an opened PyAV container.
            video_decode_audio: Whether the audio of videos is decoded too.
            guess_content: Tell images, video and audio from their first bytes rather than from the part's name.
            allow_pickle: Decode pickles and torch files. They can run any code: only for data that you trust.
            max_part_bytes: To how many bytes a part may be unpacked (`.gz`, `npz`, archives of torch, audio); None: any
                number. 2 GiB by default.
            max_pixels: How many pixels an image or a frame may have; None: any number, up to Pillow's own
                `Image.MAX_IMAGE_PIXELS`. The scans of a JPEG, and the frames of a video, may have 16 times as many
                together. 2^27 by default, 134 million.

                A part that announces more does not decode, before anything is allocated; the error policy decides
                about its sample, as about any that is broken.

        Raises:
            ConfigError: A value is not among those listed, a bound is below 1, or an option needs a package that is not
                installed.
        """
        _check_choice("image_decode", image_decode, tuple(IMAGE_MODES))
        _check_choice("av_decode", av_decode, get_args(AVDecode))
        _check_bound("max_part_bytes", max_part_bytes)
        _check_bound("max_pixels", max_pixels)
        self._config: dict[str, Any] = {
            "image_decode": image_decode,
            "av_decode": av_decode,
            "video_decode_audio": video_decode_audio,
            "guess_content": guess_content,
            "allow_pickle": allow_pickle,
            "max_part_bytes": max_part_bytes,
            "max_pixels": max_pixels,
        }
        self._codecs: dict[str, Codec | None] = {}
        mode = IMAGE_MODES[image_decode]
        self._pixels = image_codec(image_decode, max_pixels)
        self._image_value = self._planes_value if mode.form == "planes" else _unchanged
        self._rows_pay = mode.form != "pil" and not guess_content

    def decoder_for(self, part: str) -> Codec | None:
        """The function that decodes the bytes (or a view of the bytes) of a part, None where they stay bytes.

        The function raises `DecodingError`, naming the part. Resolved once a name, then remembered.

        Raises:
            UntrustedCodeError: The part is a pickle or torch file, and those are not allowed.
            ConfigError: Decoding takes a package that is not installed.
        """
        try:
            return self._codecs[part]
        except KeyError:
            codec = self._codecs[part] = self._resolve(part)
            return codec

    def decode_column(self, part: str, column: list[bytes], groups: Sequence[range] = ()) -> list[Any]:
        """Decode the same part of many samples: what `decoder_for(part)` gives for each, at a lower price.

        Args:
            part: Name of the part.
            column: Its bytes, one value a sample.
            groups: Places of `column`, together all of them in order, that will probably be stacked; images of a group
                come as the rows of one array.

        Raises:
            Exception: A value does not decode; which one, and what is wrong with it, `decoder_for(part)` tells.
        """
        codec = self.decoder_for(part)
        if codec is None:
            return list(column)
        if type(self).decoder_for is SampleDecoder.decoder_for:
            ending = part.rpartition(".")[2]
            codec = WHOLE_COLUMN.get(ending, codec)
            if groups and self._rows_pay and ending.lower() in IMAGE_EXTENSIONS:
                return decode_rows(self._pixels, column, groups, self._image_value)
        return list(map(codec, column))

    def decode(self, fname: str, raw: Buffer) -> Any:
        """Decode one file by its whole name, `folder/key.part`; a name without a part stays bytes.

        Raises:
            DecodingError: The bytes do not decode.
            UntrustedCodeError: The file is a pickle or torch file, and those are not allowed.
            ConfigError: Decoding takes a package that is not installed.
        """
        key, _, part = fname.rpartition("/")[2].partition(".")
        codec = self.decoder_for(part if key and part else "")
        return raw if codec is None else codec(raw)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Decode a dictionary of parts. Entries whose names begin with `__` are no parts and stay.

        Raises:
            DecodingError: A part does not decode.
            UntrustedCodeError: A part is a pickle or torch file, and those are not allowed.
            ConfigError: Decoding takes a package that is not installed.
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
            return _guarded(part, lambda data: self._image_value(self._pixels(data)))
        return _guarded(part, self._av_codec(part)) if extension in AV_EXTENSIONS else None

    def _planes_value(self, planes: npt.NDArray[Any]) -> Any:
        """What an image in one of the `torch…` modes becomes: the array itself; a tensor in the torch adapter."""
        return planes

    def _av_codec(self, part: str) -> Codec:
        """The function that decodes a video or audio file.

        Raises:
            ConfigError: Decoding it takes a package that is not installed, or gives tensors.
        """
        if self._config["av_decode"] == "AVDecoder":
            return decode_lazily
        if self._config["av_decode"] == "torch":
            raise ConfigError(
                f"part {part!r}: av_decode='torch' gives tensors; take SampleDecoder from energon_grain_torch, or use "
                f"'AVDecoder' or 'pyav'"
            )
        require_av()
        return decode_pyav

    def _torch_codec(self, part: str) -> Codec:
        """The function that decodes what `torch.save` wrote.

        Raises:
            UntrustedCodeError: It may run code, and that is not allowed.
            ConfigError: The package `torch` is not installed.
        """
        return torch_codec(part, allowed=self._config["allow_pickle"], max_bytes=self._config["max_part_bytes"])

    def _basic(self, part: str, extension: str) -> Codec | None:
        allowed: bool = self._config["allow_pickle"]
        if extension in TEXT_EXTENSIONS:
            return text_codec(part)
        if extension in JSON_EXTENSIONS:
            return json_codec(part)
        if extension in INTEGER_EXTENSIONS:
            return integer_codec(part)
        if extension == "npy":
            return _guarded(part, partial(decode_npy, allow_pickle=allowed))
        if extension == "npz":
            most: int | None = self._config["max_part_bytes"]
            return _guarded(part, partial(decode_npz, allow_pickle=allowed, max_bytes=most))
        if extension in ("ten", "tb"):
            return _guarded(part, decode_tenbin)
        if extension in MSGPACK_EXTENSIONS:
            return _guarded(part, msgpack_codec(part))
        if extension in CBOR_EXTENSIONS:
            return _guarded(part, cbor_codec(part))
        if extension in PICKLE_EXTENSIONS:
            return _guarded(part, pickle_codec(part, allowed=allowed))
        if extension in TORCH_EXTENSIONS:
            return _guarded(part, self._torch_codec(part))
        return None


def _guarded(part: str, decode: Codec) -> Codec:
    """`decode`, with its errors as `DecodingError` naming the part; want of memory is no error of the data."""

    def guarded(data: Buffer) -> Any:
        try:
            return decode(data)
        except (MemoryError, ImportError, DecodingError):
            raise
        except Exception as error:
            raise DecodingError(f"part {part!r}: {type(error).__name__}: {error}") from error

    return guarded


def _unchanged(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return value


def gunzip(data: Buffer, max_bytes: int | None) -> bytes:
    """What gzip packed, in one member or several.

    Raises:
        ValueError: It ends early, or unpacks to more than `max_bytes`.
        zlib.error: It is damaged.
    """
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


_GZIP = 16 + zlib.MAX_WBITS
_GZIP_BYTES = 1 << 18  # unpacked at once


def _check_bound(option: str, value: object) -> None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ConfigError(f"{option}={value!r}: must be at least 1, or None for no bound")


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        close = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"{option}={value!r} is not one of {', '.join(choices)}{hint}")
