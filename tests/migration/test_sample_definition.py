from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from energon_grain.migration.dataset_folder import dataset_findings
from energon_grain.migration.finding import Finding
from energon_grain.migration.options import CheckOptions
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_captioning_dataset, write_tars

TEXT: dict[str, Any] = {"sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    parts = ("txt", "pkl", "left.pth", "pyd.gz", "mp4", "WAV", "msg", "jpg")
    samples = [{"__key__": f"{number}", **dict.fromkeys(parts, b"x")} for number in range(4)]
    write_tars(tmp_path / "data", samples)
    prepare_dataset(tmp_path / "data", split_ratio={"train": 1}, crude=True, num_workers=0)
    return tmp_path / "data"


def found(root: Path, content: dict[str, Any], **how: Any) -> list[Finding]:
    (root / ".nv-meta/dataset.yaml").write_text(yaml.safe_dump(content))
    return list(dataset_findings(root, CheckOptions(**how)))


def seen(root: Path, content: dict[str, Any], **how: Any) -> list[tuple[str, str]]:
    return [(finding.severity, finding.where.rpartition("$")[2]) for finding in found(root, content, **how)]


def test_parts_of_a_crude_dataset(root: Path) -> None:
    crude = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    pickles, images, media, coded = found(root, crude)
    assert (pickles.severity, images.severity, media.severity, coded.severity) == (
        "error",
        "differs",
        "differs",
        "note",
    )
    assert "left.pth, pkl, pyd.gz" in pickles.what
    assert "jpg" in images.what
    assert "WAV, mp4" in media.what
    assert "msg" in coded.what
    assert [each.severity for each in found(root, crude, allow_pickle=True)] == ["differs", "differs", "note"]
    assert found(root, {**crude, "part_filter": ["txt"]}) == []
    assert found(root, {**crude, "decoder": None}) == []
    pil = {"__module__": "megatron.energon", "__class__": "SampleDecoder", "image_decode": "pilrgb"}
    assert found(root, {**crude, "decoder": pil, "part_filter": ["jpg"]}) == []
    assert seen(root, {**crude, "decoder": {"colour": 1}}) == [("error", ".decoder")]


def test_only_mapped_parts_count(root: Path) -> None:
    assert found(root, {**TEXT, "field_map": {"text": "txt"}}) == []
    assert [each.severity for each in found(root, {**TEXT, "field_map": {"text": "txt,pkl"}})] == ["error"]


def test_code_beside_the_data(root: Path) -> None:
    content = {**TEXT, "sample_loader": "sample_loader.py:load", "part_filter": "sample_loader.py:parts"}
    assert seen(root, content)[:2] == [("error", ".sample_loader"), ("error", ".part_filter")]
    mine = {"__module__": "my.data", "__class__": "Mine"}
    assert seen(root, mine)[0] == ("error", ".__class__")
    assert seen(root, mine, trusted_modules=("my",))[0] == ("differs", ".__class__")
    assert seen(root, {**mine, "__module__": "megatron.energon"}, trusted_modules=("my",))[0] == ("error", ".__class__")


def test_sample_types(root: Path) -> None:
    mine = {"sample_type": {"__module__": "tests_own.types", "__class__": "Mine"}, "field_map": {"text": "txt"}}
    (finding,) = found(root, mine)
    assert "trusted_modules=['tests_own.types']" in finding.advice
    (finding,) = found(root, mine, trusted_modules=("tests_own",))
    assert "cannot be imported" in finding.what
    unknown = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "TekstSample"},
        "field_map": {"text": "t"},
    }
    assert seen(root, unknown) == [("error", ".sample_type")]


def test_legacy_class(tmp_path: Path) -> None:
    root = make_captioning_dataset(tmp_path / "old", n=4, shards=1)
    legacy = {"__module__": "megatron.energon", "__class__": "CaptioningWebdataset"}
    findings = found(root, {**legacy, "field_map": {"image": "jpg", "caption": "txt"}})
    assert [finding.severity for finding in findings] == ["note", "differs"]


@pytest.mark.parametrize("field_map", [{}, {"text": "none"}, {"text": "txt", "colour": "txt"}])
def test_field_maps_that_fail_for_every_sample(root: Path, field_map: dict[str, str]) -> None:
    (finding,) = found(root, {**TEXT, "field_map": field_map})
    assert finding.severity == "error"
    assert "every sample fails" in finding.energon
