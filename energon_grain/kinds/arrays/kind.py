# SPDX-License-Identifier: Apache-2.0
"""Zarr and N5 arrays as a kind of data."""

from __future__ import annotations

from collections.abc import Collection

from energon_grain.kinds.arrays.folder import is_array_folder
from energon_grain.kinds.arrays.source import ArrayGroupRows, ArraySource
from energon_grain.kinds.arrays.summary import summarize_arrays
from energon_grain.sources.kinds import Kind, Opened
from energon_grain.sources.source import PartFilter


def _open(location: str, parts: PartFilter) -> Opened:
    rows = ArrayGroupRows(location, parts=parts)
    return Opened(rows=rows, part_names=rows.part_names, decoded="never")


def _hint(location: str, _: Collection[str]) -> str | None:
    is_array = is_array_folder(location)
    return "is an array, which needs no preparation: it has no shards, indices or splits" if is_array else None


ARRAY = Kind(
    name="array",
    described="an array",
    open=_open,
    marked=lambda at: is_array_folder(at.location),
    takes_no_columns="; an array with one number per row in the same group is already a column",
    joined_by="array",
    rows=ArraySource,
    hint=_hint,
    summary=summarize_arrays,
)
