from __future__ import annotations

from dataclasses import dataclass, field

import pytest

import energon_grain
from energon_grain.errors import ConfigError
from energon_grain.prepare.dataset_definition import SAMPLE_TYPES, class_reference, data_fields, find_sample_type
from energon_grain.samples.sample import Sample


@dataclass
class Mine(Sample):
    first: int
    second: list[str] = field(default_factory=list)


class NotADataclass:
    pass


@pytest.mark.parametrize("name", SAMPLE_TYPES)
def test_all_are_public(name: str) -> None:
    assert getattr(energon_grain, name) is SAMPLE_TYPES[name]
    assert find_sample_type(name) is SAMPLE_TYPES[name]
    assert data_fields(SAMPLE_TYPES[name])[0].required


def test_own_type() -> None:
    name = f"{__name__}:Mine"
    assert find_sample_type(name) is Mine
    assert class_reference(name) == {"__module__": __name__, "__class__": "Mine"}
    first, second = data_fields(Mine)
    assert (first.name, first.annotation, first.required) == ("first", "int", True)
    assert (second.name, second.annotation, second.default) == ("second", "list[str]", "[]")


@pytest.mark.parametrize("name", ["Text", "nowhere:Type", f"{__name__}:Missing", f"{__name__}:NotADataclass", ":x"])
def test_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        find_sample_type(name)


def test_references_load_in_energon() -> None:
    assert class_reference("VQASample")["__module__"] == "megatron.energon"
    assert class_reference("VQAOCRSample")["__module__"] == "megatron.energon.flavors.vqa_and_ocr"
