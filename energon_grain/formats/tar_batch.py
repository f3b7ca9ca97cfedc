"""Headers of consecutive tar members: what finding headers gives and what reading names takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(slots=True)
class HeaderBatch:
    """A run of headers in the order of the file, extension headers among them.

    Their chain is checked: each lies where the one before says that the next is.
    """

    headers: npt.NDArray[np.uint8]  # (n, 512) contiguous
    offset: npt.NDArray[np.int64]  # (n,) of the header
    start: npt.NDArray[np.int64]  # (n,) of the member: its first extension header, or the header itself
    size: npt.NDArray[np.int64]  # (n,) payload bytes
    names: dict[int, bytes] = field(default_factory=dict[int, bytes])  # row -> name that an extension header gives

    def __len__(self) -> int:
        return len(self.offset)

    def head(self, rows: int) -> HeaderBatch:
        """Give the first `rows` headers."""
        names = {row: name for row, name in self.names.items() if row < rows}
        return HeaderBatch(self.headers[:rows], self.offset[:rows], self.start[:rows], self.size[:rows], names)


@dataclass(slots=True)
class Walked:
    """What one step of a walk over the headers of a tar gave."""

    batch: HeaderBatch
    next_offset: int  # where the next header is to be found; at the end: of the first zero block
    at_end: bool = False
    error: Exception | None = None  # why the walk cannot go on; defects inside the batch come before it
