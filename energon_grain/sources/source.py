"""The protocol of random-access collections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from energon_grain.sources.raw import RawBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLocation:
    """Where one sample lies. Offsets and sizes are in bytes, from the start of the shard.

    In ArrayRecord files and arrays they are counted as if records or rows lay one behind the other, uncompressed.
    """

    index: int
    shard: str
    key: str
    start: int
    """First header byte of the sample."""
    stop: int
    """One past the last byte, padding included."""
    parts: dict[str, tuple[int, int]]
    """Part name to (offset of the payload, size of the payload)."""


@runtime_checkable
class Source(Protocol):
    """A random-access collection of raw samples. Thread-safe and picklable (paths only)."""

    @property
    def path(self) -> str:
        """Where the dataset lies, for provenance and messages."""
        ...

    @property
    def content_id(self) -> str:
        """Digest of what the source serves, in this order: equal content, equal id, wherever it lies."""
        ...

    def __len__(self) -> int: ...

    def read(self, indices: npt.NDArray[np.int64]) -> RawBatch:
        """Read samples in the order asked for; repeated indices are fine.

        Args:
            indices: (n,) in [0, len).

        Raises:
            IndexError: An index is out of range.
            ReadError: Bytes could not be read after retries.
        """
        ...

    def sizes(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """(n,) payload bytes that reading each sample yields, known without reading it."""
        ...

    def locate(self, index: int) -> SampleLocation:
        """Where a sample lies, without reading it. Raises IndexError when `index` is out of range."""
        ...

    def place_of(self, index: int) -> str:
        """Where a sample lies, as messages say it: `shard-000012.tar: 000341`. Raises IndexError as `locate` does."""
        ...

    def close(self) -> None:
        """Release file handles; reading again opens them anew."""
        ...
