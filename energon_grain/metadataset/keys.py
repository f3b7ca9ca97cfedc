"""What the keys of a form are: one definition that checks files, checks what Python makes, and becomes JSON Schema.

A form is a frozen dataclass whose fields are made by `key`. `build` reads one from a mapping, `check` runs in its
`__post_init__`; so a node is valid however it was made.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from energon_grain.metadataset.place import Place, as_mapping, unknown, wrong

Form = TypeVar("Form")


class ValueKind(Protocol):
    """A kind of value that a key can have."""

    def convert(self, value: Any, place: Place) -> Any:
        """Check a value and give it its type. What was converted already passes unchanged.

        Raises:
            ConfigError: It is not of this kind; the message begins with the place.
        """
        ...

    def schema(self) -> dict[str, Any]:
        """JSON Schema (draft 7) of the values in a file."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A key of a form.

    Attributes:
        kind: What it takes.
        doc: What it means, in a sentence, for editors.
        required: Whether it must be there.
        nullable: Whether null, or an empty value, says the same as leaving it out.
        default: What the field is where the key is left out; not converted if None.
    """

    kind: ValueKind
    doc: str
    required: bool
    nullable: bool
    default: Any

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the value, with the description."""
        schema = self.kind.schema()
        if self.nullable:
            schema = {"anyOf": [schema, {"type": "null"}]}
        return {"description": self.doc, **schema}


def key(kind: ValueKind, doc: str, *, default: Any = dataclasses.MISSING, nullable: bool | None = None) -> Any:
    """Declare a key as a dataclass field.

    Args:
        kind: What it takes.
        doc: What it means.
        default: Makes it optional.
        nullable: Whether it may be null in a file; default: if its default is None.
    """
    declared = Key(
        kind=kind,
        doc=doc,
        required=default is dataclasses.MISSING,
        nullable=default is None if nullable is None else nullable,
        default=default,
    )
    return dataclasses.field(default=default, metadata={"key": declared})


@functools.cache
def keys_of(form: type[Any]) -> Mapping[str, Key]:
    """The keys of a form by name, in order."""
    return {field.name: field.metadata["key"] for field in dataclasses.fields(form) if "key" in field.metadata}


def check(node: Any) -> None:
    """Check and convert the fields of a form that was just made.

    Raises:
        ConfigError: One is wrong; the message says where.
    """
    place = place_of(node)
    for name, declared in keys_of(type(node)).items():
        value = getattr(node, name)
        if value is not None or declared.default is not None:
            object.__setattr__(node, name, declared.kind.convert(value, place.at(name)))


def place_of(node: Any) -> Place:
    """Where a form stands; one made in Python is a document by itself."""
    return node.place or Place(type(node).__name__)


def build(form: type[Form], value: Any, place: Place, *, extra: Collection[str] = ()) -> Form:
    """Make a form of a mapping. Keys in `extra` belong to whatever holds the form; they are passed over.

    Raises:
        ConfigError: A key is unknown, missing, or has a wrong value.
    """
    if isinstance(value, form):
        return value
    keys = keys_of(form)
    mapping = as_mapping(value, place, f"a mapping with {', '.join(keys)}")
    for name in mapping:
        if name not in keys and name not in extra:
            raise unknown(place, name, [*keys, *extra])
    for name, declared in keys.items():
        if declared.required and name not in mapping:
            raise wrong(place, f"the key `{name}` is missing. {declared.doc}")
        if name in mapping and mapping[name] is None and not declared.nullable:
            declared.kind.convert(None, place.at(name))
    make: Any = form
    return make(place=place, **{name: mapping[name] for name in keys if name in mapping})


def form_schema(form: type[Any], *extra: type[Any]) -> dict[str, Any]:
    """JSON Schema of a form, together with the keys of the forms that wrap it."""
    keys = {name: declared for each in (form, *extra) for name, declared in keys_of(each).items()}
    return {
        "type": "object",
        "description": (form.__doc__ or "").split("\n")[0],
        "properties": {name: declared.schema() for name, declared in keys.items()},
        "required": [name for name, declared in keys.items() if declared.required],
        "additionalProperties": False,
    }
