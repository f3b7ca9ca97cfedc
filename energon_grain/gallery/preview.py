"""`energon_grain.preview`: samples of a dataset, to look at in a terminal, a notebook or a page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.get_datasets import get_train_dataset
from energon_grain.errors import ConfigError
from energon_grain.gallery.cards import Contents, gather
from energon_grain.gallery.page import framed, page
from energon_grain.gallery.terminal import terminal_lines
from energon_grain.storage.atomic import atomic_write_text
from energon_grain.stream.cursor import merge_cursors

MEDIA_BYTES = 4_000_000
"""A file is in a page up to this size; of a larger one a picture, an outline or frames are."""
_HEIGHT = 720


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
        return "\n".join(terminal_lines(self._contents, width=width, colours=colours))

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


def preview(
    dataset: Any,
    *,
    samples: int = 24,
    step: int | None = None,
    state: Mapping[str, Any] | list[Mapping[str, Any]] | None = None,
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
        media_bytes: A file is in the page up to this size; of larger ones a small picture, an outline or some frames.
        **arguments: Of a path, those of `get_train_dataset`. Without `step`, all have defaults.

    Raises:
        ConfigError: An argument is not valid, or goes with a path alone.
        DatasetNotFoundError: There is no prepared dataset at the path.
        StateError: Which samples made the step cannot be known.
    """
    if samples < 1:
        raise ConfigError(f"samples={samples}: expected a positive number")
    if state is not None and step is None:
        raise ConfigError("state: goes with step, whose batches it is a place to begin at")
    if isinstance(dataset, SavableDataset):
        if arguments:
            raise ConfigError(f"{', '.join(arguments)}: given with a path; this dataset has its settings")
        node: Any = dataset
    else:
        if step is not None and "batch_size" not in arguments:
            raise ConfigError(f"step={step}: steps are of a batch size; pass batch_size")
        defaults: dict[str, Any] = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
        node = get_train_dataset(dataset, **{**defaults, **arguments})
    return Preview(
        gather(
            node,
            title=_title(dataset),
            samples=samples,
            step=step,
            state=merge_cursors(state) if isinstance(state, list) else None if state is None else dict(state),
            most_bytes=media_bytes,
            columns=True,
        )
    )


def _title(dataset: Any) -> str:
    if isinstance(dataset, str | os.PathLike):
        return os.fspath(dataset).rstrip("/").rpartition("/")[2] or os.fspath(dataset)
    return repr(dataset) if isinstance(dataset, SavableDataset) else type(dataset).__name__
