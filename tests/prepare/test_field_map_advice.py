from __future__ import annotations

import pytest

from energon_grain.prepare.dataset_definition import propose_expression


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
