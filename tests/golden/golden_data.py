"""The data that the golden configurations read: written anew each time, the same bytes wherever.

Nothing in it depends on the version of a library that encodes pictures: PNG files are written here, uncompressed.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from energon_grain import prepare_metadataset
from energon_grain.conversion import convert_dataset
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

_WORDS = ["a", "lane", "owns", "every", "position", "that", "falls", "to", "it", "and", "no", "other", "one", "ever"]


def write_all(root: Path) -> None:
    """Every dataset and metadataset, below `root`; the current folder must be `root` where they are used."""
    for name, n, shards in (("web", 500, 10), ("books", 120, 4), ("code", 61, 3), ("val", 45, 3)):
        _texts(root / name, n, shards)
    _crude(root / "crude", 90)
    _images(root / "images", 80)
    write_tars(root / "bare", [{"__key__": f"{i:03d}", "txt": f"text {i}"} for i in range(70)], shards=4)
    _halves(root)
    _jsonl(root / "lines.jsonl", 70)
    convert_dataset(root / "books", root / "records")
    write_digits(root / "digits.zarr")
    for name, content in DOCUMENTS.items():
        (root / name).write_text("__module__: megatron.energon\n" + content)
    for name in ("join.yaml", "blended_join.yaml"):
        prepare_metadataset(root / name)


def _texts(folder: Path, n: int, shards: int, **options: Any) -> None:
    write_tars(folder, _text_samples(n), shards=shards)
    prepare_dataset(
        folder, split_ratio={"train": 1}, num_workers=0, sample_type="TextSample", field_map={"text": "txt"}, **options
    )


def _text_samples(n: int) -> Iterator[dict[str, Any]]:
    for i in range(n):
        length = 2 + (i * 7919) % 23
        yield {"__key__": f"{i:05d}", "txt": " ".join(_WORDS[(i + j) % len(_WORDS)] for j in range(length))}


def _crude(folder: Path, n: int) -> None:
    samples = [
        {"__key__": f"c/{i:04d}", "txt": f"text {i}", "json": {"n": i, "side": f"{i % 7}.txt"}, "npy": np.arange(i % 5)}
        for i in range(n)
    ]
    write_tars(folder, samples, shards=3)
    prepare_dataset(folder, split_ratio={"train": 1}, num_workers=0, crude=True)
    side = folder.parent / "sides"
    side.mkdir()
    for number in range(7):
        (side / f"{number}.txt").write_text(f"side {number}")


def _images(folder: Path, n: int) -> None:
    pixels = np.random.Generator(np.random.PCG64(7))
    samples = [
        {
            "__key__": f"{i:04d}",
            "png": _png(pixels.integers(0, 256, (6 + i % 3, 8, 3), np.uint8)),
            "txt": f"picture {i}",
        }
        for i in range(n)
    ]
    samples[11]["png"] = b"no picture"
    samples[42]["png"] = samples[42]["png"][:60]
    write_tars(folder, samples, shards=4)
    prepare_dataset(
        folder,
        split_ratio={"train": 1},
        num_workers=0,
        sample_type="CaptioningSample",
        field_map={"image": "png", "caption": "txt"},
    )


def _png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """PNG, RFC 2083, with a deflate stream of stored blocks (level 0)."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")


def _halves(root: Path) -> None:
    """Two datasets that share two thirds of their keys, in different orders."""
    for name, step, text in (("left", 1, "left"), ("right", 7, "right")):
        keys = [(i * step) % 90 for i in range(90)]
        keys = [key for key in keys if key % 3 != (0 if name == "right" else 3)]
        write_tars(root / name, [{"__key__": f"{key:03d}", "txt": f"{text} {key}"} for key in keys], shards=2)
        prepare_dataset(
            root / name, split_ratio={"train": 1}, num_workers=0, sample_type="TextSample", field_map={"text": "txt"}
        )


def _jsonl(path: Path, n: int) -> None:
    path.write_text("".join(json.dumps({"n": i, "text": f"line {i}"}) + "\n" for i in range(n)))


def write_digits(group: Path) -> None:
    """A group of two zarr v2 arrays, written by hand: uncompressed chunks of 16 rows."""
    group.mkdir()
    (group / ".zgroup").write_text('{"zarr_format": 2}')
    values = {
        "image": (np.arange(64 * 4) % 251).astype("u1").reshape(64, 2, 2),
        "label": (np.arange(64) % 10).astype("<i4"),
    }
    for name, array in values.items():
        (group / name).mkdir()
        chunks = [16, *array.shape[1:]]
        metadata = {
            "zarr_format": 2,
            "shape": array.shape,
            "chunks": chunks,
            "dtype": array.dtype.str,
            "compressor": None,
            "fill_value": 0,
            "order": "C",
            "filters": None,
        }
        (group / name / ".zarray").write_text(json.dumps(metadata))
        for number in range(4):
            place = ".".join([str(number), *("0" for _ in array.shape[1:])])
            (group / name / place).write_bytes(array[16 * number : 16 * number + 16].tobytes())


DOCUMENTS = {
    "costs.yaml": """
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: web}
      - {path: books, where: bytes.txt > 20}
      - blend: [{path: code, weight: 3}, {path: web, weight: 1, name: again}]
    weight_unit: bytes.txt
    schedule:
      - {from_position: 0, weights: [2, 1, 1]}
      - {from_position: 300, weights: [1, 0, 2]}
""",
    "blend.yaml": """
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: web, weight: 6}
      - {path: books, weight: 3, subflavors: {genre: prose}}
      - {path: code, weight: 1}
  val: {path: val, split_part: train}
""",
    "epochs.yaml": """
__class__: MetadatasetV2
splits:
  train:
    blend_epochized:
      - {path: web, repetitions: 0.7}
      - {path: books, repetitions: 2}
      - {repetitions: 1, concat: [{path: code}, {path: books}]}
""",
    "prose.yaml": """
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: books, weight: 3}
      - {path: web, weight: 1, subset: {range: [0%, 20%]}}
""",
    "nested.yaml": """
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: prose.yaml, weight: 40, subflavors: {genre: prose}}
      - weight: 60
        blend:
          - {path: web, weight: 2, subset: {range: [100, 400]}}
          - {path: code, weight: 1, name: code, shuffle_over_epochs_multiplier: 2}
""",
    "schedule.yaml": """
__class__: MetadatasetV2
splits:
  train:
    blend: [{path: web}, {path: books}, {path: code}]
    schedule:
      - {from_position: 0, weights: [1, 0, 0]}
      - {from_position: 600, weights: [3, 1, 1]}
      - {from_position: 1500, weights: [1, 2, 2]}
""",
    "concat.yaml": """
__class__: MetadatasetV2
splits:
  train:
    concat: [{path: books}, {path: code}]
""",
    "old.yaml": """
__class__: Metadataset
splits:
  train:
    datasets:
      - {path: web, weight: 2, subflavors: {a: 1}}
      - {path: books, weight: 1}
""",
    "join.yaml": """
__class__: MetadatasetV2
splits:
  train:
    join:
      - {path: left}
      - {path: right, nonmatch: skip}
    joiner: {__module__: golden.golden_hooks, __class__: Pair}
""",
    "blended_join.yaml": """
__class__: MetadatasetV2
splits:
  train:
    blend:
      - weight: 1
        join: {first: {path: left}, second: {path: right, nonmatch: none}}
        joiner: {__module__: golden.golden_hooks, __function__: joined_texts}
      - {path: books, weight: 1}
""",
    "aux.yaml": """
__class__: MetadatasetV2
splits:
  train:
    path: crude
    aux: {sides: filesystem://sides, texts: web}
""",
}
