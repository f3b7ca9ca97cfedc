# SPDX-License-Identifier: Apache-2.0
"""The sample types of Energon."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.samples.registration import register_type
from energon_grain.samples.sample import Sample, edataclass


class CrudeSample(dict[str, Any]):
    """Decoded parts by part name, with `__key__`, `__shard__` and the other base fields as further entries."""

    def __missing__(self, part: str) -> Any:
        parts = ", ".join(name for name in self if not name.startswith("__"))
        raise KeyError(f"the sample has no part {part!r}; it has {parts}")


register_type(CrudeSample)


@edataclass
class TextSample(Sample):
    """A text."""

    text: str


@edataclass
class ImageSample(Sample):
    """An image."""

    image: npt.NDArray[Any]
    """In the format set by `image_decode` of the decoder; by default float32 (3, H, W) in 0..1."""


@edataclass
class CaptioningSample(Sample):
    """An image and its caption."""

    image: npt.NDArray[Any]
    """In the format set by `image_decode` of the decoder; by default float32 (3, H, W) in 0..1."""
    caption: str


@edataclass
class ImageClassificationSample(Sample):
    """An image and its class."""

    image: npt.NDArray[Any]
    """In the format set by `image_decode` of the decoder; by default float32 (3, H, W) in 0..1."""
    label: int | None = None
    label_name: str | None = None


Boxes = npt.NDArray[np.floating[Any]]  # (N, 4) or (N, 5)


@edataclass
class OCRSample(Sample):
    """An image of text, with the text and its positions, at up to four levels of detail."""

    image: npt.NDArray[Any]
    """In the format set by `image_decode` of the decoder; by default float32 (3, H, W) in 0..1."""
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
    """In the format set by `image_decode` of the decoder; by default float32 (3, H, W) in 0..1."""
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


@edataclass
class VQASample(Sample):
    """A question about an image."""

    image: npt.NDArray[Any]
    """In the format set by `image_decode` of the decoder; by default float32 (3, H, W) in 0..1."""
    context: str
    """The question."""
    answers: list[str] | None = None
    """Possible answers; None in test sets."""
    answer_weights: npt.NDArray[np.floating[Any]] | None = None
    """(answers,) weight of each answer."""


@edataclass
class MultiChoiceVQASample(Sample):
    """A question about an image with answers to choose from."""

    image: npt.NDArray[Any]
    """In the format set by `image_decode` of the decoder; by default float32 (3, H, W) in 0..1."""
    context: str
    """The question."""
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@edataclass
class VidQASample(Sample):
    """A question about a video."""

    video: Any
    """In the format set by `av_decode` of the decoder; by default an `AVDecoder`."""
    context: str
    """The question."""
    answers: list[str] | None = None
    """Possible answers; None in test sets."""
    answer_weights: npt.NDArray[np.floating[Any]] | None = None
    """(answers,) weight of each answer."""


@edataclass
class InterleavedSample(Sample):
    """Images and texts in order."""

    sequence: list[npt.NDArray[Any] | str]


@edataclass
class SimilarityInterleavedSample(Sample):
    """Images and texts that a similarity matrix aligns."""

    images: list[npt.NDArray[Any]]
    texts: list[str]
    audio: list[npt.NDArray[Any]] | None = None
    video: list[npt.NDArray[Any]] | None = None
    similarity_matrix: npt.NDArray[np.floating[Any]] | None = None
    """(images, texts)."""
    matched_text_indices: list[int] | None = None
    """For each image, the index of its sentence in `texts`."""
