"""Decoding, field maps, batching and sample types against the real Megatron-Energon, in its own interpreter."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from energon_peer import needs_energon, run_there
from PIL import Image

from energon_grain import (
    CaptioningSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    SampleDecoder,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
    concat_pad,
    generic_batch,
)
from energon_grain.errors import DecodingError
from energon_grain.transforms.field_map import Option, parse_expression
from energon_grain.transforms.image import IMAGE_MODES
from energon_grain.transforms.media_types import media_extension

pytestmark = needs_energon

PRELUDE = """
import io, pickle, sys
import numpy as np
import PIL.Image, torch
import megatron.energon

def plain(value):
    "Tensors as arrays, images as their pixels, everything else as it is, with its type."
    if isinstance(value, torch.Tensor):
        return ("array", value.numpy())
    if isinstance(value, np.ndarray):
        return ("array", np.array(value))
    if isinstance(value, PIL.Image.Image):
        return ("image", value.mode, np.array(value))
    if isinstance(value, dict):
        return ("dict", [(key, plain(entry)) for key, entry in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(entry) for entry in value])
    return (type(value).__name__, value)

def attempt(function):
    try:
        return plain(function())
    except Exception as error:
        return ("error", type(error).__name__)

given = pickle.load(open(sys.argv[1], "rb"))
"""


def ask_energon(tmp_path: Path, program: str, given: Any) -> Any:
    """What `program`, which sets `answer` from `given`, finds in the environment of Energon."""
    (tmp_path / "given").write_bytes(pickle.dumps(given))
    script = f"{PRELUDE}\n{program}\npickle.dump(answer, open(sys.argv[2], 'wb'), protocol=4)\n"
    run_there("-c", script, tmp_path / "given", tmp_path / "answer")
    return pickle.loads((tmp_path / "answer").read_bytes())


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ("array", value)
    if isinstance(value, Image.Image):
        return ("image", value.mode, np.array(value))
    if isinstance(value, dict):
        return ("dict", [(key, plain(entry)) for key, entry in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(entry) for entry in value])
    return (type(value).__name__, value)


def attempt(function: Any) -> Any:
    try:
        return plain(function())
    except DecodingError:
        return ("error", "DecodingError")


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, np.ndarray):
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and np.array_equal(ours, theirs)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return type(ours) is type(theirs) and ours == theirs


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def image_files() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    rgba = Image.fromarray(rng.integers(0, 256, (5, 7, 4), np.uint8)).resize((31, 19))
    rgb = rgba.convert("RGB")
    return {
        "a.jpg": encoded(rgb, "JPEG"),
        "b.jpg": encoded(rgb, "JPEG", progressive=True, quality=30, subsampling=1),
        "c.JPEG": encoded(rgb.convert("L"), "JPEG"),
        "d.jpe": encoded(rgb.convert("CMYK"), "JPEG"),
        "e.png": encoded(rgba, "PNG"),
        "f.png": encoded(rgb.quantize(8), "PNG"),
        "g.left.png": encoded(rgba.convert("LA"), "PNG"),
        "h.png": encoded(rgb.convert("1"), "PNG"),
        "i.webp": encoded(rgba, "WEBP"),
        "j.png.gz": gzip.compress(encoded(rgb, "PNG")),
        "k.jpg": b"no image",
        "l.jpg": encoded(rgb, "JPEG")[:300],
        "m.png": encoded(Image.fromarray(rng.integers(0, 65536, (4, 4), np.uint16)), "PNG"),
    }


def other_files() -> dict[str, bytes]:
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, np.arange(6.0).reshape(2, 3))
    np.savez(npz, a=np.arange(3), b=np.ones(1))
    return {
        "a.txt": "ä text".encode(),
        "a.transcript": b"x",
        "a.TXT": b"x",
        "a.cls": b" 12\n",
        "b.cls": b"1.5",
        "a.json": b'{"b": [1, 2.5, null, NaN, "\\ud800"], "a": 123456789012345678901234567890}',
        "b.json": b"{",
        "a.x.jsn": b"[]",
        "a.npy": npy.getvalue(),
        "a.npz": npz.getvalue(),
        "b.npy": b"x",
        "a.txt.gz": gzip.compress(b"x"),
        "a.gz": gzip.compress(b"x"),
        "b.txt.gz": b"x",
        "a.unknown": b"x",
        "a": b"x",
        "a.": b"x",
        ".txt": b"x",
        "d/e.f/a.b.txt": b"x",
        "c.txt": b"\xff",
    }


def test_decoded_values_of_all_image_modes(tmp_path: Path):
    files = {**image_files(), **other_files()}
    modes = list(IMAGE_MODES)
    theirs = ask_energon(
        tmp_path,
        """
answer = {}
for mode in given["modes"]:
    decoder = megatron.energon.SampleDecoder(image_decode=mode)
    for name, data in given["files"].items():
        answer[mode, name] = attempt(lambda: decoder.decode(name, data))
""",
        {"files": files, "modes": modes},
    )
    for mode in modes:
        decoder = SampleDecoder(image_decode=mode)  # type: ignore[arg-type]
        for name, data in files.items():
            ours = attempt(lambda name=name, data=data, decoder=decoder: decoder.decode(name, data))
            if name == "a.json":  # NaN is not equal to itself
                ours, theirs[mode, name] = repr(ours), repr(theirs[mode, name])
            assert same(ours, theirs[mode, name]), (mode, name)


def test_guessed_contents(tmp_path: Path):
    files = {f"{name}.bin": data for name, data in image_files().items()} | other_files()
    theirs = ask_energon(
        tmp_path,
        """
