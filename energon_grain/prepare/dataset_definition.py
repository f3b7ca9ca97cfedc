# SPDX-License-Identifier: Apache-2.0
"""Content of `dataset.yaml` for a new dataset: a sample type and field map, or crude; and proposals for it."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from energon_grain.errors import ConfigError, FieldMapError
from energon_grain.formats.class_ref import imported
from energon_grain.formats.records import RecordEncoding
from energon_grain.formats.scan import ShardScan
from energon_grain.prepare.containers import container_of
from energon_grain.prepare.scan import MAX_PART_NAMES
from energon_grain.samples import types
from energon_grain.samples.sample import Sample
from energon_grain.transforms.field_map import FieldMap

SAMPLE_TYPES: dict[str, type[Sample]] = {
    name: cls
    for name, cls in sorted(vars(types).items())
    if isinstance(cls, type) and issubclass(cls, Sample) and cls is not Sample
}
CRUDE_CLASS = "CrudeWebdataset"
_ENERGON_MODULES = {"VQAOCRSample": "megatron.energon.flavors.vqa_and_ocr"}
IMAGE_PARTS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "jp2", "ppm")
VIDEO_PARTS = ("mp4", "mkv", "webm", "mov", "avi", "m4v")
TEXT_PARTS = ("txt", "text")
_PARTS_OF_FIELD: dict[str, tuple[str, ...]] = {
    "image": ("image", *IMAGE_PARTS),
    "video": ("video", *VIDEO_PARTS),
    "caption": ("caption", "caption.txt", "cap", *TEXT_PARTS),
    "text": TEXT_PARTS,
    "context": ("context", "question", "question.txt", "context.txt", *TEXT_PARTS),
    "label": ("cls", "label"),
    "label_name": ("label_name", "class_name"),
    "answers": ("answers", "answers.json", "answer.json"),
}
_LIST_ITEMS = 3
_TEXT_LENGTH = 40
_JSON_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SampleField:
    """A field of a sample type that data can fill: its type as written, and the `repr` of its default, if any."""

    name: str
    annotation: str
    default: str | None

    @property
    def required(self) -> bool:
        """Whether the field must be filled."""
        return self.default is None


def find_sample_type(name: str) -> type[Sample]:
    """Return the sample type called `name`: a built-in one, or `package.module:Class`, which is imported.

    The name of a built-in type's dataset class, such as `CaptioningWebdataset`, is accepted, too. Raises ConfigError.
    """
    name = _of_dataset_class(name)
    if name in SAMPLE_TYPES:
        return SAMPLE_TYPES[name]
    if ":" in name:
        return _import_sample_type(name)
    close = difflib.get_close_matches(name, [*SAMPLE_TYPES, CRUDE_CLASS], n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise ConfigError(
        f"there is no sample type {name!r}.{hint} Valid names are {', '.join(SAMPLE_TYPES)}, {CRUDE_CLASS} for plain "
        f"dicts, and package.module:Class for your own."
    )


def class_reference(name: str) -> dict[str, str]:
    """Return the `__module__` and `__class__` of a sample type in `dataset.yaml`, valid for us and for Energon."""
    module, _, cls = _of_dataset_class(name).rpartition(":")
    return {"__module__": module or _ENERGON_MODULES.get(cls, "megatron.energon"), "__class__": cls}


def data_fields(sample_type: type[Sample]) -> tuple[SampleField, ...]:
    """List the fields of a sample type, without the fields common to all samples."""
    fields: list[SampleField] = []
    for field in dataclasses.fields(sample_type):
        if field.name.startswith("__"):
            continue
        default = None if field.default is dataclasses.MISSING else repr(field.default)
        if field.default_factory is not dataclasses.MISSING:
            default = repr(field.default_factory())
        fields.append(SampleField(name=field.name, annotation=_annotation(field.type), default=default))
    return tuple(fields)


def _of_dataset_class(name: str) -> str:
    sample_type = f"{name.removesuffix('Webdataset')}Sample"
    return sample_type if name.endswith("Webdataset") and sample_type in SAMPLE_TYPES else name


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _import_sample_type(name: str) -> type[Sample]:
    found = imported(name, f"sample type {name!r}", "Class")
    if not (inspect.isclass(found) and issubclass(found, Sample) and dataclasses.is_dataclass(found)):
        raise ConfigError(f"{name!r} is not a sample type: derive a dataclass from energon_grain.Sample.")
    return found


def propose_expression(field: str, part_names: Sequence[str]) -> str | None:
    """Propose a field map expression for `field`, or None if no part name matches.

    Alternative parts (`jpg`, `png`) are joined to a list of options.

    >>> propose_expression("image", ["png", "txt", "jpg"])
    'jpg,png'
    """
    candidates = _PARTS_OF_FIELD.get(field, (field, f"{field}.txt", f"{field}.json"))
    present = [part for part in candidates if part in part_names]
    if not present:
        return None
    same_kind = IMAGE_PARTS if present[0] in IMAGE_PARTS else VIDEO_PARTS if present[0] in VIDEO_PARTS else ()
    return ",".join(part for part in present if part in same_kind) if same_kind else present[0]


_PROPOSED = (
    *("CaptioningSample", "ImageClassificationSample", "VQASample", "VidQASample", "ImageSample", "TextSample"),
)
_JSON_NAMES = {"caption": ("caption", "text"), "context": ("context", "question"), "label": ("label", "cls")}


def propose_definition(part_names: Sequence[str], example: object = None) -> tuple[str, dict[str, str]]:
    """Propose a sample type and its field map; `CrudeWebdataset` without a field map if no type fits.

    A type fits if each required field has a part or a value in the `json` part, no part is used twice, and all parts
    are used. With fields besides an image, `json` may be unused.

    Args:
        part_names: Parts of the samples.
        example: Content of the `json` part of a sample; None if it is missing or unknown.

    >>> propose_definition(["jpg", "txt"])
    ('CaptioningSample', {'image': 'jpg', 'caption': 'txt'})
    >>> propose_definition(["jpg", "json"], {"captions": ["a", "b"]})
    ('CaptioningSample', {'image': 'jpg', 'caption': 'json[captions][0]'})
    >>> propose_definition(["jpg", "cls"])
    ('ImageClassificationSample', {'image': 'jpg', 'label': 'cls'})
    >>> propose_definition(["mp4", "wav"])
    ('CrudeWebdataset', {})
    """
    for name in _PROPOSED:
        fields, known = dict[str, str](), data_fields(SAMPLE_TYPES[name])
        for field in known:
            found = propose_expression(field.name, part_names) or _in_json(field, example)
            if found is not None:
                fields[field.name] = found
            elif field.required:
                break
        else:
            if (len(fields) > 1 or len(known) == 1) and _uses_all(fields, part_names):
                return name, fields
    return CRUDE_CLASS, {}


def _uses_all(fields: Mapping[str, str], part_names: Sequence[str]) -> bool:
    """Whether all parts are used exactly once; with several fields, `json` may be unused."""
    used = [part for found in fields.values() for part in found.split(",") if not part.startswith("json[")]
    may_stay = {"json"} if len(fields) > 1 or len(used) < len(fields) else set[str]()
    return len(used) == len(set(used)) and set(part_names) - may_stay <= set(used)


def _in_json(field: SampleField, example: object) -> str | None:
    """Expression for a field in the `json` part: the value with its name, or the first item of a list."""
    if not isinstance(example, dict):
        return None
    values = cast("dict[str, Any]", example)
    kinds = list if field.annotation.startswith("list[") else str | int
    for name in _JSON_NAMES.get(field.name, (field.name,)):
        if isinstance(values.get(name), kinds):
            return f"json[{name}]"
        several: Any = values.get(f"{name}s")
        if kinds is not list and isinstance(several, list) and several and isinstance(several[0], str):
            return f"json[{name}s][0]"
    return None


def preview_samples(
    path: str, scan: ShardScan, count: int = 2, *, records: RecordEncoding | None = None
) -> Iterator[tuple[str, dict[str, int], str | None]]:
    """Read the first `count` samples of the shard at a path or URL: a tar, or records in this encoding.

    Returns:
        For each sample: its key; its parts and their sizes in bytes, in shard order; its `json` part, shortened and
        indented, or None if it is missing or unreadable.
    """
    for sample in range(min(count, len(scan))):
        rows = range(int(scan.part_start[sample]), int(scan.part_start[sample + 1]))
        names = [scan.part_names[int(scan.part_name[row])] for row in rows]
        parts = {name: int(scan.part_size[row]) for name, row in zip(names, rows, strict=True)}
        data: object = None
        if parts.get("json", _JSON_BYTES + 1) <= _JSON_BYTES:
            data = container_of(records).part(path, records, scan, sample, "json")
        text = None
        if isinstance(data, bytes):
            with contextlib.suppress(ValueError):
                text = json.dumps(shorten(json.loads(data)), indent=2, ensure_ascii=False)
        yield scan.key(sample), parts, text


def shorten(value: Any) -> Any:
    """Cut lists to three items and strings to forty characters, at all levels of a JSON value."""
    if isinstance(value, dict):
        return {key: shorten(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shorten(item) for item in value[:_LIST_ITEMS]] + ["…"] * (len(value) > _LIST_ITEMS)
    if isinstance(value, str) and len(value) > _TEXT_LENGTH:
        return value[:_TEXT_LENGTH] + "…"
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetDefinition:
    """How samples are built from parts: the YAML content, and the checked field map (None for a crude dataset)."""

    content: dict[str, Any]
    field_map: FieldMap | None = None

    def check_parts(self, part_names: Sequence[str]) -> None:
        """Raise FieldMapError if a field's parts occur in no sample of the dataset.

        Nothing is checked if the shards have more part names than the scan collects.
        """
        if self.field_map is not None and len(part_names) < MAX_PART_NAMES:
            self.field_map.check_parts(part_names)


def define_dataset(
    *,
    sample_type: str | None,
    field_map: Mapping[str, str] | None,
    crude: bool = False,
    subflavors: Mapping[str, Any] | None = None,
) -> DatasetDefinition | None:
    """Return the content to write, or None if neither a sample type nor `crude` is given.

    Raises ConfigError and FieldMapError.
    """
    tags = {} if subflavors is None else {"subflavors": dict(subflavors)}
    if sample_type == CRUDE_CLASS:
        crude, sample_type = True, None
    if crude:
        if sample_type is not None or field_map is not None:
            raise ConfigError("crude datasets yield plain dicts: remove the sample type and the field map.")
        return DatasetDefinition(content={"__module__": "megatron.energon", "__class__": CRUDE_CLASS, **tags})
    if sample_type is None:
        if field_map is not None:
            raise ConfigError("a field map needs a sample type with the fields to fill: pass sample_type as well.")
        if tags:
            raise ConfigError("subflavors need a kind of samples to apply to: pass sample_type or crude as well.")
        return None
    checked = _checked(field_map, find_sample_type(sample_type))
    return DatasetDefinition(
        content={"sample_type": class_reference(sample_type), "field_map": dict(field_map or {}), **tags},
        field_map=checked,
    )


def _checked(field_map: Mapping[str, str] | None, cls: type[Any]) -> FieldMap:
    if field_map is None:
        example = {field.name: "…" for field in data_fields(cls) if field.required}
        raise ConfigError(
            f"{cls.__name__} needs a field map from fields to parts, such as {example}. If that is not enough, make "
            f"the dataset crude and write a cooker."
        )
    try:
        return FieldMap.parse(field_map, cls, where="field_map")
    except TypeError as error:
        raise FieldMapError(f"field map {field_map!r} is not a mapping from fields to parts.") from error
