# SPDX-License-Identifier: Apache-2.0
"""All samples of a dataset, whatever kind of data it is, and what is known of them before they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from energon_grain.errors import ConfigError, public
from energon_grain.formats.columns import KeptColumns, StoredColumn
from energon_grain.prepare.containers import open_data, open_prepared
from energon_grain.sources.kinds import kind_at
from energon_grain.sources.source import Source, release_mapped


class MeasurableSource(Source, Protocol):
    """A source with which columns are kept."""

    @property
    def kept(self) -> Any:
        """The `KeptColumns` of all its samples; None: there is no place to keep them."""
        ...


_BLOCK_SAMPLES = 1 << 20


@public
class Columns(Mapping[str, npt.NDArray[Any]]):
    """The columns of a dataset by name: `columns["width"]` is a read-only array, (N,), a number a sample.

    NaN stands for what a sample has not. Those that lie beside an index are memory maps, and so are those in Parquet,
    Arrow and MDS files once they were read; a column of a member of a join is put together for its rows.
    To be had from `open_columns`.

    Attributes:
        source: All samples, or all rows of a join.
        stored: What is known of those that were measured or attached, or are of media.
        stale: Names of those that are of samples that are not here any more.
    """

    def __init__(self, source: MeasurableSource | Source) -> None:
        kept: KeptColumns | None = getattr(source, "kept", None)
        self.source = source
        self.stored: Mapping[str, StoredColumn] = {} if kept is None else kept.stored
        self.stale: tuple[str, ...] = () if kept is None else kept.stale

    def __len__(self) -> int:
        return len(self.source.columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self.source.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.source.columns

    def __repr__(self) -> str:
        return f"Columns({self.source.path!r}, {', '.join(self)})"

    @property
    def samples(self) -> int:
        """How many numbers each column has."""
        return len(self.source)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """The column of this name.

        Raises:
            KeyNotFoundError: There is none, or it was made for other samples; says which command makes it.
            IndexFileError: Its file is damaged.
            FormatError: A file of the dataset is.
            ReadError: An object store cannot be reached.
        """
        column = self.source.column(name, slice(0, self.samples))
        column.flags.writeable = False
        return column

    def blocks(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """The column in pieces, one after the other, in memory that does not grow with it. Raises as `[name]` does."""
        for begin in range(0, self.samples, _BLOCK_SAMPLES):
            block = self.source.column(name, slice(begin, min(begin + _BLOCK_SAMPLES, self.samples)))
            yield block
            release_mapped(block)


def columns_of(location: str) -> Columns:
    """The columns of a dataset, file or array. Raises as `open_columns`."""
    kind = kind_at(location)
    if kind.open is not None and kind.takes_no_columns:
        return Columns(kind.open(location, None).source)
    return Columns(opened_samples(location, None))


def opened_samples(location: str, parts: Collection[str] | None) -> MeasurableSource:
    """All samples of a dataset, with some of their parts."""
    kind = kind_at(location)
    if kind.takes_no_columns:
        raise ConfigError(f"{location}: is {kind.described}{kind.takes_no_columns}")
    source: Any
    if kind.open is None:
        source = open_prepared(open_data(location), parts=parts)
        known = source.all_part_names
    else:
        found = kind.open(location, None)
        source, known = found.source, found.part_names
    refuse_unknown(location, parts, known)
    if parts is not None and kind.open is not None:
        source = kind.open(location, parts).source
    return source


def refuse_unknown(location: str, parts: Collection[str] | None, known: Sequence[str]) -> None:
    """Raise ConfigError if there is no part of one of these names."""
    unknown = [part for part in parts or () if part not in known]
    if unknown:
        raise ConfigError(f"{location}: has no part {unknown[0]!r}; there are {', '.join(known[:20])}")