decoder = megatron.energon.SampleDecoder(image_decode="rgb8", guess_content=True)
answer = {name: attempt(lambda: decoder.decode(name, data)) for name, data in given.items()}
""",
        files,
    )
    decoder = SampleDecoder(image_decode="rgb8", guess_content=True)
    for name, data in files.items():
        ours = attempt(lambda name=name, data=data: decoder.decode(name, data))
        assert name == "a.json" or same(ours, theirs[name]), name


def test_media_are_told_from_their_first_bytes_alike(tmp_path: Path):
    matroska = b"\x1aE\xdf\xa3\xa3B\x86\x81\x01B\xf7\x81\x01B\xf2\x81\x04B\xf3\x81\x08B\x82"
    heads = [
        b"GIF89a", b"II*\0", b"MM\0*", b"8BPS", b"\0\0\1\0", b"fLaC", b"FLV\1", b"ID3", b"\xff\xfb",
        b"RIFF\0\0\0\0WEBPVP8 ", b"RIFF\0\0\0\0WAVE", b"RIFF\0\0\0\0AVI ", b"text", b"",
        b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", b"\0\0\0\x14ftypqt  \0\0\0\0qt  ",
        matroska + b"\x84webm", matroska + b"\x88matroska",
    ]  # fmt: skip
    heads = [head.ljust(400, b"\0") for head in heads]
    theirs = ask_energon(
        tmp_path,
        """
import filetype
answer = [kind.extension if kind else None for kind in map(filetype.guess, given)]
""",
        heads,
    )
    assert [media_extension(head) for head in heads] == theirs


EXPRESSIONS = [
    "jpg", "png,jpg", "json[a]", "json[a][0]", "json[a][7]", "json[a][x],jpg", "json[s][0],jpg", "json[s][0]",
    "json[no]", "no", "json[a][-1]", "list[1]", "list[ 1 ]", "json[a b]", "json[c[0]]", "json[]", "json[a", "__key__",
    "json[0]", "a.b[c][d]", " jpg",
]  # fmt: skip


def test_field_maps(tmp_path: Path):
    parts = {"__key__": "k", "jpg": b"j", "list": [1, 2], "json": {"a": ["x", "y"], "s": "t", "a b": 1, "0": "zero"}}
    theirs = ask_energon(
        tmp_path,
        """
from megatron.energon.flavors.webdataset.field_access import field_access, split_field_access
splits = [split_field_access(expression) for expression in given["expressions"]]
answer = [(split, attempt(lambda: field_access(given["parts"], split))) for split in splits]
""",
        {"expressions": EXPRESSIONS, "parts": parts},
    )
    for expression, (split, value) in zip(EXPRESSIONS, theirs, strict=True):
        options = parse_expression(expression)
        assert [[option.part, *option.access] for option in options] == split
        ours = attempt_options(options, parts)
        assert ours[0] == value[0] == "error" or same(ours, value), expression


def attempt_options(options: tuple[Option, ...], parts: dict[str, Any]) -> Any:
    for option in options:
        try:
            return plain(option.follow(parts))
        except (LookupError, ValueError):
            continue
    return ("error", "")


def test_batching(tmp_path: Path):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 9, (i, 4 - i)).astype(np.float32) for i in (1, 2, 3)]
    samples = [{"a": array, "n": i, "t": str(i), "d": {"b": array[0], "x": (i,)}} for i, array in enumerate(arrays)]
    theirs = ask_energon(
        tmp_path,
        """
from megatron.energon.task_encoder.base import generic_batch
from megatron.energon.wrappers.mix_batch_dataset import concat_pad
def tensors(value):
    if isinstance(value, dict):
        return {key: tensors(entry) for key, entry in value.items()}
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
samples = [tensors(sample) for sample in given]
answer = (plain(generic_batch(samples)), plain(concat_pad([sample["a"] for sample in samples])))
""",
        samples,
    )
    assert same(plain(generic_batch(samples)), theirs[0])
    assert same(plain(concat_pad(arrays)), theirs[1])


def test_sample_types_have_the_same_fields(tmp_path: Path):
    types = [
        TextSample, ImageSample, CaptioningSample, ImageClassificationSample, VQASample, MultiChoiceVQASample,
        VidQASample, OCRSample, VQAOCRSample, InterleavedSample, SimilarityInterleavedSample,
    ]  # fmt: skip
    theirs = ask_energon(
        tmp_path,
        """
import dataclasses
from megatron.energon.flavors.vqa_and_ocr import VQAOCRSample
describe = lambda f: [f.name, f.kw_only, "required" if f.default is dataclasses.MISSING else repr(f.default)]
types = {name: getattr(megatron.energon, name, VQAOCRSample) for name in given}
answer = {name: [describe(field) for field in dataclasses.fields(kind)] for name, kind in types.items()}
""",
        [kind.__name__ for kind in types],
    )
    for kind in types:
        ours = [
            [f.name, f.kw_only, "required" if f.default is dataclasses.MISSING else repr(f.default)]
            for f in dataclasses.fields(kind)
            if f.name != "__valid__"  # the mask of padded batches is ours
        ]
        assert json.loads(json.dumps(theirs[kind.__name__])) == ours
