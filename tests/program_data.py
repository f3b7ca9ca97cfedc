"""The datasets that the programs in `programs/` read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars
from energon_grain.testing.datasets import COLOURS, draw_picture, encode_picture

TWO_TO_ONE = {"train": 2, "val": 1}
TRAIN = {"train": 1}


def make_data(root: Path) -> None:
    """Write all of them below `root`, a few kilobytes each."""
    for name, n in (("coco", 60), ("coyo", 30)):
        write(root / name, (captioned(name, i) for i in range(n)), TWO_TO_ONE, **CAPTIONING)
    sizes = ((32, 48), (48, 32), (40, 40))
    write(root / "shapes", (captioned("shapes", i, sizes[i % 3]) for i in range(30)), TRAIN, **CAPTIONING)
    texts = [{"__key__": f"crude_{i:03d}", "txt": f"text {i}", "json": {"number": i}} for i in range(30)]
    write(root / "crude", texts, TWO_TO_ONE, crude=True)
    write_tars(root / "bare", texts[:12], shards=3)
    make_stories(root)
    make_composed(root)
    make_joinable(root)


CAPTIONING: dict[str, Any] = {"sample_type": "CaptioningSample", "field_map": {"image": "jpg", "caption": "txt"}}
TEXT: dict[str, Any] = {"sample_type": "TextSample", "field_map": {"text": "txt"}}


def captioned(name: str, i: int, size: tuple[int, int] = (32, 48)) -> dict[str, Any]:
    colour = i % len(COLOURS)
    picture = draw_picture(np.random.default_rng(i), colour, size)
    caption = f"Something {COLOURS[colour]} in {name}" + " and more" * (i % 4) + "."
    return {"__key__": f"{name}_{i:03d}", "jpg": encode_picture(picture, "JPEG"), "txt": caption}


def write(root: Path, samples: Iterable[Mapping[str, Any]], split: Mapping[str, float], **options: Any) -> None:
    write_tars(root, samples, shards=3)
    prepare_dataset(root, split_ratio=split, num_workers=0, **options)


def make_stories(root: Path) -> None:
    """`stories` name files of `photos`, a dataset, and of `authors`, a folder."""
    stories = [
        {
            "__key__": f"stories_{i:03d}",
            "txt": f"Story {i}" + "!" * (i % 5),
            "json": {"photo": f"photos_{i % 8:03d}.jpg", "author": f"{i % 2}.txt"},
        }
        for i in range(24)
    ]
    write(root / "stories", stories, TRAIN, crude=True)
    write(root / "photos", (captioned("photos", i) for i in range(8)), TRAIN, crude=True)
    (root / "authors").mkdir()
    for number, name in enumerate(("Ada", "Grace")):
        (root / "authors" / f"{number}.txt").write_text(name)


def make_composed(root: Path) -> None:
    """Samples of several parts: `pages` of lines in boxes, and `interleaved` texts and pictures."""
    pixels = encode_picture(np.zeros((8, 8, 3), np.uint8), "JPEG")
    lines = [{"bbox": [0, 4 * i, 8, 4], "text": f"line {i}"} for i in range(2)]
    page = {"jpg": pixels, "bbox.json": lines, "gt.txt": "line 0\nline 1", "notes.txt": "not read"}
    write(root / "pages", ({"__key__": f"pages_{i}", **page} for i in range(6)), TRAIN, crude=True)
    order = {"images": [None, "a1.jpg", None], "texts": ["before", None, "after"]}
    story = {"a1.jpg": pixels, "json": order}
    write(root / "interleaved", ({"__key__": f"interleaved_{i}", **story} for i in range(6)), TRAIN, crude=True)


def make_joinable(root: Path) -> None:
    """`ds1` and `ds2` have all keys in common, `few1` to `few3` some."""
    grey = [{"__key__": f"{i:03d}", "png": picture_of(10 * i), "txt": f"about {10 * i}"} for i in range(20)]
    black = [{**sample, "png": picture_of(0)} for sample in grey]
    fields = {"image": "png", "caption": "txt"}
    write(root / "ds1", black, TRAIN, sample_type="CaptioningSample", field_map=fields)
    write(root / "ds2", reversed(grey), TRAIN, sample_type="ImageSample", field_map={"image": "png"})
    for name, numbers in (("few1", (1, 2, 3, 5, 6)), ("few2", (1, 3, 4, 6, 7)), ("few3", (1, 2, 3, 100))):
        write(root / name, ({"__key__": f"s{i}", "txt": f"s{i} of {name}"} for i in numbers), TRAIN, **TEXT)


def picture_of(level: int) -> bytes:
    return encode_picture(np.full((4, 4, 3), level, np.uint8), "PNG")
