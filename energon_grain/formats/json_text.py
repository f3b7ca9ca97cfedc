"""JSON that may hold names which are not UTF-8, as tar members and files can have.

Python decodes such names with surrogates for the odd bytes; JSON has an escape for them, but msgspec (fast, typed)
neither writes nor reads it; nor NaN and Infinity, which attributes of arrays often are. So the rare document that
needs it goes through `json`, all others through msgspec.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_FOR_PYTHON = (b"\\ud", b"\\uD", b"NaN", b"Infinity")


def encode_json(value: Any) -> bytes:
    """Return `value` as compact JSON. Equal values give equal bytes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


def decode_json(data: bytes, of: type[T]) -> T:
    """Return the value of type `of` that `data` holds.

    Raises:
        msgspec.MsgspecError: `data` is no JSON, holds bytes that are not UTF-8, or something else than an `of`.
    """
    try:
        return msgspec.json.decode(data, type=of)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"JSON must be UTF-8: {error}") from error
    except RecursionError as error:
        raise msgspec.DecodeError("JSON is nested too deeply") from error
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if not any(sign in data for sign in _FOR_PYTHON):
            raise
        try:
            plain = json.loads(data)
        except RecursionError as error:
            raise msgspec.DecodeError("JSON is nested too deeply") from error
        except ValueError as error:
            raise msgspec.DecodeError(f"JSON is malformed: {error}") from error
        return msgspec.convert(plain, type=of)
