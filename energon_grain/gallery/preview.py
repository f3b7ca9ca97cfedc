# SPDX-License-Identifier: Apache-2.0
"""`energon_grain.preview`: samples of a dataset in a terminal, in a notebook, or as a page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from energon_grain.atomic_files import atomic_write_text
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.errors import ConfigError, public
from energon_grain.gallery.cards import Contents, gather
from energon_grain.gallery.page import framed, page
from energon_grain.gallery.text import lines_of
from energon_grain.get_datasets import get_train_dataset
from energon_grain.stream.cursor import merge_cursors

MEDIA_BYTES = 4_000_000
"""Default of the largest file in a page; a larger file is shown as a picture, an outline or frames."""
_HEIGHT = 720


class Preview:
    """Samples to look at: `print` it, show it in a notebook, or save the page.

    Args:
        contents: The samples, as `gather` returns them.
        beside: The samples of another step, to show beside the first.
    """

    def __init__(self, contents: Contents, beside: Contents | None = None) -> None:
        self._contents = contents
        self._all = (contents,) if beside is None else (contents, beside)

    @property
    def subtitle(self) -> str:
        """How many samples are shown, and of what."""
        return "; ".join(each.subtitle for each in self._all)

    def __len__(self) -> int:
        """Number of samples, without those of another step."""
        return len(self._contents.cards)

    def text(self, *, width: int | None = None, colours: bool = False) -> str:
        """The text for a terminal. Nothing that comes from data acts on the terminal.

        Args:
            width: In cells; default: the width of the terminal.
            colours: Whether to draw pictures in 24-bit colours; else in letters.
        """
        return "\n".join(lines_of(self._all, width=width or shutil.get_terminal_size().columns, colours=colours))

    def html(self) -> str:
        """One page, which loads nothing from the network."""
        return page(*self._all)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file. Raises OSError if it cannot be written."""
        atomic_write_text(path, self.html())

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Preview of {self._contents.title}: {self._contents.subtitle}; print it, or save(path) the page>"

    def _repr_html_(self) -> str:
        return framed(self.html(), self._contents.title, _HEIGHT)


@public
def preview(
    dataset: Any,
    *,
    samples: int = 24,
    step: int | None = None,
    beside: int | None = None,
    state: Mapping[str, Any] | list[Mapping[str, Any]] | None = None,
    encoded: bool = False,
    media_bytes: int = MEDIA_BYTES,
    **arguments: Any,
) -> Preview:
    """Show samples: pictures, audio, videos, texts and values, as stored and as decoded.

    If the dataset has a field map, the decoded fields are beside their parts. If it has a class part (`cls`, or the
    part of a field `label`), samples are counted by class. A part that does not decode is shown with the reason. Only
    the samples that are shown are read, and the class parts that are counted.

    Args:
        dataset: A dataset of `get_train_dataset` or another dataset class; or a path, or anything else that
            `get_train_dataset` takes.
        samples: Number of samples, divided evenly among the datasets of a mixture (at least one each) and evenly
            spread in each; of a step, the first ones.
        step: Show the samples of this global batch of a run, as `loader.which` lists them.
        beside: With `step`: show the samples of this global batch beside them, to compare both.
        state: With `step`: a saved state of the run to begin at, if steps are computed from the steps before.
        encoded: With `step`: also compute the batch on all hosts, and show the output of hooks: each sample with its
            row of the batch, and the first sample with the values that have no rows.
        media_bytes: Largest file in a page; a larger file is shown as a reduced picture, an outline or frames.
        **arguments: With a path: arguments of `get_train_dataset`. Without `step`, all have defaults.

    Raises:
        ConfigError: An argument is not valid, or needs a path.
        DatasetNotFoundError: There is no prepared dataset at the path.
        StateError: The samples of the step cannot be determined, or the step does not exist.
    """
    if samples < 1:
        raise ConfigError(f"samples={samples}: expected a positive number")
    if step is None and (state is not None or encoded or beside is not None):
        raise ConfigError("state, encoded=True and beside: need step")
    node = _node(dataset, step, arguments)

    def gathered(step: int | None) -> Contents:
        return gather(
            node,
            title=_title(dataset),
            samples=samples,
            step=step,
            state=merge_cursors(state) if isinstance(state, list) else None if state is None else dict(state),
            most_bytes=media_bytes,
            columns=True,
            encoded=encoded,
        )

    return Preview(gathered(step), None if beside is None else gathered(beside))


def _node(dataset: Any, step: int | None, arguments: dict[str, Any]) -> SavableDataset:
    if isinstance(dataset, SavableDataset):
        if arguments:
            raise ConfigError(f"{', '.join(arguments)}: only with a path; this dataset has its own settings")
        return dataset
    if step is not None and "batch_size" not in arguments:
        raise ConfigError(f"step={step}: a step needs a batch size; pass batch_size")
    defaults: dict[str, Any] = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    return get_train_dataset(dataset, **{**defaults, **arguments})


def _title(dataset: Any) -> str:
    if isinstance(dataset, str | os.PathLike):
        return os.fspath(dataset).rstrip("/").rpartition("/")[2] or os.fspath(dataset)
    return repr(dataset) if isinstance(dataset, SavableDataset) else type(dataset).__name__
