# SPDX-License-Identifier: Apache-2.0
"""From a value to the bytes of a part, by the end of the part's name: what `SampleDecoder` reads back."""

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
    """The bytes of a part, by the end of its name. Bytes stay as they are, whatever the part is called.

    | end of the name | takes |
    |---|---|
    | `txt` `text` `transcript` | text, as UTF-8; numbers |
    | `cls` `cls2` `index` `inx` `id` | integers |
    | `json` `jsn` | whatever JSON can say; arrays and numbers of numpy in it as lists and numbers |
    | image formats | images of Pillow, and uint8 arrays (h, w), (h, w, 3) or (h, w, 4); JPEG with quality 95 |
    | `npy`, `npz` | an array, a mapping from names to arrays; not of objects |
    | `mp` `msg`, `cbor` | what these can hold; `cbor` with `energon-grain[codecs]` installed |
    | any other | text, as UTF-8 |

    The same value gives the same bytes.

    Raises ConfigError if the value is none that goes under such a name; says which do.
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
        raise ConfigError(f"part {part!r}: cannot hold this {type(value).__name__}: {error}") from error
    if found is None:
        raise ConfigError(
            f"part {part!r}: cannot hold a value of type {type(value).__name__}; {_TAKES.get(encode, _TEXT_ONLY)}. "
            f"Encode it yourself and give bytes, or call the part {part}.{ending_of(value)}"
        )
    return found


def ending_of(value: Any) -> str:
    """The end of a name under which `encode_part` takes a value, and a decoder gives it back.

    Bytes are looked at: `jpg`, `png`, `mp4` … where they begin like that, else `bin`.
    """
    if isinstance(value, _BUFFERS):
        return media_extension(bytes(value)) or "bin"
    if isinstance(value, str):
        return "txt"
    if isinstance(value, np.ndarray):
        return "npy"
    return "png" if _is_image(value) else "json"


def has_known_ending(part: str) -> bool:
    """Whether the end of a name says how the part is decoded."""
    return part.rpartition(".")[2].lower() in _ENCODERS


def ends_alike(part: str, ending: str) -> bool:
    """Whether a part is decoded by the end of its name as by another one."""
    own = part.rpartition(".")[2].lower()
    return own == ending or (own in _ENCODERS and _ENCODERS[own] is _ENCODERS.get(ending))


def _is_image(value: Any) -> bool:
    return hasattr(value, "save") and hasattr(value, "getbands")  # of Pillow, which need not be loaded to tell


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
        raise ValueError(f"{odd[0]!r} holds objects")
    buffer = io.BytesIO()
    np.savez(buffer, **cast("Any", arrays))
    return buffer.getvalue()


def _image(value: Any, extension: str) -> bytes | None:
    from PIL import Image  # encoding text needs none

    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or value.ndim not in (2, 3) or (value.ndim == 3 and value.shape[2] not in (1, 3, 4)):
            raise ValueError(f"an image is uint8, (h, w), (h, w, 3) or (h, w, 4), not {value.dtype} {value.shape}")
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
    """Formats that only their own programs write, and pickles, which nobody should have to load."""


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
_TEXT_ONLY = "under a name with this end it takes text or bytes"
_TAKES: dict[Callable[[Any, str], bytes | None], str] = {
    _image: "it takes an image of Pillow, a uint8 array, or the bytes of a file",
    _text_or_number: "it takes text or a number",
    _integer: "it takes an integer",
    _npy: "it takes an array",
    _npz: "it takes a mapping from names to arrays",
    _nothing: "it takes the bytes of a file",
}
