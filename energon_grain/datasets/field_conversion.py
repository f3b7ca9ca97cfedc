"""Conversion between dataclasses, NamedTuples and dicts by field name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from energon_grain.errors import ConfigError
from energon_grain.transforms.batching import generic_batch


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
    if issubclass(target, dict):
        return target(fields)
    try:
        return target(**fields)
    except TypeError as error:
        raise ConfigError(
            f"fields {sorted(fields)} of {type(value).__name__} do not fit {target.__name__}: {error}; name the fields "
            f"alike, or override the hook that converts"
        ) from error


def batch_fields(samples: list[Any], target: type[Any]) -> Any:
    """Batch samples field by field into a `target`.

    Arrays are zero-padded and stacked, all else becomes a list; fields named `__…__` (keys, provenance) are always
    lists of one value a sample. A target with `from_samples` makes the batch by itself.

    Raises:
        ConfigError: The samples have no named fields, or the fields do not fit the target.
    """
    if dataclasses.is_dataclass(target) and hasattr(target, "from_samples"):
        return cast("Any", target).from_samples(samples)
    first = samples[0]
    if isinstance(first, Mapping):
        columns = {name: [sample[name] for sample in samples] for name in cast("Mapping[str, Any]", first)}
    else:
        columns = {name: [getattr(sample, name) for sample in samples] for name in _field_names(first)}
    batched = {name: column if name[:2] == "__" else generic_batch(column) for name, column in columns.items()}
    if issubclass(target, dict):
        return dict(batched)
    try:
        return target(**batched)
    except TypeError as error:
        raise ConfigError(
            f"fields {sorted(batched)} of a batch of {type(first).__name__} do not fit {target.__name__}: {error}; name "
            f"the fields alike, or override `batch`"
        ) from error


def _field_names(value: Any) -> tuple[str, ...]:
    names = _names_of_type.get(type(value))
    if names is None:
        names = _names_of_type[type(value)] = tuple(fields_of(value))
    return names


_names_of_type: dict[type[Any], tuple[str, ...]] = {}
