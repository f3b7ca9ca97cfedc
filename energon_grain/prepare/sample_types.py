"""The sample types that a dataset can be prepared for, by name."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
from typing import Any

from energon_grain.errors import ConfigError
from energon_grain.samples.sample import Sample
from energon_grain.samples.types import (
    CaptioningSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)

SAMPLE_TYPES: dict[str, type[Sample]] = {
    cls.__name__: cls
    for cls in (
        CaptioningSample,
        ImageClassificationSample,
        ImageSample,
        InterleavedSample,
        MultiChoiceVQASample,
        OCRSample,
        SimilarityInterleavedSample,
        TextSample,
        VQAOCRSample,
        VQASample,
        VidQASample,
    )
}
CRUDE_CLASS = "CrudeWebdataset"
_ENERGON_MODULES = {"VQAOCRSample": "megatron.energon.flavors.vqa_and_ocr"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SampleField:
    """One field of a sample type that data can fill.

    Attributes:
        name: The field.
        annotation: Its type as written.
        default: `repr` of its default, or None where it must be given.
    """

    name: str
    annotation: str
    default: str | None

    @property
    def required(self) -> bool:
        """Whether a sample cannot be made without it."""
        return self.default is None


def find_sample_type(name: str) -> type[Sample]:
    """Return the sample type called `name`: one of ours, or `package.module:Class`, which is imported.

    One of ours is found by the name of its dataset class, too: `CaptioningWebdataset`.

    Raises:
        ConfigError: There is none, or it is no dataclass derived from `Sample`.
    """
    name = _of_dataset_class(name)
    if name in SAMPLE_TYPES:
        return SAMPLE_TYPES[name]
    if ":" in name:
        return _import_sample_type(name)
    close = difflib.get_close_matches(name, [*SAMPLE_TYPES, CRUDE_CLASS], n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise ConfigError(
        f"there is no sample type {name!r}.{hint} Known are {', '.join(SAMPLE_TYPES)}, {CRUDE_CLASS} for plain dicts, "
        f"and your own as package.module:Class."
    )


def class_reference(name: str) -> dict[str, str]:
    """Return the `__module__` and `__class__` that name a sample type in `dataset.yaml`, for us and for Energon."""
    module, _, cls = _of_dataset_class(name).rpartition(":")
    return {"__module__": module or _ENERGON_MODULES.get(cls, "megatron.energon"), "__class__": cls}


def data_fields(sample_type: type[Sample]) -> tuple[SampleField, ...]:
    """List the fields of a sample type without those that every sample has."""
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
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"sample type {name!r} cannot be imported: {error}. Its module must be installed, or on PYTHONPATH, "
            "or in the current folder of the command."
        ) from error
    if not (inspect.isclass(found) and issubclass(found, Sample) and dataclasses.is_dataclass(found)):
        raise ConfigError(f"{name!r} is no sample type: derive a dataclass from energon_grain.Sample.")
    return found
