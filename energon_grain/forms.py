"""Forms: the types that documents are read into, each described once, before any thread reads.

msgspec builds its description of a type when it first meets it, without a lock: it stores what is half built and runs
Python code meanwhile, so a second thread that meets the same type then follows a null pointer
(docs/decisions/forms.md). A `Form` has all descriptions built, those of the types inside too, under one lock. Each
stands in a module beside its type, and nothing else gives a type to msgspec.

JSON may hold names that are not UTF-8, as tar members and files can have. Python decodes such names with surrogates
for the odd bytes; JSON has an escape for them, but msgspec (fast, typed) neither writes nor reads it; nor NaN and
Infinity, which attributes of arrays often are. So the rare document that needs it goes through `json`, all others
through msgspec.
"""

from __future__ import annotations

import json
from threading import Lock
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")
_FOR_PYTHON = (b"\\ud", b"\\uD", b"NaN", b"Infinity")
_DESCRIBING = Lock()


class Form(Generic[T]):
    """What a document must be to be read: a value of a type, checked down to its leaves.

    Args:
        of: The type. To be made at import, in the module that defines it: types inside it must be known by then.

    Attributes:
        of: The type.
        from_msgpack: Give the value that msgpack holds. Raises `msgspec.MsgspecError`.
    """

    def __init__(self, of: type[T]) -> None:
        self.of = of
        with _DESCRIBING:
            self._decode_json = msgspec.json.Decoder(of).decode
            self.from_msgpack = msgspec.msgpack.Decoder(of).decode

    def from_json(self, data: bytes) -> T:
        """Return the value that JSON holds.

        Raises:
            msgspec.MsgspecError: It is no JSON, holds bytes that are not UTF-8, or something else.
        """
        try:
            return self._decode_json(data)
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
            return self.from_value(plain)

    def from_value(self, value: Any) -> T:
        """Return the value that dictionaries, lists, texts and numbers hold.

        Raises:
            msgspec.ValidationError: They hold something else.
        """
        return msgspec.convert(value, self.of)


def encode_json(value: Any) -> bytes:
    """Return `value` as compact JSON. Equal values give equal bytes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()
