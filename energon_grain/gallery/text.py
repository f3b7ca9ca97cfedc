# SPDX-License-Identifier: Apache-2.0
"""A preview in a terminal: pictures as half blocks, audio as outlines, videos as film strips, shortened texts.

Nothing that comes from data acts on the terminal: control characters are written out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.cells import cell_len, set_cell_size

from energon_grain.gallery.cards import Card, Contents
from energon_grain.gallery.fields import Shown
from energon_grain.gallery.tables import CountTable, tables_of
from energon_grain.words import table, visible

_LEAST = 24
"""Least width of a preview, in cells."""
_LEAST_BESIDE = 56
"""Least width to show decoded fields beside a part."""
_PICTURE_COLUMNS, _PICTURE_ROWS = 40, 16
_FRAME_ROWS = 8
_TEXT_LINES = 3
_BAR = 20
"""Width of the longest bar of a table."""
_LEVELS = " ▁▂▃▄▅▆▇█"
_GREYS = " .:-=+*#%@"
_INDENT = "    "
_GAP = " │ "
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""The escape sequences that this module writes."""


def lines_of(contents: Sequence[Contents], *, width: int, colours: bool) -> Iterator[str]:
    """Show one preview, or several side by side, line by line.

    Args:
        contents: The previews.
        width: Width of the terminal in cells; no line is wider.
        colours: Whether to draw pictures in 24-bit colours; else in letters.
    """
    width = max(width, _LEAST)
    for each in contents:
        yield _cut(f"{visible(each.title)}: {each.subtitle}", width)
    if len(contents[0].datasets) > 1:
        for dataset in contents[0].datasets:
            yield _cut(f"  {dataset.share:6.1%}  {visible(dataset.label)}, {dataset.samples:,} samples", width)
    for counts in tables_of(contents):
        yield from (_cut(line, width) for line in _table(counts))
    column = (width - len(_GAP) * (len(contents) - 1)) // len(contents)
    for row in zip_longest(*(each.cards for each in contents)):
        yield ""
        cards = [
            list(_card(each, card, column, colours)) if card else [] for each, card in zip(contents, row, strict=True)
        ]
        yield from _side_by_side(cards, column, _GAP)


def _table(counts: CountTable) -> Iterator[str]:
    """A table of counts; a single column has bars."""
    has_bars = len(counts.columns) == 1
    rows = [(counts.title, *counts.columns, "")]
    for name, numbers in counts.rows:
        bar = "█" * max(1, round(_BAR * numbers[0] / counts.most)) if has_bars else ""
        rows.append((f"  {name}", *(f"{number:,}" for number in numbers), bar))
    yield from ["", *table(rows, "<" + ">" * len(counts.columns) + "<")]
    if counts.left_out:
        yield f"    … and {counts.left_out:,} more"


def _side_by_side(blocks: Sequence[Sequence[str]], width: int, gap: str) -> Iterator[str]:
    """Blocks of lines in columns of this width."""
    if len(blocks) == 1:
        yield from blocks[0]
        return
    for row in zip_longest(*blocks, fillvalue=""):
        padded = [line + " " * (width - _cells(line)) for line in row]
        yield gap.join(padded).rstrip()


def _cells(line: str) -> int:
    return cell_len(_COLOURS.sub("", line))


def _card(contents: Contents, card: Card, width: int, colours: bool) -> Iterator[str]:
    several = len(contents.datasets) > 1
    label = f"{visible(contents.datasets[card.dataset].label)}/" if several else ""
    title = f"── {label}{visible(card.shard)}/{visible(card.key)} · {card.place} "
    cut = _cut(title, width)
    yield cut + "─" * (width - cell_len(cut))
    for field in card.fields:
        yield _cut(f"  {visible(field.heading) or '(sample)'}  {visible(field.note)}", width)
        for line in _part(field, width - len(_INDENT), colours):
            yield _INDENT + line


def _part(field: Shown, width: int, colours: bool) -> Iterator[str]:
    """A part, with its decoded fields beside it, or below it if the column is narrow."""
    if not field.decoded or width < _LEAST_BESIDE:
        yield from _drawn(field, width, colours)
        yield from (line for each in field.decoded for line in _decoded(each, width))
        return
    column = (width - len(_GAP)) // 2
    decoded = [line for each in field.decoded for line in _decoded(each, width - column - len(_GAP))]
    yield from _side_by_side([list(_drawn(field, column, colours)), decoded], column, _GAP)


