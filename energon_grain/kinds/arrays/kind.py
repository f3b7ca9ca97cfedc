"""Arrays of zarr and N5 as a kind of data."""

from __future__ import annotations

from energon_grain.formats.array_folder import is_array_folder
from energon_grain.sources.arrays import ArrayGroupSource
from energon_grain.sources.kinds import Described, Kind, Opened
from energon_grain.sources.source import PartFilter


def _open(location: str, parts: PartFilter) -> Opened:
    source = ArrayGroupSource(location, parts=parts)
    return Opened(rows=source, part_names=source.part_names, decoded="never")


def _summary(location: str) -> Described:
    from energon_grain.kinds.arrays.summary import summarize_arrays

    return summarize_arrays(location)


ARRAY = Kind(
    name="array",
    described="an array",
    open=_open,
    marked=lambda at: is_array_folder(at.location),
    takes_no_columns="; one with a number a row, in the same group, is a column of it",
    joined_by="array",
    summary=_summary,
)
