"""Small pictures: smooth, noisy, and different for every sample."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
import numpy.typing as npt

Size = tuple[int, int]
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "violet", "pink", "white", "grey")
_RGB = (
    (220, 40, 40),
    (240, 150, 30),
    (235, 225, 60),
    (50, 170, 70),
    (60, 200, 210),
    (50, 80, 210),
    (140, 70, 190),
    (240, 150, 190),
    (245, 245, 245),
    (128, 128, 128),
)


def draw_picture(rng: np.random.Generator, colour: int, size: Size) -> npt.NDArray[np.uint8]:
    """Draw a picture of one of `COLOURS` on black: a gradient with noise, so that it compresses like a photograph.

    Args:
        rng: Where noise and direction come from.
        colour: Place in `COLOURS`.
        size: Height and width.

    Returns:
        (height, width, 3)
    """
    height, width = size
    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    light = 0.7 + 0.3 * np.tanh(np.cos(angle) * x + np.sin(angle) * y)
    noisy = light[..., None] * np.array(_RGB[colour]) + rng.normal(0, 6, (height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def encode_picture(picture: npt.NDArray[np.uint8], kind: Literal["JPEG", "PNG"]) -> bytes:
    """Return the bytes of an image file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, kind)
    return buffer.getvalue()
