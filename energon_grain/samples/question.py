"""Questions about images and videos."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.samples.edataclass import edataclass
from energon_grain.samples.sample import Sample


@edataclass
class VQASample(Sample):
    """A question about an image."""

    image: npt.NDArray[Any]
    """As the decoder's `image_decode` says; by default float32 (3, H, W) in 0..1."""
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
    """As the decoder's `image_decode` says; by default float32 (3, H, W) in 0..1."""
    context: str
    """The question."""
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@edataclass
class VidQASample(Sample):
    """A question about a video."""

    video: Any
    """As the decoder's `av_decode` says; by default an `AVDecoder`."""
    context: str
    """The question."""
    answers: list[str] | None = None
    """Possible answers; None in test sets."""
    answer_weights: npt.NDArray[np.floating[Any]] | None = None
    """(answers,) weight of each answer."""
