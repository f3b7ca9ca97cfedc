from __future__ import annotations

import json
from pathlib import Path

from energon_grain.formats.tar.scan import scan_tar
from energon_grain.prepare.dataset_definition import preview_samples, shorten
from energon_grain.testing import write_tars


def test_first_samples(tmp_path: Path) -> None:
    content = {"caption": "x" * 100, "boxes": [1, 2, 3, 4], "deep": [{"k": "ü"}]}
    samples = [
        {"__key__": "a", "json": content, "jpg": b"1234"},
        {"__key__": "b", "json": b"{"},
        {"__key__": "c", "x": ""},
    ]
    (tar,) = write_tars(tmp_path, samples)
    first, second = preview_samples(str(tar), scan_tar(tar))
    assert (first.key, list(first.parts), first.parts["jpg"]) == ("a", ["json", "jpg"], 4)
    assert json.loads(first.json_text or "") == {
        "caption": "x" * 40 + "…",
        "boxes": [1, 2, 3, "…"],
        "deep": [{"k": "ü"}],
    }
    assert second.json_text is None


def test_short_values_stay() -> None:
    assert shorten({"a": [1, None, "x"], "b": 1.5}) == {"a": [1, None, "x"], "b": 1.5}
