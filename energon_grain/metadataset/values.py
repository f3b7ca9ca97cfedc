"""Kinds of plain values: text, exact numbers, tags, choices."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from energon_grain.errors import ConfigError
from energon_grain.formats.yaml_dialect import WrittenFloat
from energon_grain.metadataset.place import Place, as_mapping, wrong, wrong_type
from energon_grain.metadataset.subset import Subset, subset_schema
from energon_grain.samplers.weights import exact
from energon_grain.storage.location import check_url


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is not empty."""

    def convert(self, value: Any, place: Place) -> str:
        """Check it."""
        if not isinstance(value, str):
            hint = "text in quotes" if isinstance(value, int | float) else "text"
            raise wrong_type(place, hint, value)
        if not value:
            raise wrong(place, "the text is empty")
        return value

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class PathText:
    """A path or URL as text; from Python, also a path object."""

    def convert(self, value: Any, place: Place) -> str:
        """Check it."""
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        text = Text().convert(value, place)
        try:
            return check_url(text)
        except ConfigError as error:
            raise wrong(place, str(error)) from None

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        return Text().schema()


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def convert(self, value: Any, place: Place) -> str:
        """Check it."""
        if value not in self.words:
            raise wrong_type(place, f"one of {', '.join(self.words)}", value)
        return value

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Amount:
    """An exact number, the fraction that its decimal text means: above 0, or at least 0 with `zero`."""

    what: str
    zero: bool = False

    def convert(self, value: Any, place: Place) -> Fraction:
        """Check it and make it a fraction."""
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
            raise wrong_type(place, f"a number ({self.what})", value)
        usable = isinstance(value, int | Fraction) or (math.isfinite(value) and abs(_exponent(value)) < 400)
        if not usable:
            raise wrong(place, f"{self.what} {_text(value)} is not a usable number")
        if value < 0:
            raise wrong(
                place, f"{self.what} {_text(value)} is negative; it must be {'at least' if self.zero else 'above'} 0"
            )
        try:
            number = exact(value.text if isinstance(value, WrittenFloat) else value)
        except ConfigError as error:
            raise wrong(place, str(error)) from None
        if not number and not self.zero:
            raise wrong(place, f"{self.what} 0: it must be above 0; leave the dataset out instead")
        return number

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        return {"type": "number", "minimum" if self.zero else "exclusiveMinimum": 0}


@dataclass(frozen=True, slots=True)
class Amounts:
    """A list of exact numbers of at least 0, not all of them 0."""

    what: str

    def convert(self, value: Any, place: Place) -> tuple[Fraction, ...]:
        """Check them and make them fractions."""
        if not isinstance(value, list | tuple):
            raise wrong_type(place, f"a list of numbers ({self.what})", value)
        one = Amount(self.what, zero=True)
        numbers = tuple(one.convert(item, place.at(number)) for number, item in enumerate(value))
        if not any(numbers):
            raise wrong(place, f"at least one {self.what} must be above 0")
        return numbers

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        return {"type": "array", "items": Amount(self.what, zero=True).schema(), "minItems": 1}


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number, at least `least`."""

    least: int = 0

    def convert(self, value: Any, place: Place) -> int:
        """Check it."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(place, "a whole number", value)
        if value < self.least:
            raise wrong(place, f"{value} must be at least {self.least}")
        return value

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        return {"type": "integer", "minimum": self.least}


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes over a dataset that are shuffled as one: 1 or more, -1 to draw with replacement, null for no shuffle."""

    def convert(self, value: Any, place: Place) -> int | None:
        """Check it."""
        if value is None or (value == -1 and not isinstance(value, bool | float)):
            return value
        return Count(1).convert(value, place)

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        return {"anyOf": [Count(1).schema(), {"const": -1}, {"type": "null"}]}


@dataclass(frozen=True, slots=True)
class Tags:
    """A mapping of names to free values."""

    def convert(self, value: Any, place: Place) -> dict[str, Any]:
        """Copy it, with floats as plain floats."""
        return {key: plain(item) for key, item in as_mapping(value, place, "a mapping of names to values").items()}

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class SubsetRange:
    """A range of samples."""

    def convert(self, value: Any, place: Place) -> Subset:
        """Parse it."""
        try:
            return Subset.parse(value)
        except ConfigError as error:
            raise wrong(place, str(error)) from None

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        return subset_schema()


def plain(value: Any) -> Any:
    """Copy a free value, without our own number types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return float(value) if isinstance(value, WrittenFloat) else value


def _exponent(value: float | Decimal) -> int:
    number = value if isinstance(value, Decimal) else Decimal(_text(value))
    return number.adjusted() if number else 0


def _text(value: Any) -> str:
    if isinstance(value, WrittenFloat):
        return value.text
    return float.__repr__(value) if isinstance(value, float) else str(value)
