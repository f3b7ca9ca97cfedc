"""The rows of an array as the samples of one member of a join."""

from __future__ import annotations

import dataclasses
from itertools import repeat
from typing import Any, cast

from energon_grain.datasets.joined_leaf import ResolvedArray
from energon_grain.datasets.joining import JoinRow
from energon_grain.samples.columns import column_constructor
from energon_grain.samples.crude import CrudeSample
from energon_grain.sources.joined import MemberBatch
from energon_grain.sources.provenance import LazySources


class ArrayColumn:
    """Makes what the joiner gets of an array.

    A joiner of the user's gets the bare rows. The default merge gets samples of one field, or crude samples of one
    part, so that rows are merged as samples of datasets are.

    Args:
        array: The array.
        row: The joiner.
    """

    def __init__(self, array: ResolvedArray, row: JoinRow) -> None:
        self._source, self._field = array.source, array.field
        self._merges, self._crude = row.merges, row.sample_type is None
        if self._merges and not self._crude:
            fields = [(self._field, Any), ("__sources__", Any)]
            self._construct = column_constructor(dataclasses.make_dataclass("ArrayRow", fields, slots=True))

    def values(self, member: MemberBatch, rows: int) -> list[Any]:
        """One value for each of the joined rows, None where the array has none."""
        found = cast("list[Any]", member.batch or [])
        if self._merges:
            sources = map(LazySources, repeat(self._source), member.samples.tolist())
            if self._crude:
                parts = zip(found, sources, strict=True)
                found = [CrudeSample({self._field: row, "__sources__": source}) for row, source in parts]
            else:
                found = self._construct(len(found), {self._field: found, "__sources__": sources})
        return _spread(found, member, rows)


def _spread(found: list[Any], member: MemberBatch, rows: int) -> list[Any]:
    if len(found) == rows:
        return found
    column: list[Any] = [None] * rows
    for place, value in zip(member.places.tolist(), found, strict=True):
        column[place] = value
    return column
