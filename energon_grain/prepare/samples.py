# SPDX-License-Identifier: Apache-2.0
"""All samples of a dataset of any kind, and their columns."""

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
    """A source that can store columns."""

    @property
    def kept(self) -> Any:
        """The `KeptColumns` of all its samples; None if it cannot store columns."""
        ...


_BLOCK_SAMPLES = 1 << 20


@public
class Columns(Mapping[str, npt.NDArray[Any]]):
    """The columns of a dataset by name: `columns["width"]` is a read-only array, (N,), one number per sample.

    NaN marks missing values. Columns beside an index are memory maps, as are columns of Parquet, Arrow and MDS files
    after the first read; a column of a member of a join is assembled for its rows. Created by `open_columns`.

    Attributes:
        source: All samples, or all rows of a join.
        stored: Metadata of measured, attached and media columns.
        stale: Names of columns whose samples have changed.
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
        """The length of each column."""
        return len(self.source)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """The column of this name.

        Raises:
            KeyNotFoundError: There is no such column, or its samples have changed; names the command that makes it.
            IndexFileError: Its file is damaged.
            FormatError: A file of the dataset is damaged.
            ReadError: An object store cannot be reached.
        """
        column = self.source.column(name, slice(0, self.samples))
        column.flags.writeable = False
        return column

    def blocks(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """Yield the column in consecutive pieces, in constant memory. Raises the same errors as `[name]`."""
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
    """Open all samples of a dataset, with some of their parts."""
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
    """Raise ConfigError if one of the parts does not exist."""
    unknown = [part for part in parts or () if part not in known]
    if unknown:
        raise ConfigError(f"{location}: has no part {unknown[0]!r}; the parts are {', '.join(known[:20])}")
