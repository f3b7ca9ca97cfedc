"""Decoding text, numbers and JSON. These are most of all parts, so each is one call deep."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from energon_grain.errors import DecodingError

Buffer = bytes | memoryview

TEXT_EXTENSIONS = frozenset({"txt", "text", "transcript"})
INTEGER_EXTENSIONS = frozenset({"cls", "cls2", "index", "inx", "id"})
JSON_EXTENSIONS = frozenset({"json", "jsn"})

_decode_json = msgspec.json.Decoder().decode


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


WHOLE_COLUMN: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(TEXT_EXTENSIONS, bytes.decode),
    **dict.fromkeys(JSON_EXTENSIONS, _decode_json),
}
"""Functions in C that give what the codecs give for good `bytes`, for `map` over many values. Whatever they raise, the
codec decides what it means."""
