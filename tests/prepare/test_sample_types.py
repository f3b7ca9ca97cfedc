"""What the wizard knows of sample types, and shows of samples."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import energon_grain
from energon_grain import Sample
from energon_grain.errors import ConfigError
from energon_grain.formats.tar.scan import scan_tar
from energon_grain.prepare.dataset_definition import (
    SAMPLE_TYPES,
    class_reference,
    data_fields,
    find_sample_type,
    preview_samples,
    propose_expression,
)
from energon_grain.testing import write_tars


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


@pytest.mark.parametrize(
    ("field", "parts", "expected"),
    [
        ("image", ["txt", "jpg"], "jpg"),
        ("image", ["png", "jpg", "json"], "jpg,png"),
        ("image", ["image", "jpg"], "image"),
        ("image", ["json"], None),
        ("caption", ["txt", "json"], "txt"),
        ("caption", ["caption", "txt"], "caption"),
        ("label", ["cls"], "cls"),
        ("video", ["mp4", "mkv"], "mp4,mkv"),
        ("words_text", ["words_text.json", "jpg"], "words_text.json"),
        ("words_text", ["jpg"], None),
    ],
)
def test_proposals(field: str, parts: list[str], expected: str | None) -> None:
    assert propose_expression(field, parts) == expected


def test_first_samples(tmp_path: Path) -> None:
    content = {"caption": "x" * 100, "boxes": [1, 2, 3, 4], "deep": [{"k": "ü", "none": None}]}
    samples = [
        {"__key__": "a", "json": content, "jpg": b"1234"},
        {"__key__": "b", "json": b"{"},
        {"__key__": "c", "x": ""},
    ]
    (tar,) = write_tars(tmp_path, samples)
    (key, parts, text), (_, _, none) = preview_samples(str(tar), scan_tar(tar))
    assert (key, list(parts), parts["jpg"]) == ("a", ["json", "jpg"], 4)
    assert json.loads(text or "") == {
        "caption": "x" * 40 + "…",
        "boxes": [1, 2, 3, "…"],
        "deep": [{"k": "ü", "none": None}],
    }
    assert none is None
