# SPDX-License-Identifier: Apache-2.0
"""Tables of the samples of one preview or of several, by dataset and by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from energon_grain.gallery.cards import Contents
from energon_grain.gallery.counts import ClassCounts

_MOST_CLASSES = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class CountTable:
    """Numbers of samples.

    Attributes:
        title: The title of the first column.
        columns: The titles of the other columns, one for each preview.
        rows: A name, and its number of samples in each preview.
        left_out: Number of rows that are left out.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[int]]]
    left_out: int = 0

    @property
    def most(self) -> int:
        """The largest number, at least 1."""
        return max(1, *(count for _, counts in self.rows for count in counts))


def tables_of(contents: Sequence[Contents]) -> Iterator[CountTable]:
    """The tables of previews of the same datasets: of steps by dataset, and by class if there are classes."""
    steps = [f"step {each.step:,}" for each in contents if each.step is not None]
    if steps and max(len(contents[0].datasets), len(contents)) > 1:
        yield _by_dataset(contents, steps)
    if any(each.classes for each in contents):
        yield _by_class([each.classes or ClassCounts(classes={}, of=0) for each in contents], steps)


def _by_dataset(contents: Sequence[Contents], columns: Sequence[str]) -> CountTable:
    labels = [dataset.label for dataset in contents[0].datasets]
    counts = zip(*([dataset.count for dataset in each.datasets] for each in contents), strict=True)
    return CountTable(title="Samples by dataset", columns=columns, rows=list(zip(labels, counts, strict=True)))


def _by_class(found: Sequence[ClassCounts], columns: Sequence[str]) -> CountTable:
    names = list(dict.fromkeys(name for each in found for name in each.classes))
    return CountTable(
        title="Samples by class",
        columns=columns or [f"of {each.of:,}" for each in found],
        rows=[(name, [each.classes.get(name, 0) for each in found]) for name in names[:_MOST_CLASSES]],
        left_out=max(0, len(names) - _MOST_CLASSES),
    )
