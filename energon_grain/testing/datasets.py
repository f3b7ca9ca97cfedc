# SPDX-License-Identifier: Apache-2.0
"""Datasets of made-up samples: sentences, pictures, both in sequences, questions about pictures and videos, pages."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt

from energon_grain.cooking.cooker import basic_sample_keys
from energon_grain.datasets.hooks import stateless
from energon_grain.samples.types import InterleavedSample
from energon_grain.testing.dataset_folder import Options, Recipe, write_dataset

Size = tuple[int, int]
SMALL: Size = (32, 48)
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
    """Draw a picture in one of `COLOURS` on black: a gradient with noise, which compresses like a photograph.

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


_VOCABULARY = (
    "a,the,one,some,every,old,new,small,bright,quiet,river,mountain,teacher,garden,window,letter,morning,engine,"
    "crosses,finds,follows,opens,paints,carries,remembers,counts,between,under,over,beside,without,several,stones,"
    "birds,houses,questions,answers,größe,façade,naïve,東京,лес"
)
_WORDS = _VOCABULARY.split(",")


def make_sentence(rng: np.random.Generator, least: int = 4, most: int = 12) -> str:
    """Return a sentence of `least` to `most` words, some of them not ASCII."""
    count = int(rng.integers(least, most + 1))
    return " ".join(_WORDS[int(place)] for place in rng.integers(0, len(_WORDS), count)).capitalize() + "."


def make_text(rng: np.random.Generator, least_bytes: int) -> str:
    """Return sentences of at least `least_bytes` bytes in total, in UTF-8, and less than 120 bytes more."""
    sentences: list[str] = []
    size = 0
    while size < least_bytes or not sentences:
        sentences.append(make_sentence(rng))
        size += len(sentences[-1].encode()) + 1
    return " ".join(sentences)


def make_text_dataset(root: str | os.PathLike[str], *, text_bytes: int = 100, **options: Unpack[Options]) -> Path:
    """Write `TextSample`s: a part `txt` of at least `text_bytes` bytes, and a part `json` with facts about it."""
    recipe = Recipe(parts=_text_parts(text_bytes), breaks="txt", sample_type="TextSample", field_map={"text": "txt"})
    return write_dataset(root, recipe, **options)


def make_crude_dataset(root: str | os.PathLike[str], *, text_bytes: int = 100, **options: Unpack[Options]) -> Path:
    """Write a crude dataset with the parts `txt` and `json`, to be cooked by the task encoder."""
    return write_dataset(root, Recipe(parts=_text_parts(text_bytes), breaks="json"), **options)


def make_blob_dataset(root: str | os.PathLike[str], *, sample_bytes: int = 1000, **options: Unpack[Options]) -> Path:
    """Write a crude dataset with one part `bin` of `sample_bytes` random bytes, which cannot be broken."""

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        return {"bin": rng.bytes(sample_bytes)}

    return write_dataset(root, Recipe(parts=parts, breaks=None), **options)


def _text_parts(text_bytes: int) -> Any:
    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        text = make_text(rng, text_bytes)
        return {"txt": text, "json": {"number": i, "words": len(text.split()), "score": round(rng.random(), 6)}}

    return parts


