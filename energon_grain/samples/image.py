"""Images, alone and with a caption or class."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from energon_grain.samples.edataclass import edataclass
from energon_grain.samples.sample import Sample


@edataclass
class ImageSample(Sample):
    """An image."""

    image: npt.NDArray[Any]
    """As the decoder's `image_decode` says; by default float32 (3, H, W) in 0..1."""


@edataclass
class CaptioningSample(Sample):
    """An image and its caption."""

    image: npt.NDArray[Any]
    """As the decoder's `image_decode` says; by default float32 (3, H, W) in 0..1."""
    caption: str


@edataclass
class ImageClassificationSample(Sample):
    """An image and its class."""

    image: npt.NDArray[Any]
    """As the decoder's `image_decode` says; by default float32 (3, H, W) in 0..1."""
    label: int | None = None
    label_name: str | None = None
