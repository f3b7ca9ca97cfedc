"""What `dataset.yaml` of a freshly prepared dataset says: a sample type with its field map, or crude."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energon_grain.errors import ConfigError, FieldMapError
from energon_grain.prepare.sample_types import CRUDE_CLASS, class_reference, data_fields, find_sample_type
from energon_grain.prepare.scan_task import MAX_PART_NAMES
from energon_grain.transforms.field_map import FieldMap


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetDefinition:
    """How samples are made of parts.

    Attributes:
        content: What the YAML file holds.
        field_map: The checked field map; None for a crude dataset.
    """

    content: dict[str, Any]
    field_map: FieldMap | None = None

    def check_parts(self, part_names: Sequence[str]) -> None:
        """Raise FieldMapError where no sample of the dataset has any of the parts that a field is made of.

        Nothing is checked where shards have so many part names that not all are known.
        """
        if self.field_map is not None and len(part_names) < MAX_PART_NAMES:
            self.field_map.check_parts(part_names)


def define_dataset(
    *, sample_type: str | None, field_map: Mapping[str, str] | None, crude: bool = False
) -> DatasetDefinition | None:
    """Decide what to write, or return None where neither a sample type nor `crude` is given.

    Raises:
        ConfigError: The arguments contradict each other, there is no such sample type, or its field map is missing.
        FieldMapError: The field map does not fit the sample type.
    """
    if sample_type == CRUDE_CLASS:
        crude, sample_type = True, None
    if crude:
        if sample_type is not None or field_map is not None:
            raise ConfigError("a crude dataset yields plain dicts: give neither a sample type nor a field map.")
        return DatasetDefinition(content={"__module__": "megatron.energon", "__class__": CRUDE_CLASS})
    if sample_type is None:
        if field_map is not None:
            raise ConfigError("a field map needs the sample type whose fields it fills: give sample_type as well.")
        return None
    cls = find_sample_type(sample_type)
    if field_map is None:
        example = {field.name: "…" for field in data_fields(cls) if field.required}
        raise ConfigError(
            f"{cls.__name__} needs a field map, which says which part fills which field, such as {example}. Where that "
            f"is not enough, make the dataset crude and cook its samples in the program."
        )
    try:
        checked = FieldMap.parse(field_map, cls, where="field_map")
    except TypeError as error:
        raise FieldMapError(f"field map {field_map!r} is not a mapping from fields to parts.") from error
    return DatasetDefinition(
        content={"sample_type": class_reference(sample_type), "field_map": dict(field_map)}, field_map=checked
    )
