"""Datasets of pictures, alone and with captions and classes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from energon_grain.testing.dataset_folder import Options, Recipe, write_dataset
from energon_grain.testing.pictures import COLOURS, Size, draw_picture, encode_picture
from energon_grain.testing.sentences import make_sentence

SMALL: Size = (32, 48)


def make_image_dataset(root: str | os.PathLike[str], *, image_size: Size = SMALL, **options: Unpack[Options]) -> Path:
    """Write `ImageSample`s: a part `jpg` of height and width `image_size`."""

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        return {"jpg": encode_picture(draw_picture(rng, i % len(COLOURS), image_size), "JPEG")}

    recipe = Recipe(parts=parts, breaks="jpg", sample_type="ImageSample", field_map={"image": "jpg"})
    return write_dataset(root, recipe, **options)


def make_captioning_dataset(
    root: str | os.PathLike[str], *, image_size: Size = SMALL, **options: Unpack[Options]
) -> Path:
    """Write `CaptioningSample`s: a part `jpg` of height and width `image_size`, and its caption as `txt`."""

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        colour = int(rng.integers(len(COLOURS)))
        picture = encode_picture(draw_picture(rng, colour, image_size), "JPEG")
        return {"jpg": picture, "txt": f"Something {COLOURS[colour]}. {make_sentence(rng)}"}

    field_map = {"image": "jpg", "caption": "txt"}
    recipe = Recipe(parts=parts, breaks="jpg", sample_type="CaptioningSample", field_map=field_map)
    return write_dataset(root, recipe, **options)


def make_classification_dataset(
    root: str | os.PathLike[str], *, image_size: Size = (16, 16), **options: Unpack[Options]
) -> Path:
    """Write `ImageClassificationSample`s: a part `png`, its class as `cls` and the name of that as `json`.

    There are ten classes, the colours of the pictures, as often as each other: simple to learn.
    """

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        colour = i % len(COLOURS)
        picture = encode_picture(draw_picture(rng, colour, image_size), "PNG")
        return {"png": picture, "cls": colour, "json": {"name": COLOURS[colour]}}

    field_map = {"image": "png", "label": "cls", "label_name": "json[name]"}
    recipe = Recipe(parts=parts, breaks="png", sample_type="ImageClassificationSample", field_map=field_map)
    return write_dataset(root, recipe, **options)
