"""Conversion between dataclasses, NamedTuples and dicts by field name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from energon_grain.errors import ConfigError


def fields_of(value: Any) -> dict[str, Any]:
    """Field names and values of a dataclass instance, NamedTuple or mapping.

    Raises:
        ConfigError: `value` is none of these.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names = cast("tuple[str, ...]", value._fields)  # type: ignore[attr-defined]
        return {name: getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise ConfigError(
        f"cannot convert a {type(value).__name__} by field name; dataclasses, NamedTuples and dicts have named fields"
    )


def convert_fields(value: Any, target: type[Any]) -> Any:
    """Make a `target` of the fields of `value`; `value` itself when it is one already.

    Raises:
        ConfigError: The fields do not fit the target.
    """
    if isinstance(value, target):
        return value
    fields = fields_of(value)
    if fields.get("__valid__", 0) is None:
        del fields["__valid__"]  # a place for the mask of padded batches, which other types need not have
    if issubclass(target, dict):
        return target(fields)
    try:
        return target(**fields)
    except TypeError as error:
        raise ConfigError(
            f"fields {sorted(fields)} of {type(value).__name__} do not fit {target.__name__}: {error}; name the fields "
            f"alike, or override the hook that converts"
        ) from error
