"""Datasets of pictures and texts in sequences."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.cooker import basic_sample_keys
from energon_grain.datasets.hooks import stateless
from energon_grain.samples.types import InterleavedSample
from energon_grain.testing.dataset_folder import Options, Recipe, write_dataset
from energon_grain.testing.image_datasets import SMALL
from energon_grain.testing.pictures import COLOURS, Size, draw_picture, encode_picture
from energon_grain.testing.sentences import make_sentence

_TYPES = frozenset(("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))


def encode_tensors(arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """Return a tensor binary with these arrays. `transforms.decode.decode_tenbin` describes the layout.

    Raises:
        ValueError: The format has no such type of array.
    """
    return b"".join(_chunk(_header(array)) + _chunk(np.ascontiguousarray(array).tobytes()) for array in arrays)


def _header(array: npt.NDArray[Any]) -> bytes:
    name = array.dtype.str[1:]
    if name not in _TYPES:
        raise ValueError(f"Tensor binaries hold no arrays of {array.dtype}")
    return struct.pack(f"<8s8sq{array.ndim}q", name.encode(), b"", array.ndim, *array.shape)


def _chunk(content: bytes) -> bytes:
    padding = -len(content) % 64
    return b"~TenBin~" + struct.pack("<q", len(content)) + content + b"\0" * padding


def make_interleaved_dataset(
    root: str | os.PathLike[str], *, image_size: Size = SMALL, **options: Unpack[Options]
) -> Path:
    """Write pages of texts and pictures: parts `0.jpg`, `1.jpg` …, and `json` with the order of all.

    `json[sequence]` holds texts as they are and pictures as `{"part": "0.jpg"}`. No field map can make an
    `InterleavedSample` of that, so the dataset is crude: `Cooker(cook_interleaved)` does it.
    """

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        pictures: dict[str, bytes] = {}
        sequence: list[Any] = [make_sentence(rng)]
        for number in range(int(rng.integers(1, 4))):
            colour = int(rng.integers(len(COLOURS)))
            pictures[f"{number}.jpg"] = encode_picture(draw_picture(rng, colour, image_size), "JPEG")
            sequence += [{"part": f"{number}.jpg"}, f"Something {COLOURS[colour]}."]
        return {**pictures, "json": {"sequence": sequence}}

    return write_dataset(root, Recipe(parts=parts, breaks="0.jpg"), **options)


@stateless
def cook_interleaved(crude: Mapping[str, Any]) -> InterleavedSample:
    """Cook a sample of `make_interleaved_dataset`."""
    sequence = [item if isinstance(item, str) else crude[item["part"]] for item in crude["json"]["sequence"]]
    return InterleavedSample(**basic_sample_keys(crude), sequence=sequence)


def make_similarity_interleaved_dataset(
    root: str | os.PathLike[str], *, image_size: Size = (8, 8), **options: Unpack[Options]
) -> Path:
    """Write `SimilarityInterleavedSample`s of some pictures and texts.

    The pictures, uint8 (3, height, width), are a tensor binary `images.ten`, their similarities to the texts
    `similarity.npy`; the texts and the best match of each picture are in `json`.
    """

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        pictures, texts = int(rng.integers(1, 4)), int(rng.integers(2, 5))
        drawn = [draw_picture(rng, int(rng.integers(len(COLOURS))), image_size) for _ in range(pictures)]
        similarity = rng.random((pictures, texts), dtype=np.float32)
        return {
            "images.ten": encode_tensors([picture.transpose(2, 0, 1) for picture in drawn]),
            "similarity.npy": similarity,
            "json": {
                "texts": [make_sentence(rng) for _ in range(texts)],
                "matched": similarity.argmax(axis=1).tolist(),
            },
        }

    field_map = {
        "images": "images.ten",
        "texts": "json[texts]",
        "similarity_matrix": "similarity.npy",
        "matched_text_indices": "json[matched]",
    }
    recipe = Recipe(parts=parts, breaks="json", sample_type="SimilarityInterleavedSample", field_map=field_map)
    return write_dataset(root, recipe, **options)