def _decoded(field: Shown, width: int) -> Iterator[str]:
    if field.kind == "failed":
        yield from _wrapped(f"{visible(field.name)}: does not decode: {visible(field.text)}", width)
        return
    yield _cut(f"{visible(field.name)}: {visible(field.note)}", width)
    yield from _words(field, width)


def _drawn(field: Shown, width: int, colours: bool) -> Iterator[str]:
    match field.kind:
        case "picture":
            yield from _pixels(field.images[0], min(width, _PICTURE_COLUMNS), _PICTURE_ROWS, colours)
        case "film":
            yield from _strip(field.images, width, colours)
        case "sound":
            yield from [_outline(field.peaks, width)] if len(field.peaks) else []
        case "failed":
            yield _cut(f"does not decode: {visible(field.text)}", width)
        case _:
            yield from _words(field, width)


def _words(field: Shown, width: int) -> Iterator[str]:
    text = " ".join(field.text.split()) if field.kind == "json" else field.text
    lines = [visible(line) for line in text.split("\n")] if text else []
    wrapped = [piece for line in lines[: _TEXT_LINES + 1] for piece in _wrapped(line, width)]
    yield from wrapped[:_TEXT_LINES]
    if len(wrapped) > _TEXT_LINES or len(lines) > _TEXT_LINES + 1:
        yield "…"


def _wrapped(line: str, width: int) -> Iterator[str]:
    """The first pieces of a line, at most one more than are shown."""
    for _ in range(_TEXT_LINES + 1):
        piece = line if cell_len(line) <= width else set_cell_size(line, width).rstrip()
        if piece != line and len(whole := piece.rpartition(" ")[0]) > len(piece) // 2:
            piece = whole
        yield piece
        line = line[max(1, len(piece)) :].lstrip()
        if not line:
            return


def _outline(peaks: npt.NDArray[np.float32], width: int) -> str:
    cuts = np.linspace(0, len(peaks), min(width, 80, len(peaks)) + 1).astype(np.int64)
    loud = np.maximum.reduceat(peaks, cuts[:-1])
    return "".join(_LEVELS[int(np.ceil(level * (len(_LEVELS) - 1)))] for level in loud.tolist())


def _strip(frames: Sequence[Image.Image], width: int, colours: bool) -> Iterator[str]:
    """As many frames side by side as fit."""
    if not frames:
        return
    first = frames[0]
    columns = max(4, round(2 * _FRAME_ROWS * first.width / first.height))
    fitting = max(1, (width + 1) // (columns + 1))
    chosen = np.unique(np.linspace(0, len(frames) - 1, min(fitting, len(frames))).astype(np.int64)).tolist()
    drawn = [list(_pixels(frames[number], min(columns, width), _FRAME_ROWS, colours)) for number in chosen]
    for row in zip(*drawn, strict=False):
        yield " ".join(row)


def _pixels(image: Image.Image, columns: int, rows: int, colours: bool) -> Iterator[str]:
    """A picture in cells of two pixels, one above the other."""
    scale = min(columns / image.width, 2 * rows / image.height)
    width = max(1, round(image.width * scale))
    height = max(1, round(image.height * scale / 2)) * 2
    if image.mode == "RGBA":
        ground = Image.new("RGBA", image.size, (128, 128, 128, 255))
        image = Image.alpha_composite(ground, image)
    small = image.convert("RGB" if colours else "L").resize((width, height))
    if not colours:
        grey = np.asarray(small, np.float64).reshape(height // 2, 2, width).mean(axis=1)
        for row in (grey * len(_GREYS) / 256).astype(np.int64).tolist():
            yield "".join(_GREYS[level] for level in row)
        return
    pixels = np.asarray(small)
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        cells = (
            f"\x1b[38;2;{';'.join(map(str, above))};48;2;{';'.join(map(str, below))}m▀"
            for above, below in zip(upper, lower, strict=True)
        )
        yield "".join(cells) + "\x1b[0m"


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
