# SPDX-License-Identifier: Apache-2.0
"""Forms: the types that documents are parsed into. Each is described to msgspec once, before any thread reads.

msgspec describes a type on first use, without a lock. It stores a half-built description and runs Python code
meanwhile, so a second thread that uses the same type follows a null pointer (msgspec 0.22.0). A `Form` builds the
descriptions of a type and of the types inside it under one lock, in 0.1 ms at import. Each form is in the module of
its type, and no other code passes a type to msgspec.

JSON may hold names that are not UTF-8, because tar members and files can have such names. Python decodes them with
surrogates for the invalid bytes. JSON has an escape for surrogates, but msgspec (fast, typed) neither writes nor reads
it. The same is true for NaN and Infinity, which attributes of arrays often hold. Documents that need either go through
`json`, all others through msgspec.

`Form.read` parses hand-written YAML. Its errors show the position in the document and suggest the nearest known key:
`meta.yaml: $.splits.train.blend[2].wieght: there is no such key. Did you mean `weight`?`
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
    """The expected content of a document: a value of a type, checked down to its leaves.

    Args:
        of: The type. Create the form at import, in the module that defines the type, after the types inside it.
        convert: Converts types unknown to msgspec: takes the type and the written value; raises ValueError, no place.

    Attributes:
        of: The type.
        keys: For a struct, the keys in a document.
        from_msgpack: Decodes msgpack. Raises `msgspec.MsgspecError`.
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
        """Decode JSON.

        Raises msgspec.MsgspecError if the data is not JSON, is not UTF-8, or does not fit the type.
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
        """Convert dictionaries, lists, texts and numbers to the type.

        Raises msgspec.ValidationError if they do not fit the type.
        """
        return msgspec.convert(value, self.of, dec_hook=self._convert)

    def read(self, value: Any, place: Place, *, extra: Collection[str] = ()) -> T:
        """Convert a mapping in a document to the struct. A field `place` of the struct is set to `place`.

        Args:
            value: The mapping.
            place: The position of the mapping.
            extra: Further keys, which belong to the parent of the mapping and are ignored.

        Raises:
            ConfigError: A key is unknown or missing, or has a value of another type; the message names the position.
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
        """Return the description of a key, as the end of a message."""
        said = [each.description for each in getattr(self._fields[key].type, "__metadata__", ())]
        return "".join(f". {each.removesuffix('.')}" for each in said if each)

    def _located(self, error: msgspec.ValidationError, value: Any, place: Place) -> ConfigError:
        """Return the error with its place. msgspec puts the place at the end, in words; the message adds the value."""
        message, of_key, path = _split_message(str(error))
        steps = [name or int(number) for name, number in _STEP.findall(path.partition("[...]")[0])]
        for step in steps:
            value = value[step]
        found = _EXPECTED.fullmatch(message)
        if found is not None:  # otherwise it comes from the converter, and names the value itself
            # msgspec does not report which key or value of a mapping is wrong.
            each = "key" if of_key else "value" if "[...]" in path else ""
            message = _in_words(found, value, each) + (self._meaning(str(steps[0])) if steps else "")
        elif unknown_key := _UNKNOWN.fullmatch(message):
            return wrong(place.at(*steps, unknown_key[1]), "there is no such key")
        elif missing := _MISSING.fullmatch(message):
            message = f"the key `{missing[1]}` is missing"
        return wrong(place.at(*steps), message)

    def schema(self, kinds: Callable[[Any], dict[str, Any]] | None = None) -> dict[str, Any]:
        """Return the JSON Schema (draft 7) of a struct as it is written in files.

        Args:
            kinds: Returns the schema of a type that msgspec does not know.
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
"""Plain names for the value types that msgspec names."""


def _split_message(text: str) -> tuple[str, str, str]:
    """Split an error of msgspec: the message, the text after "at" if it is about a key, and the path without `$`."""
    message, at, path = text.rpartition(" `$")
    if not at:
        return path, "", ""
    message, _, of_key = message.rpartition(" - at")
    return message, of_key, path


def _in_words(found: re.Match[str], value: Any, each: str) -> str:
    """Return the expectation of msgspec in plain words; `each` is "key" or "value" for one of a mapping."""
    kinds = [_WORDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
    what = f"{' or '.join(kinds)}{found[2] or ''}"
    return f"expected {what} for each {each}" if each else expected(what, value)


def encode_json(value: Any) -> bytes:
    """Encode `value` as compact JSON. Equal values have equal bytes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a document, for messages: `meta.yaml: $.splits.train.blend[2].weight`.

    Attributes:
        document: The file, as written by the program or by the file that refers to it; for an object made in Python,
            the name of its class.
        steps: Keys and list positions from the top of the document.
    """

    document: str
    steps: tuple[str | int, ...] = ()

    def at(self, *steps: str | int) -> Place:
        """Return the position below this one."""
        return Place(self.document, self.steps + steps)

    def __str__(self) -> str:
        return f"{self.document}: $" + "".join(map(_step, self.steps))


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.replace("-", "_").isidentifier() else f"[{step!r}]"


def wrong(place: Place, message: str) -> ConfigError:
    """Return the error for a wrong value at a place."""
    return ConfigError(f"{place}: {message}")


def expected(what: str, value: Any) -> str:
    """Return a message that contrasts the expected and the actual value."""
    if what.startswith("text") and isinstance(value, int | float) and not isinstance(value, bool):
        what = "text in quotes"
    return f"expected {what}, got {describe(value)}"


def unknown(place: Place, key: str, known: Collection[str]) -> ConfigError:
    """Return the error for an unknown key, with the nearest known key."""
    close = difflib.get_close_matches(key, known, n=1)
    advice = f"Did you mean `{close[0]}`?" if close else f"Known keys: {', '.join(known) or 'none'}"
    return wrong(place.at(key), f"there is no such key. {advice}")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a sentence that suggests the nearest known name, as the end of a message; empty if no name is near."""
    close = difflib.get_close_matches(name, known, n=1)
    return f". Did you mean {close[0]!r}?" if close else ""


def as_mapping(value: Any, place: Place, what: str) -> Mapping[str, Any]:
    """Return the value if it is a mapping with text keys. Raises ConfigError otherwise."""
    if not isinstance(value, Mapping):
        raise wrong(place, expected(what, value))
    for key in value:
        if not isinstance(key, str):
            raise wrong(place, f"the key {key!r} must be text")
    return value


@contextlib.contextmanager
def errors_at(place: Place) -> Generator[None]:
    """Prefix errors from inside with the place in the document that led to them, unless they already have one.

    Datasets that the program named itself, by a path or as an object, have no place.
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
