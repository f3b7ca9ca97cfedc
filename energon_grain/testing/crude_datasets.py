"""Datasets of text, of plain dicts, and of bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from energon_grain.testing.dataset_folder import Options, Recipe, write_dataset
from energon_grain.testing.sentences import make_text


def make_text_dataset(root: str | os.PathLike[str], *, text_bytes: int = 100, **options: Unpack[Options]) -> Path:
    """Write `TextSample`s: a part `txt` of at least `text_bytes` bytes, and a part `json` with facts about it."""
    recipe = Recipe(parts=_text_parts(text_bytes), breaks="txt", sample_type="TextSample", field_map={"text": "txt"})
    return write_dataset(root, recipe, **options)


def make_crude_dataset(root: str | os.PathLike[str], *, text_bytes: int = 100, **options: Unpack[Options]) -> Path:
    """Write a crude dataset with the parts `txt` and `json`, to be cooked in the task encoder."""
    return write_dataset(root, Recipe(parts=_text_parts(text_bytes), breaks="json"), **options)


def make_blob_dataset(root: str | os.PathLike[str], *, sample_bytes: int = 1000, **options: Unpack[Options]) -> Path:
    """Write a crude dataset with one part `bin` of `sample_bytes` random bytes. It has nothing that could be broken."""

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        return {"bin": rng.bytes(sample_bytes)}

    return write_dataset(root, Recipe(parts=parts, breaks=None), **options)


def _text_parts(text_bytes: int) -> Any:
    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        text = make_text(rng, text_bytes)
        return {"txt": text, "json": {"number": i, "words": len(text.split()), "score": round(rng.random(), 6)}}

    return parts
