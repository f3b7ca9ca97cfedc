"""Where in a configuration something stands, for error messages: `meta.yaml: $.splits.train.blend[2].weight`."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from energon_grain.errors import ConfigError, EnergonGrainError


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a document.

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

    @property
    def path(self) -> str:
        """The place inside the document: `$.splits.train.blend[2]`."""
        return "$" + "".join(map(_step, self.steps))

    def __str__(self) -> str:
        return f"{self.document}: {self.path}"


def wrong(place: Place, message: str) -> ConfigError:
    """Make the error that says what is wrong at a place."""
    return ConfigError(f"{place}: {message}")


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


def wrong_type(place: Place, expected: str, value: Any) -> ConfigError:
    """Make the error for a value of another type than `expected`."""
    return wrong(place, f"{expected} is expected here, not {describe(value)}")


def unknown(place: Place, key: str, known: Collection[str], *, what: str = "key") -> ConfigError:
    """Make the error for a key that has no meaning at a place, with the nearest one that has."""
    close = difflib.get_close_matches(key, known, n=1)
    advice = f"Did you mean `{close[0]}`?" if close else f"Known here: {', '.join(known) or 'none'}"
    return wrong(place.at(key), f"there is no such {what}. {advice}")


def as_mapping(value: Any, place: Place, expected: str) -> Mapping[str, Any]:
    """Check that a value is a mapping with text as keys.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, Mapping):
        raise wrong_type(place, expected, value)
    for key in value:
        if not isinstance(key, str):
            raise wrong(place, f"the key {key!r} must be text")
    return value


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
        return "a list"
    return f"{type(value).__name__} {value!r}"


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.replace("-", "_").isidentifier() else f"[{step!r}]"
