"""Datasets of questions about pictures and videos."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from energon_grain.testing.avi import encode_avi
from energon_grain.testing.dataset_folder import Options, Recipe, write_dataset
from energon_grain.testing.image_datasets import SMALL
from energon_grain.testing.pictures import COLOURS, Size, draw_picture, encode_picture

_QUESTION = "Which colour do you see?"
_ANSWERS = {"context": "json[question]", "answers": "json[answers]", "answer_weights": "weights.npy"}


def make_vqa_dataset(root: str | os.PathLike[str], *, image_size: Size = SMALL, **options: Unpack[Options]) -> Path:
    """Write `VQASample`s: a part `jpg`, question and two answers in `json`, the weights of these in `weights.npy`."""

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        colour = int(rng.integers(len(COLOURS)))
        return {"jpg": encode_picture(draw_picture(rng, colour, image_size), "JPEG"), **question_parts(colour, rng)}

    recipe = Recipe(parts=parts, breaks="jpg", sample_type="VQASample", field_map={"image": "jpg", **_ANSWERS})
    return write_dataset(root, recipe, **options)


def make_multi_choice_vqa_dataset(
    root: str | os.PathLike[str], *, image_size: Size = SMALL, **options: Unpack[Options]
) -> Path:
    """Write `MultiChoiceVQASample`s: a part `jpg`; question, four choices and the place of the right one in `json`."""

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        choices = rng.permutation(len(COLOURS))[:4]
        correct = int(rng.integers(4))
        return {
            "jpg": encode_picture(draw_picture(rng, int(choices[correct]), image_size), "JPEG"),
            "json": {"question": _QUESTION, "choices": [COLOURS[c] for c in choices.tolist()], "correct": correct},
        }

    field_map = {
        "image": "jpg",
        "context": "json[question]",
        "choices": "json[choices]",
        "correct_choice_idx": "json[correct]",
    }
    recipe = Recipe(parts=parts, breaks="jpg", sample_type="MultiChoiceVQASample", field_map=field_map)
    return write_dataset(root, recipe, **options)


def make_vid_qa_dataset(
    root: str | os.PathLike[str], *, image_size: Size = (32, 48), frames: int = 5, **options: Unpack[Options]
) -> Path:
    """Write `VidQASample`s: a part `avi` with a short Motion JPEG video, and the rest as in `make_vqa_dataset`.

    Videos are decoded when a program asks for frames, so a broken one fails only then; broken here are the questions.
    """

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        colour = int(rng.integers(len(COLOURS)))
        pictures = [encode_picture(draw_picture(rng, colour, image_size), "JPEG") for _ in range(frames)]
        return {"avi": encode_avi(pictures, image_size, frames_per_second=5), **question_parts(colour, rng)}

    recipe = Recipe(parts=parts, breaks="json", sample_type="VidQASample", field_map={"video": "avi", **_ANSWERS})
    return write_dataset(root, recipe, **options)


def question_parts(colour: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return the parts `json` and `weights.npy` of a question about a picture of this colour."""
    other = COLOURS[(colour + 1 + int(rng.integers(len(COLOURS) - 1))) % len(COLOURS)]
    return {
        "json": {"question": _QUESTION, "answers": [COLOURS[colour], f"not {other}"]},
        "weights.npy": np.array([0.75, 0.25], dtype=np.float32),
    }
