"""Datasets of questions about pictures and videos."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from energon_grain.testing.dataset_folder import Options, Recipe, write_dataset
from energon_grain.testing.image_datasets import SMALL
from energon_grain.testing.pictures import COLOURS, Size, draw_picture, encode_picture

_HAS_INDEX, _KEY_FRAME = 0x10, 0x10


def encode_avi(pictures: Sequence[bytes], size: tuple[int, int], *, frames_per_second: int) -> bytes:
    """Return an AVI file that shows JPEG pictures one after the other.

    The layout follows Microsoft's description of RIFF AVI 1.0: headers, frames, and an index of the frames.

    Args:
        pictures: JPEG files, all of one size.
        size: Height and width.
        frames_per_second: How fast they are shown.
    """
    height, width = size
    largest = max(len(picture) for picture in pictures)
    main = struct.pack(
        "<14I", 1_000_000 // frames_per_second, largest * frames_per_second, 0, _HAS_INDEX, len(pictures), 0, 1,
        largest, width, height, 0, 0, 0, 0,
    )  # fmt: skip
    stream = struct.pack(
        "<4s4sIHHIIIIIIII4H", b"vids", b"MJPG", 0, 0, 0, 0, 1, frames_per_second, 0, len(pictures), largest, 0xFFFFFFFF,
        0, 0, 0, width, height,
    )  # fmt: skip
    bitmap = struct.pack("<IiiHH4sIiiII", 40, width, height, 1, 24, b"MJPG", 3 * width * height, 0, 0, 0, 0)
    headers = _list(b"hdrl", _chunk(b"avih", main) + _list(b"strl", _chunk(b"strh", stream) + _chunk(b"strf", bitmap)))
    frames = b""
    index = b""
    for picture in pictures:
        index += struct.pack("<4sIII", b"00dc", _KEY_FRAME, 4 + len(frames), len(picture))
        frames += _chunk(b"00dc", picture)
    content = b"AVI " + headers + _list(b"movi", frames) + _chunk(b"idx1", index)
    return _chunk(b"RIFF", content)


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def _list(name: bytes, content: bytes) -> bytes:
    return _chunk(b"LIST", name + content)


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
