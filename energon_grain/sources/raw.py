"""Raw samples: parts as they are stored, bytes that are not yet decoded, or rows of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import is_not
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

PartValue: TypeAlias = bytes | npt.NDArray[Any]
"""The bytes of a part, or a row of an array, which needs no decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSample:
    """One sample as it lies in its shard."""

    key: str
    """Base name of the sample's members, folders included."""
    shard: str
    """Name of the shard, relative to the dataset."""
    index: int
    """Index of the sample in its source."""
    parts: Mapping[str, PartValue]
    """Payload by part name, in the order of the shard."""


class RawBatch(Sequence[RawSample]):
    """What one batched read returns: a sequence of raw samples, held as columns.

    Columns are what makes batched reading cheap: a decoder runs over `columns["jpg"]`, and an object per sample is made
    only for who asks for one.

    Attributes:
        indices: (n,) index of each sample in its source.
        keys: Key of each sample.
        shards: Shard of each sample.
        columns: For each part name, one value a sample, or None where the sample lacks the part.
    """

    __slots__ = ("columns", "indices", "keys", "shards")

    def __init__(
        self,
        *,
        indices: npt.NDArray[np.int64],
        keys: list[str],
        shards: list[str],
        columns: Mapping[str, Sequence[PartValue | None]],
    ) -> None:
        self.indices = indices
        self.keys = keys
        self.shards = shards
        self.columns = columns

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, place: int) -> RawSample: ...
    @overload
    def __getitem__(self, place: slice) -> list[RawSample]: ...
    def __getitem__(self, place: int | slice) -> RawSample | list[RawSample]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        parts = {name: value for name, column in self.columns.items() if (value := column[place]) is not None}
        return RawSample(key=self.keys[place], shard=self.shards[place], index=int(self.indices[place]), parts=parts)

    def __iter__(self) -> Iterator[RawSample]:
        for place in range(len(self)):
            yield self[place]

    def nbytes(self) -> int:
        """Payload bytes of all parts."""
        values = (value for column in self.columns.values() for value in column if value is not None)
        return sum(len(value) if isinstance(value, bytes) else value.nbytes for value in values)

    def is_complete(self, part: str) -> bool:
        """Whether every sample has the part."""
        # Not `None in column`: that compares, which an array does number by number.
        return all(map(is_not, self.columns[part], repeat(None)))
