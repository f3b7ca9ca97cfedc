# SPDX-License-Identifier: Apache-2.0
"""Encode a value as the bytes of a part, by the extension of the part's name; `SampleDecoder` decodes it again."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
import numpy as np

from energon_grain.errors import ConfigError
from energon_grain.extras import needed_for
from energon_grain.transforms.decode import JSON_EXTENSIONS, TEXT_EXTENSIONS
from energon_grain.transforms.image import IMAGE_EXTENSIONS
from energon_grain.transforms.media_types import media_extension

_JPEG_QUALITY = 95
_BUFFERS = (bytes, bytearray, memoryview)


def encode_part(part: str, value: Any) -> bytes:
    """Encode a value as the bytes of a part, by the extension of its name. Bytes are returned unchanged for any name.

    | extension | accepted values |
    |---|---|
    | `txt` `text` `transcript` | text, as UTF-8; numbers |
    | `cls` `cls2` `index` `inx` `id` | integers |
    | `json` `jsn` | all JSON values; NumPy arrays and numbers in them as lists and numbers |
    | image formats | Pillow images, and uint8 arrays (h, w), (h, w, 3) or (h, w, 4); JPEG with quality 95 |
    | `npy`, `npz` | an array, a mapping from names to arrays; no object arrays |
    | `mp` `msg`, `cbor` | values of these formats; `cbor` needs `energon-grain[codecs]` |
    | any other | text, as UTF-8 |

    The same value always gives the same bytes.

    Raises ConfigError if the extension does not accept the value; the message says what it accepts.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, _BUFFERS):
        return bytes(value)
    extension = part.rpartition(".")[2].lower()
    encode = _ENCODERS.get(extension, _text)
    try:
        found = encode(value, extension)
    except (TypeError, ValueError, OverflowError, OSError, RecursionError, KeyError) as error:
        raise ConfigError(f"part {part!r}: cannot encode this {type(value).__name__}: {error}") from error
    if found is None:
        raise ConfigError(
            f"part {part!r}: cannot encode a value of type {type(value).__name__}; {_TAKES.get(encode, _TEXT_ONLY)}. "
            f"Pass the encoded bytes, or call the part {part}.{extension_for(value)}"
        )
    return found


def extension_for(value: Any) -> str:
    """The extension with which `encode_part` accepts a value and a decoder returns it.

    Bytes are recognised by their first bytes: `jpg`, `png`, `mp4` …, else `bin`.
    """
    if isinstance(value, _BUFFERS):
        return media_extension(bytes(value)) or "bin"
    if isinstance(value, str):
        return "txt"
    if isinstance(value, np.ndarray):
        return "npy"
    return "png" if _is_image(value) else "json"


def has_known_extension(part: str) -> bool:
    """Whether the extension of a name determines how the part is decoded."""
    return part.rpartition(".")[2].lower() in _ENCODERS


def has_same_encoder(part: str, ending: str) -> bool:
    """Whether a part is decoded in the same way as one with this extension."""
    own = part.rpartition(".")[2].lower()
    return own == ending or (own in _ENCODERS and _ENCODERS[own] is _ENCODERS.get(ending))


def _is_image(value: Any) -> bool:
    return hasattr(value, "save") and hasattr(value, "getbands")  # a Pillow image, without importing Pillow


def _text(value: Any, _: str) -> bytes | None:
    return value.encode() if isinstance(value, str) else None


def _text_or_number(value: Any, extension: str) -> bytes | None:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return str(value).encode() if is_number else _text(value, extension)


def _integer(value: Any, _: str) -> bytes | None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return str(int(value)).encode() if whole else None


def _json(value: Any, _: str) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return cast("Any", value).tolist()
    raise TypeError(f"JSON has no {type(value).__name__}")


def _npy(value: Any, _: str) -> bytes | None:
    if not isinstance(value, np.ndarray | np.generic):
        return None
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=False)
    return buffer.getvalue()


def _npz(value: Any, _: str) -> bytes | None:
    if not isinstance(value, Mapping):
        return None
    arrays = {str(name): np.asarray(each) for name, each in cast("Mapping[str, Any]", value).items()}
    odd = [name for name, each in arrays.items() if each.dtype.hasobject]
    if odd:
        raise ValueError(f"{odd[0]!r} is an array of Python objects, which cannot be stored")
    buffer = io.BytesIO()
    np.savez(buffer, **cast("Any", arrays))
    return buffer.getvalue()


def _image(value: Any, extension: str) -> bytes | None:
    from PIL import Image  # not needed for text

    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or value.ndim not in (2, 3) or (value.ndim == 3 and value.shape[2] not in (1, 3, 4)):
            raise ValueError(f"expected a uint8 image (h, w), (h, w, 3) or (h, w, 4), got {value.dtype} {value.shape}")
        value = Image.fromarray(value[:, :, 0] if value.shape[2:] == (1,) else value)
    elif not _is_image(value):
        return None
    kind = Image.registered_extensions()[f".{extension}"]
    buffer = io.BytesIO()
    value.save(buffer, kind, **({"quality": _JPEG_QUALITY} if kind == "JPEG" else {}))
    return buffer.getvalue()


def _msgpack(value: Any, _: str) -> bytes:
    return msgspec.msgpack.encode(value)


def _cbor(value: Any, _: str) -> bytes:
    with needed_for("encoding CBOR"):
        import cbor2

    return cbor2.dumps(value)


def _nothing(_: Any, __: str) -> None:
    """Formats that are not encoded: those written only by their own programs, and pickles, which are unsafe to load."""


_ENCODERS: dict[str, Callable[[Any, str], bytes | None]] = {
    **dict.fromkeys(IMAGE_EXTENSIONS, _image),
    **dict.fromkeys(TEXT_EXTENSIONS, _text_or_number),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), _integer),
    **dict.fromkeys(JSON_EXTENSIONS, _json),
    "npy": _npy,
    "npz": _npz,
    **dict.fromkeys(("mp", "msg"), _msgpack),
    "cbor": _cbor,
    **dict.fromkeys(("ten", "tb", "pkl", "pickle", "pyd", "pth", "mp4", "mov", "avi", "mkv", "webm", "flv"), _nothing),
    **dict.fromkeys(("mp3", "flac", "wav", "gz"), _nothing),
}
_TEXT_ONLY = "this extension accepts text or bytes"
_TAKES: dict[Callable[[Any, str], bytes | None], str] = {
    _image: "this extension accepts a Pillow image, a uint8 array, or the bytes of a file",
    _text_or_number: "this extension accepts text or a number",
    _integer: "this extension accepts an integer",
    _npy: "this extension accepts an array",
    _npz: "this extension accepts a mapping from names to arrays",
    _nothing: "this extension accepts the bytes of a file",
}
