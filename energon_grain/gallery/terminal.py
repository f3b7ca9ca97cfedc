"""Samples in a terminal: pictures as half blocks, sounds as outlines, films as strips, texts shortened.

Nothing that comes from data reaches the terminal as it is: what a terminal would act on is written out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.cells import cell_len, set_cell_size

from energon_grain.gallery.cards import Card, Contents
from energon_grain.gallery.fields import Failed, Film, Picture, Shown, Sound, Words, visible

_PICTURE_COLUMNS, _PICTURE_ROWS = 40, 16
_FRAME_ROWS = 8
_TEXT_LINES = 3
_LEVELS = " ▁▂▃▄▅▆▇█"
_GREYS = " .:-=+*#%@"
_INDENT = "    "


def terminal_lines(contents: Contents, *, width: int, colours: bool) -> Iterator[str]:
    """What is shown, line by line, each at most `width` cells wide.

    Args:
        contents: The samples.
        width: Of the terminal.
        colours: Whether it has 24-bit colours; else pictures are drawn in letters.
    """
    width = max(width, 24)
    yield _cut(f"{visible(contents.title)}: {contents.subtitle}", width)
    if len(contents.datasets) > 1:
        for dataset in contents.datasets:
            yield _cut(f"  {dataset.share:6.1%}  {visible(dataset.label)}, {dataset.samples:,} samples", width)
    for card in contents.cards:
        yield ""
        yield from _card(contents, card, width, colours)


def _card(contents: Contents, card: Card, width: int, colours: bool) -> Iterator[str]:
    several = len(contents.datasets) > 1
    label = f"{visible(contents.datasets[card.dataset].label)}/" if several else ""
    title = f"── {label}{visible(card.shard)}/{visible(card.key)} · {card.place} "
    cut = _cut(title, width)
    yield cut + "─" * (width - cell_len(cut))
    for field in card.fields:
        yield _cut(f"  {visible(field.name) or '(sample)'}  {visible(field.note)}", width)
        for line in _drawn(field, width - len(_INDENT), colours):
            yield _INDENT + line


def _drawn(field: Shown, width: int, colours: bool) -> Iterator[str]:
    match field:
        case Picture():
            yield from _pixels(field.image, min(width, _PICTURE_COLUMNS), _PICTURE_ROWS, colours)
        case Film():
            if field.frames:
                yield from _strip(field.frames, width, colours)
        case Sound():
            if len(field.peaks):
                yield _outline(field.peaks, width)
        case Words():
            yield from _words(field, width)
        case Failed():
            yield _cut(f"does not decode: {visible(field.error)}", width)
        case _:
            raise AssertionError(field)


def _words(field: Words, width: int) -> Iterator[str]:
    text = " ".join(field.text.split()) if field.form == "json" else field.text
    lines = [visible(line) for line in text.split("\n")]
    wrapped = [piece for line in lines[: _TEXT_LINES + 1] for piece in _wrapped(line, width)]
    yield from wrapped[:_TEXT_LINES]
    if len(wrapped) > _TEXT_LINES or len(lines) > _TEXT_LINES + 1:
        yield "…"


def _wrapped(line: str, width: int) -> Iterator[str]:
    """Pieces of a line; no more than are shown."""
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
    """Frames side by side, as many as there is room for."""
    first = frames[0]
    columns = max(4, round(2 * _FRAME_ROWS * first.width / first.height))
    fitting = max(1, (width + 1) // (columns + 1))
    chosen = np.unique(np.linspace(0, len(frames) - 1, min(fitting, len(frames))).astype(np.int64)).tolist()
    drawn = [list(_pixels(frames[number], min(columns, width), _FRAME_ROWS, colours)) for number in chosen]
    for row in zip(*drawn, strict=False):
        yield " ".join(row)


def _pixels(image: Image.Image, columns: int, rows: int, colours: bool) -> Iterator[str]:
    """A picture in cells, each of which has two pixels above each other."""
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
