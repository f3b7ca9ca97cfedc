# SPDX-License-Identifier: Apache-2.0
"""Forms: the types that documents are read into, each described once, before any thread reads.

msgspec builds its description of a type when it first meets it, without a lock: it stores what is half built and runs
Python code meanwhile, so a second thread that meets the same type then follows a null pointer
(docs/decisions/forms.md). A `Form` has all descriptions built, those of the types inside too, under one lock. Each
stands in a module beside its type, and nothing else gives a type to msgspec.

JSON may hold names that are not UTF-8, as tar members and files can have. Python decodes such names with surrogates
for the odd bytes; JSON has an escape for them, but msgspec (fast, typed) neither writes nor reads it; nor NaN and
Infinity, which attributes of arrays often are. So the rare document that needs it goes through `json`, all others
through msgspec.

What people write by hand, YAML, is read by `Form.read`, whose errors say where in the document a mistake is and which
key was probably meant: `meta.yaml: $.splits.train.blend[2].wieght: there is no such key. Did you mean `weight`?`
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, TypeVar

import msgspec

from energon_grain.errors import ConfigError, EnergonGrainError

T = TypeVar("T")
_FOR_PYTHON = (b"\\ud", b"\\uD", b"NaN", b"Infinity")
_DESCRIBING = Lock()
_PLACE = "place"
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_EXPECTED = re.compile(r"Expected `([^`]+)`(?:, got .*|(.*))")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]+)`")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")


class Form(Generic[T]):
    """What a document must be to be read: a value of a type, checked down to its leaves.

    Args:
        of: The type. To be made at import, in the module that defines it: types inside it must be known by then.
        convert: Makes a value of a type that msgspec does not know, for `from_value` and `read`: takes the type and
            what is written. It raises a ValueError, without the place.

    Attributes:
        of: The type.
        keys: Of a struct, the keys that it is written with.
        from_msgpack: Give the value that msgpack holds. Raises `msgspec.MsgspecError`.
    """

    def __init__(self, of: type[T], convert: Callable[[Any, Any], Any] | None = None) -> None:
        self.of = of
        self._convert = convert
        with _DESCRIBING:
            fields = msgspec.structs.fields(of) if hasattr(of, "__struct_fields__") else ()  # type: ignore[arg-type]
            required_first = sorted(fields, key=lambda field: not field.required)
            self._fields = {field.encode_name: field for field in required_first if field.name != _PLACE}
            self.keys = tuple(self._fields)
            self._decode_json = msgspec.json.Decoder(of).decode
            self.from_msgpack: Callable[[bytes | memoryview], T] = msgspec.msgpack.Decoder(of).decode

    def from_json(self, data: bytes) -> T:
        """Return the value that JSON holds.

        Raises msgspec.MsgspecError if it is no JSON, holds bytes that are not UTF-8, or something else.
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

        Raises msgspec.ValidationError if they hold something else.
        """
        return msgspec.convert(value, self.of, dec_hook=self._convert)

    def read(self, value: Any, place: Place, *, extra: Collection[str] = ()) -> T:
        """Return the struct that a mapping in a document holds. A field `place` of it is set to `place`.

        Args:
            value: The mapping.
            place: Where it is.
            extra: Further keys, which belong to whatever holds the mapping; they are passed over.

        Raises:
            ConfigError: A key is unknown or missing, or has a value of another kind; says where.
        """
        mapping = as_mapping(value, place, f"a mapping with {', '.join(self.keys)}")
        self._check_keys(mapping, place, extra)
        own = {key: mapping[key] for key in self.keys if key in mapping}
        try:
            made = self.from_value(own)
        except msgspec.ValidationError as error:
            raise self._located(error, own, place) from error
        if hasattr(made, _PLACE):
            msgspec.structs.force_setattr(made, _PLACE, place)  # type: ignore[arg-type]
        return made

    def _check_keys(self, mapping: Mapping[str, Any], place: Place, extra: Collection[str]) -> None:
        for key in mapping:
            if key not in self._fields and key not in extra:
                raise unknown(place, key, [*self.keys, *extra])
        for key, field in self._fields.items():
            if field.required and key not in mapping:
                raise wrong(place, f"the key `{key}` is missing{self._meaning(key)}")

    def _meaning(self, key: str) -> str:
        """What a key means, to end a message with."""
        said = [each.description for each in getattr(self._fields[key].type, "__metadata__", ())]
        return "".join(f". {each.removesuffix('.')}" for each in said if each)

    def _located(self, error: msgspec.ValidationError, value: Any, place: Place) -> ConfigError:
        """The error with its place, which msgspec gives at the end, in words, and with the value that it met."""
        message, of_key, path = _parted(str(error))
        steps = [name or int(number) for name, number in _STEP.findall(path.partition("[...]")[0])]
        for step in steps:
            value = value[step]
        found = _EXPECTED.fullmatch(message)
        if found is not None:  # else it is the converter's own, which names the value itself
            # msgspec does not say which of the keys or values of a mapping it is.
            each = "key" if of_key else "value" if "[...]" in path else ""
            message = _in_words(found, value, each) + (self._meaning(str(steps[0])) if steps else "")
        elif unknown_key := _UNKNOWN.fullmatch(message):
            return wrong(place.at(*steps, unknown_key[1]), "there is no such key")
        elif missing := _MISSING.fullmatch(message):
            message = f"the key `{missing[1]}` is missing"
        return wrong(place.at(*steps), message)

    def schema(self, kinds: Callable[[Any], dict[str, Any]] | None = None) -> dict[str, Any]:
        """Return the JSON Schema (draft 7) of a struct, as files hold it.

        Args:
            kinds: The schema of a type that msgspec does not know.
        """
        found = msgspec.json.schema_components([self.of], schema_hook=kinds)[1][self.of.__name__]
        properties = {
            key: {name: value for name, value in found["properties"][key].items() if name != "default"}
            for key in self.keys
        }
        del found["title"]
        return {**found, "description": found["description"].split("\n")[0], "properties": properties}


_WORDS = {
    "str": "text",
    "object": "a mapping",
    "array": "a list",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}
"""What people call the kinds of values that msgspec names."""


def _parted(text: str) -> tuple[str, str, str]:
    """What msgspec says, what is behind "at" where it speaks of a key, and the path, without its `$`."""
    message, at, path = text.rpartition(" `$")
    if not at:
        return path, "", ""
    message, _, of_key = message.rpartition(" - at")
    return message, of_key, path


def _in_words(found: re.Match[str], value: Any, each: str) -> str:
    """What msgspec says that a value should be; `each`: what of a mapping it is one of."""
    kinds = [_WORDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
    what = f"{' or '.join(kinds)}{found[2] or ''}"
    return f"{what} is expected for each {each}" if each else expected(what, value)


def encode_json(value: Any) -> bytes:
    """Return `value` as compact JSON. Equal values give equal bytes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a document something is, for messages: `meta.yaml: $.splits.train.blend[2].weight`.

    Attributes:
        document: The file, as the program or the file that refers to it gives it; for what was made in Python, the
            name of the class.
        steps: Keys and list positions from the top of the document.
    """

    document: str
    steps: tuple[str | int, ...] = ()

    def at(self, *steps: str | int) -> Place:
        """The place further down."""
        return Place(self.document, self.steps + steps)

    def __str__(self) -> str:
        return f"{self.document}: $" + "".join(map(_step, self.steps))


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.replace("-", "_").isidentifier() else f"[{step!r}]"


def wrong(place: Place, message: str) -> ConfigError:
    """Make the error that says what is wrong at a place."""
    return ConfigError(f"{place}: {message}")


def expected(what: str, value: Any) -> str:
    """Say that something else is at a place than what is expected there."""
    if what.startswith("text") and isinstance(value, int | float) and not isinstance(value, bool):
        what = "text in quotes"
    return f"{what} is expected here, not {describe(value)}"


def unknown(place: Place, key: str, known: Collection[str]) -> ConfigError:
    """Make the error for a key that has no meaning at a place, with the nearest one that has."""
    close = difflib.get_close_matches(key, known, n=1)
    advice = f"Did you mean `{close[0]}`?" if close else f"Known here: {', '.join(known) or 'none'}"
    return wrong(place.at(key), f"there is no such key. {advice}")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A sentence with the nearest of some names, to end a message with; empty where none is near."""
    close = difflib.get_close_matches(name, known, n=1)
    return f". Did you mean {close[0]!r}?" if close else ""


def as_mapping(value: Any, place: Place, what: str) -> Mapping[str, Any]:
    """Check that a value is a mapping with text as keys. Raises ConfigError if it is not."""
    if not isinstance(value, Mapping):
        raise wrong(place, expected(what, value))
    for key in value:
        if not isinstance(key, str):
            raise wrong(place, f"the key {key!r} must be text")
    return value


@contextlib.contextmanager
def asked_at(place: Place) -> Generator[None]:
    """Let errors from inside begin with the place in a document that asked for what failed, unless they do.

    What the program itself gave, a dataset by its path or an object made in Python, has no place.
    """
    try:
        yield
    except EnergonGrainError as error:
        if place.steps and not str(error).startswith(f"{place.document}: $"):
            raise type(error)(f"{place}: {error}") from error
        raise


def describe(value: Any) -> str:
    """Name a value as its author would: `the text 'abc'`, `nothing`, `a list`."""
    if value is None:
        return "nothing (an empty value, or null)"
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if isinstance(value, str):
        return f"the text {value!r}"
    if isinstance(value, int | float):
        return f"the number {value!r}"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    return f"{type(value).__name__} {value!r}"