_TYPES = frozenset(("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))


def encode_tensors(arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """Return a tensor binary with these arrays. For the layout, see `transforms.decode.decode_tenbin`.

    Raises ValueError if the format does not support the type of an array.
    """
    return b"".join(
        _tenbin_chunk(_header(array)) + _tenbin_chunk(np.ascontiguousarray(array).tobytes()) for array in arrays
    )


def _header(array: npt.NDArray[Any]) -> bytes:
    name = array.dtype.str[1:]
    if name not in _TYPES:
        raise ValueError(f"tensor binaries do not support arrays of {array.dtype}")
    return struct.pack(f"<8s8sq{array.ndim}q", name.encode(), b"", array.ndim, *array.shape)


def _tenbin_chunk(content: bytes) -> bytes:
    padding = -len(content) % 64
    return b"~TenBin~" + struct.pack("<q", len(content)) + content + b"\0" * padding


def make_interleaved_dataset(
    root: str | os.PathLike[str], *, image_size: Size = SMALL, **options: Unpack[Options]
) -> Path:
    """Write pages of texts and pictures: parts `0.jpg`, `1.jpg` …, and `json` with the order.

    `json[sequence]` contains texts directly and pictures as `{"part": "0.jpg"}`. A field map cannot make an
    `InterleavedSample` from that, so the dataset is crude; use `Cooker(cook_interleaved)`.
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
    """Write `SimilarityInterleavedSample`s of a few pictures and texts.

    The pictures, uint8 (3, height, width), are a tensor binary `images.ten`, their similarities to the texts are
    `similarity.npy`. The texts and the best match of each picture are in `json`.
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


_HAS_INDEX, _KEY_FRAME = 0x10, 0x10


def encode_avi(pictures: Sequence[bytes], size: tuple[int, int], *, frames_per_second: int) -> bytes:
    """Return an AVI file that shows JPEG pictures in sequence.

    The layout follows Microsoft's description of RIFF AVI 1.0: headers, frames, and an index of the frames.
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
    headers = _list(
        b"hdrl",
        _riff_chunk(b"avih", main) + _list(b"strl", _riff_chunk(b"strh", stream) + _riff_chunk(b"strf", bitmap)),
    )
    frames = b""
    index = b""
    for picture in pictures:
        index += struct.pack("<4sIII", b"00dc", _KEY_FRAME, 4 + len(frames), len(picture))
        frames += _riff_chunk(b"00dc", picture)
    content = b"AVI " + headers + _list(b"movi", frames) + _riff_chunk(b"idx1", index)
    return _riff_chunk(b"RIFF", content)


def _riff_chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def _list(name: bytes, content: bytes) -> bytes:
    return _riff_chunk(b"LIST", name + content)


_QUESTION = "Which colour do you see?"
_ANSWERS = {"context": "json[question]", "answers": "json[answers]", "answer_weights": "weights.npy"}


def make_vqa_dataset(root: str | os.PathLike[str], *, image_size: Size = SMALL, **options: Unpack[Options]) -> Path:
    """Write `VQASample`s: a part `jpg`, a question with two answers in `json`, and their weights in `weights.npy`."""

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        colour = int(rng.integers(len(COLOURS)))
        return {"jpg": encode_picture(draw_picture(rng, colour, image_size), "JPEG"), **question_parts(colour, rng)}

    recipe = Recipe(parts=parts, breaks="jpg", sample_type="VQASample", field_map={"image": "jpg", **_ANSWERS})
    return write_dataset(root, recipe, **options)


def make_multi_choice_vqa_dataset(
    root: str | os.PathLike[str], *, image_size: Size = SMALL, **options: Unpack[Options]
) -> Path:
    """Write `MultiChoiceVQASample`s: a part `jpg`; a question, four choices and the correct position in `json`."""

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
    """Write `VidQASample`s: a part `avi` with a short Motion JPEG video, and the other parts of `make_vqa_dataset`.

    Videos are decoded when a program requests frames, so a broken video would fail only then. Broken samples here have
    broken questions.
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


PAGE: Size = (64, 96)
_WORD_FIELDS = {"words_boxes": "words.npy", "words_text": "json[words]"}


def make_ocr_dataset(root: str | os.PathLike[str], *, image_size: Size = PAGE, **options: Unpack[Options]) -> Path:
    """Write `OCRSample`s: a page as `png` and its text as `txt`.

    Its words, lines and single block are in `json`, their boxes (x, y, width, height; for words with a confidence) in
    `words.npy`, `lines.npy` and `block.npy`. There are no characters, so these fields stay None.
    """

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        page = _Page(rng, image_size)
        return {
            **page.word_parts(),
            "json": {"words": page.words, "lines": page.lines, "block": [page.text], "classes": ["paragraph"]},
            "lines.npy": page.line_boxes(),
            "block.npy": np.array([[0, 0, image_size[1], image_size[0]]], dtype=np.float32),
        }

    field_map = {
        "image": "png",
        "text": "txt",
        "block_boxes": "block.npy",
        "block_classes": "json[classes]",
        "block_text": "json[block]",
        "lines_boxes": "lines.npy",
        "lines_text": "json[lines]",
        **_WORD_FIELDS,
    }
    recipe = Recipe(parts=parts, breaks="png", sample_type="OCRSample", field_map=field_map)
    return write_dataset(root, recipe, **options)


def make_vqa_ocr_dataset(root: str | os.PathLike[str], *, image_size: Size = PAGE, **options: Unpack[Options]) -> Path:
    """Write `VQAOCRSample`s: page, text and words of `make_ocr_dataset`, and a question of `make_vqa_dataset`."""

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        page = _Page(rng, image_size)
        question = question_parts(i % 10, rng)
        return {**page.word_parts(), **question, "json": {"words": page.words, **question["json"]}}

    field_map = {
        "image": "png",
        "context": "json[question]",
        "text": "txt",
        "answers": "json[answers]",
        "answer_weights": "weights.npy",
        **_WORD_FIELDS,
    }
    recipe = Recipe(parts=parts, breaks="png", sample_type="VQAOCRSample", field_map=field_map)
    return write_dataset(root, recipe, **options)


class _Page:
    """Two to four lines of words, each drawn as a dark bar."""

    def __init__(self, rng: np.random.Generator, size: Size) -> None:
        self._rng, self._size = rng, size
        self.lines = [make_sentence(rng, 2, 4) for _ in range(int(rng.integers(2, 5)))]
        self.text = "\n".join(self.lines)
        self.words = self.text.split()

    def word_parts(self) -> dict[str, Any]:
        boxes = self._word_boxes()
        page = np.full((*self._size, 3), 250, dtype=np.uint8)
        for x, y, width, height in boxes[:, :4].astype(int):
            page[y : y + height, x : x + width] = 30
        return {"png": encode_picture(page, "PNG"), "txt": self.text, "words.npy": boxes}

    def line_boxes(self) -> npt.NDArray[np.float32]:
        height = self._size[0] // len(self.lines)
        rows = [(0, number * height, self._size[1], height) for number in range(len(self.lines))]
        return np.array(rows, dtype=np.float32)

    def _word_boxes(self) -> npt.NDArray[np.float32]:
        height = self._size[0] // len(self.lines)
        rows: list[tuple[float, ...]] = []
        for number, line in enumerate(self.lines):
            step = self._size[1] / len(line.split())
            for place in range(len(line.split())):
                rows.append((place * step, number * height + 2, step - 2, height - 4, self._rng.uniform(0.5, 1)))  # noqa: PERF401
        return np.array(rows, dtype=np.float32)


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
    """Write `ImageClassificationSample`s: a part `png`, its class as `cls`, and the class name as `json`.

    There are ten classes of equal frequency, the colours of the pictures: easy to learn.
    """

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        colour = i % len(COLOURS)
        picture = encode_picture(draw_picture(rng, colour, image_size), "PNG")
        return {"png": picture, "cls": colour, "json": {"name": COLOURS[colour]}}

    field_map = {"image": "png", "label": "cls", "label_name": "json[name]"}
    recipe = Recipe(parts=parts, breaks="png", sample_type="ImageClassificationSample", field_map=field_map)
    return write_dataset(root, recipe, **options)
