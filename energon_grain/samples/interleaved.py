"""Sequences of images, texts and other media."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.samples.edataclass import edataclass
from energon_grain.samples.sample import Sample


@edataclass
class InterleavedSample(Sample):
    """Images and texts in their order."""

    sequence: list[npt.NDArray[Any] | str]


@edataclass
class SimilarityInterleavedSample(Sample):
    """Images and texts whose alignment follows from a similarity matrix."""

    images: list[npt.NDArray[Any]]
    texts: list[str]
    audio: list[npt.NDArray[Any]] | None = None
    video: list[npt.NDArray[Any]] | None = None
    similarity_matrix: npt.NDArray[np.floating[Any]] | None = None
    """(images, texts)."""
    matched_text_indices: list[int] | None = None
    """For each image the index of its sentence in `texts`."""
