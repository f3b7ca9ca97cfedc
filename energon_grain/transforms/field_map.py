# SPDX-License-Identifier: Apache-2.0
"""Field maps: the source of each field of a sample, a part or a value inside a part.

    image: jpg,png                    the part `jpg`, or else the part `png`
    caption: json[captions][0]        the first entry of the list under "captions" in the part `json`

An expression is one or more options separated by commas, tried from left to right. An option is a part name followed by
any number of `[…]`, each a key of a dictionary or a position in a list. There is no quoting. An option whose brackets
do not follow this form is a part name as a whole. `__key__` and `__shard__` are parts too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from energon_grain.errors import DecodingError, FieldMapError

PSEUDO_PARTS = frozenset({"__key__", "__shard__"})
_FIXED_FIELDS = frozenset({"__restore_key__", "__subflavors__", "__sources__", "__valid__"})  # the reader sets these
_GIVEN_FIELDS = _FIXED_FIELDS | {"__key__"}
_OPTION = re.compile(r"([^\[\]]+)((?:\[[^\[\]]+\])*)")
_ACCESS = re.compile(r"\[([^\[\]]+)\]")


@dataclass(frozen=True, slots=True)
class Option:
    """One source of a value: a part, and the keys and positions to follow inside it."""

    part: str
    access: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.part + "".join(f"[{step}]" for step in self.access)

    def follow(self, parts: Mapping[str, Any]) -> Any:
        """Return the value in `parts`. Raises LookupError and ValueError."""
        value = parts[self.part]
        for step in self.access:
            if isinstance(value, dict):
                value: Any = value[step]
            elif isinstance(value, list):
                value = value[int(step)]
            else:
                raise ValueError(f"[{step}] of a {type(value).__name__}")
        return value


def parse_expression(expression: str) -> tuple[Option, ...]:
    """Return the options of a field map expression, in order."""
    options: list[Option] = []
    for text in expression.split(","):
        match = _OPTION.fullmatch(text)
        options.append(Option(match[1], tuple(_ACCESS.findall(match[2]))) if match else Option(text))
    return tuple(options)


class FieldMap:
    """A field map that fits a sample type."""

    __slots__ = ("fields", "parts", "simple")

    fields: dict[str, tuple[Option, ...]]
    """The options of each mapped field."""
    parts: tuple[str, ...]
    """Parts to read, sorted; without `__key__` and `__shard__`, which need no reading."""
    simple: dict[str, str] | None
    """Part by field, if every expression is a single part; otherwise None."""

    def __init__(self, options: Mapping[str, tuple[Option, ...]]) -> None:
        self.fields = dict(options)
        self.parts = tuple(sorted({o.part for field in options.values() for o in field} - PSEUDO_PARTS))
        plain = all(len(field) == 1 and not field[0].access for field in options.values())
        self.simple = {name: field[0].part for name, field in options.items()} if plain else None

    @classmethod
    def parse(cls, mapping: Mapping[str, str], sample_type: type, *, where: str = "field_map") -> FieldMap:
        """Parse a field map and check it against its sample type.

        Args:
            mapping: Expression by field name.
            sample_type: A dataclass.
            where: Name of the mapping in messages, with its file.

        Raises:
            FieldMapError: A field is unknown or set by the reader, a required field is missing, or an expression is not
                a text.
        """
        known = _init_fields(sample_type, where)
        for name, expression in mapping.items():
            if name in _FIXED_FIELDS:
                raise FieldMapError(f"{where}: {name} cannot be mapped, because the reader sets it: remove the entry")
            if name not in known:
                raise FieldMapError(
                    f"{where}: {sample_type.__name__} has no field {name!r}; {_alternatives(name, known)}"
                )
            if not isinstance(expression, str) or not expression:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise FieldMapError(
                    f"{where}: {name}: {expression!r} is not an expression: write a part and keys, as in "
                    f"json[captions][0]"
                )
        missing = [name for name, required in known.items() if required and name not in mapping]
        if missing:
            raise FieldMapError(
                f"{where}: {sample_type.__name__} requires {', '.join(missing)}: map each to a part, as in "
                f"{missing[0]}: {'jpg' if missing[0] == 'image' else 'txt'}"
            )
        return cls({name: parse_expression(expression) for name, expression in mapping.items()})

    def check_parts(self, available: Collection[str], *, where: str = "field_map") -> None:
        """Check that the parts of a dataset can fill each field. Raises FieldMapError."""
        for name, options in self.fields.items():
            if not any(option.part in available or option.part in PSEUDO_PARTS for option in options):
                wanted = " or ".join(repr(option.part) for option in options)
                others = _alternatives(options[0].part, sorted(available))
                raise FieldMapError(f"{where}: {name}: no sample has a part {wanted}; {others}")

    def evaluate(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of every mapped field, from decoded parts by name. Raises DecodingError."""
        values: dict[str, Any] = {}
        for name, options in self.fields.items():
            for option in options:
                try:
                    values[name] = option.follow(parts)
                except (LookupError, ValueError):
                    continue
                break
            else:
                raise DecodingError(_why_not(name, options, parts))
        return values

    def __repr__(self) -> str:
        return f"FieldMap({ {name: ','.join(map(str, options)) for name, options in self.fields.items()} })"


def _init_fields(sample_type: type, where: str) -> dict[str, bool]:
    """Return the fields that a map may fill, and whether each is required."""
    if not is_dataclass(sample_type):
        raise FieldMapError(f"{where}: {sample_type.__name__} is not a dataclass, so it has no fields to map")
    return {
        field.name: field.default is MISSING and field.default_factory is MISSING and field.name not in _GIVEN_FIELDS
        for field in fields(sample_type)
        if field.init and field.name not in _FIXED_FIELDS
    }


def _alternatives(name: str, known: Iterable[str]) -> str:
    names = [candidate for candidate in known if candidate not in _GIVEN_FIELDS]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}there are {', '.join(names[:20]) or 'none'}{', …' if len(names) > 20 else ''}"


def _why_not(name: str, options: Iterable[Option], parts: Mapping[str, Any]) -> str:
    reasons: list[str] = []
    for option in options:
        try:
            option.follow(parts)
        except (LookupError, ValueError) as error:
            reason = "no such part" if option.part not in parts else f"{type(error).__name__}: {error}"
            reasons.append(f"{option}: {reason}")
    present = ", ".join(part for part in parts if not part.startswith("__"))
    return f"field {name!r} has no value: {'; '.join(reasons)} (the sample has {present})"
