"""Datasets of text in pictures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from energon_grain.testing.dataset_folder import Options, Recipe, write_dataset
from energon_grain.testing.pictures import Size, encode_picture
from energon_grain.testing.question_datasets import question_parts
from energon_grain.testing.sentences import make_sentence

PAGE: Size = (64, 96)
_WORDS = {"words_boxes": "words.npy", "words_text": "json[words]"}


def make_ocr_dataset(root: str | os.PathLike[str], *, image_size: Size = PAGE, **options: Unpack[Options]) -> Path:
    """Write `OCRSample`s: a page as `png` and its text as `txt`.

    Its words, lines and single block are in `json`, their boxes (x, y, width, height; for words with a confidence) in
    `words.npy`, `lines.npy` and `block.npy`. Characters are left out, so these fields stay None.
    """

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        page = _Page(rng, image_size)
        return {
            **page.word_parts(),
            "json": {"words": page.words, "lines": page.lines, "block": [page.text], "classes": ["paragraph"]},
            "lines.npy": page.line_boxes(),
            "block.npy": np.array([[0, 0, image_size[1], image_size[0]]], dtype=np.float32),
        }

    field_map = {
        "image": "png",
        "text": "txt",
        "block_boxes": "block.npy",
        "block_classes": "json[classes]",
        "block_text": "json[block]",
        "lines_boxes": "lines.npy",
        "lines_text": "json[lines]",
        **_WORDS,
    }
    recipe = Recipe(parts=parts, breaks="png", sample_type="OCRSample", field_map=field_map)
    return write_dataset(root, recipe, **options)


def make_vqa_ocr_dataset(root: str | os.PathLike[str], *, image_size: Size = PAGE, **options: Unpack[Options]) -> Path:
    """Write `VQAOCRSample`s: page, text and words as in `make_ocr_dataset`, a question as in `make_vqa_dataset`."""

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        page = _Page(rng, image_size)
        question = question_parts(i % 10, rng)
        return {**page.word_parts(), **question, "json": {"words": page.words, **question["json"]}}

    field_map = {
        "image": "png",
        "context": "json[question]",
        "text": "txt",
        "answers": "json[answers]",
        "answer_weights": "weights.npy",
        **_WORDS,
    }
    recipe = Recipe(parts=parts, breaks="png", sample_type="VQAOCRSample", field_map=field_map)
    return write_dataset(root, recipe, **options)


class _Page:
    """Two to four lines of words, each drawn as a dark bar."""

    def __init__(self, rng: np.random.Generator, size: Size) -> None:
        self._rng, self._size = rng, size
        self.lines = [make_sentence(rng, 2, 4) for _ in range(int(rng.integers(2, 5)))]
        self.text = "\n".join(self.lines)
        self.words = self.text.split()

    def word_parts(self) -> dict[str, Any]:
        boxes = self._word_boxes()
        page = np.full((*self._size, 3), 250, dtype=np.uint8)
        for x, y, width, height in boxes[:, :4].astype(int):
            page[y : y + height, x : x + width] = 30
        return {"png": encode_picture(page, "PNG"), "txt": self.text, "words.npy": boxes}

    def line_boxes(self) -> npt.NDArray[np.float32]:
        height = self._size[0] // len(self.lines)
        rows = [(0, number * height, self._size[1], height) for number in range(len(self.lines))]
        return np.array(rows, dtype=np.float32)

    def _word_boxes(self) -> npt.NDArray[np.float32]:
        height = self._size[0] // len(self.lines)
        rows: list[tuple[float, ...]] = []
        for number, line in enumerate(self.lines):
            step = self._size[1] / len(line.split())
            for place in range(len(line.split())):
                rows.append((place * step, number * height + 2, step - 2, height - 4, self._rng.uniform(0.5, 1)))  # noqa: PERF401
        return np.array(rows, dtype=np.float32)
