"""Text in images. Boxes are float (N, 4) x, y, w, h, or (N, 5) with a confidence last."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.samples.edataclass import edataclass
from energon_grain.samples.sample import Sample

Boxes = npt.NDArray[np.floating[Any]]  # (N, 4) or (N, 5)


@edataclass
class OCRSample(Sample):
    """An image of text, and where which text is, at up to four levels of detail."""

    image: npt.NDArray[Any]
    """As the decoder's `image_decode` says; by default float32 (3, H, W) in 0..1."""
    text: str
    """The whole text."""
    block_boxes: Boxes | None = None
    block_classes: npt.NDArray[np.integer[Any]] | list[str] | None = None
    """(N,) class numbers, or names."""
    block_text: list[str] | None = None
    lines_boxes: Boxes | None = None
    lines_text: list[str] | None = None
    words_boxes: Boxes | None = None
    words_text: list[str] | None = None
    chars_boxes: Boxes | None = None
    chars_text: list[str] | None = None


@edataclass
class VQAOCRSample(Sample):
    """A question about an image of text."""

    image: npt.NDArray[Any]
    """As the decoder's `image_decode` says; by default float32 (3, H, W) in 0..1."""
    context: str
    """The question."""
    text: str
    """The whole text."""
    answers: list[str] | None = None
    """Possible answers; None in test sets."""
    answer_weights: npt.NDArray[np.floating[Any]] | None = None
    """(answers,) weight of each answer."""
    words_boxes: Boxes | None = None
    words_text: list[str] | None = None
