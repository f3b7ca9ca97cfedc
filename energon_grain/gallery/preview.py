# SPDX-License-Identifier: Apache-2.0
"""`energon_grain.preview`: samples of a dataset, to look at in a terminal, a notebook or a page.

In a terminal pictures are half blocks, sounds outlines, films strips, and texts shortened. Nothing that comes from data
reaches it as it is: what a terminal would act on is written out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.cells import cell_len, set_cell_size

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.errors import ConfigError, public
from energon_grain.gallery.cards import Card, Contents, gather
from energon_grain.gallery.fields import Shown
from energon_grain.gallery.page import framed, page
from energon_grain.get_datasets import get_train_dataset
from energon_grain.storage.atomic import atomic_write_text
from energon_grain.stream.cursor import merge_cursors
from energon_grain.words import visible

MEDIA_BYTES = 4_000_000
"""A file is in a page up to this size; of a larger one a picture, an outline or frames are."""
_HEIGHT = 720
_PICTURE_COLUMNS, _PICTURE_ROWS = 40, 16
_FRAME_ROWS = 8
_TEXT_LINES = 3
_LEVELS = " ▁▂▃▄▅▆▇█"
_GREYS = " .:-=+*#%@"
_INDENT = "    "


class Preview:
    """Some samples: `print` it, let a notebook show it, or save the page.

    Args:
        contents: What `gather` found.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def __len__(self) -> int:
        """Samples that are shown."""
        return len(self._contents.cards)

    def text(self, *, width: int | None = None, colours: bool = False) -> str:
        """As a terminal shows it; nothing in it comes from data and acts on one.

        Args:
            width: In cells; default: that of the terminal.
            colours: Whether pictures are drawn in 24-bit colours; else in letters.
        """
        width = width or shutil.get_terminal_size().columns
        return "\n".join(_lines(self._contents, width=width, colours=colours))

    def html(self) -> str:
        """One page, which loads nothing from elsewhere."""
        return page(self._contents)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file. Raises OSError where it cannot be written."""
        atomic_write_text(path, self.html())

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Preview of {self._contents.title}: {self._contents.subtitle}; print it, or save(path) the page>"

    def _repr_html_(self) -> str:
        return framed(self._contents, _HEIGHT)


@public
def preview(
    dataset: Any,
    *,
    samples: int = 24,
    step: int | None = None,
    state: Mapping[str, Any] | list[Mapping[str, Any]] | None = None,
    encoded: bool = False,
    media_bytes: int = MEDIA_BYTES,
    **arguments: Any,
) -> Preview:
    """Look at samples as they lie on disk: pictures, sounds, videos, texts and values, by part.

    A part that does not decode is shown as such, with what is wrong. Only what is shown is read.

    Args:
        dataset: What `get_train_dataset` or another dataset class gave; or a path, or whatever else that takes.
        samples: How many to show, dealt evenly to the datasets of a mixture (at least one each), and evenly spread in
            each; of a step, its first ones.
        step: Show the samples of this global batch of a run, as `loader.which` knows them.
        state: With `step`: a saved state of the run, to begin at where the steps before must be made again.
        encoded: With `step`: make the step too, on all hosts, and show beside each sample what hooks made of it: its
            row of the batch; and with the first one what of the batch has no rows.
        media_bytes: A file is in the page up to this size; of larger ones a small picture, an outline or some frames.
        **arguments: Of a path, those of `get_train_dataset`. Without `step`, all have defaults.

    Raises:
        ConfigError: An argument is not valid, or goes with a path alone.
        DatasetNotFoundError: There is no prepared dataset at the path.
        StateError: Which samples made the step cannot be known, or there is no such step.
    """
    if samples < 1:
        raise ConfigError(f"samples={samples}: expected a positive number")
    if step is None and (state is not None or encoded):
        raise ConfigError("state and encoded=True: go with step, which one begins at and the other shows hooks of")
    return Preview(
        gather(
            _node(dataset, step, arguments),
            title=_title(dataset),
            samples=samples,
            step=step,
            state=merge_cursors(state) if isinstance(state, list) else None if state is None else dict(state),
            most_bytes=media_bytes,
            columns=True,
            encoded=encoded,
        )
    )


def _node(dataset: Any, step: int | None, arguments: dict[str, Any]) -> SavableDataset:
    if isinstance(dataset, SavableDataset):
        if arguments:
            raise ConfigError(f"{', '.join(arguments)}: given with a path; this dataset has its settings")
        return dataset
    if step is not None and "batch_size" not in arguments:
        raise ConfigError(f"step={step}: steps are of a batch size; pass batch_size")
    defaults: dict[str, Any] = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    return get_train_dataset(dataset, **{**defaults, **arguments})


def _title(dataset: Any) -> str:
    if isinstance(dataset, str | os.PathLike):
        return os.fspath(dataset).rstrip("/").rpartition("/")[2] or os.fspath(dataset)
    return repr(dataset) if isinstance(dataset, SavableDataset) else type(dataset).__name__


def _lines(contents: Contents, *, width: int, colours: bool) -> Iterator[str]:
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
        yield _cut(f"  {visible(field.heading) or '(sample)'}  {visible(field.note)}", width)
        for line in _drawn(field, width - len(_INDENT), colours):
            yield _INDENT + line


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
