"""The seam between formats and where bytes live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class ByteStore(Protocol):
    """Reads byte ranges of named objects.

    Everything above asks for many ranges at once, already sorted and coalesced by `storage.spans`, so that a store
    can overlap its requests. Implementations are thread-safe and picklable; a copy in another process opens its own
    handles.
    """

    @property
    def merge_gap_bytes(self) -> int:
        """Ranges at most this far apart are cheaper to read together than apart."""
        ...

    @property
    def solo_bytes(self) -> int:
        """Ranges of at least this size are read by themselves, so that no byte of theirs is copied twice."""
        ...

    @property
    def least_bytes(self) -> int:
        """As many bytes take about as long to read as one."""
        ...

    def version(self, path: str) -> Any:
        """What tells an object that does not change from what may take its place; picklable, never None.

        Raises:
            ReadError: The object does not exist or cannot be reached.
        """
        ...

    def expect(self, path: str, version: Any) -> None:
        """Read an object in this version alone, which another process learnt.

        Raises:
            StaleIndexError: It is another one by now.
            ReadError: It does not exist or cannot be reached.
        """
        ...

    def size(self, path: str) -> int:
        """Size of an object in bytes.

        Raises:
            ReadError: The object does not exist or cannot be reached.
        """
        ...

    def tails(self, paths: Sequence[str], starts: Sequence[int]) -> list[bytes]:
        """The bytes of each object from `starts[i]` to its end: what lies behind the last sample, and so the sizes.

        In an object store this is one request an object, where a size by itself may take several.

        Raises:
            RangeError: An object ends before its start.
            ReadError: One does not exist or cannot be reached.
        """
        ...

    def peek(self, paths: Sequence[str], starts: Sequence[int], size_bytes: int) -> list[bytes]:
        """A few bytes of each object from `starts[i]` on, for a look at a header: nothing around them is read or kept.

        Raises:
            RangeError: An object ends before.
            ReadError: One does not exist or cannot be reached.
        """
        ...

    def read_spans(
        self,
        paths: Sequence[str],
        file: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        stop: npt.NDArray[np.int64],
    ) -> list[bytes]:
        """Read bytes [start[i], stop[i]) of object `paths[file[i]]` for every i, in that order.

        Args:
            paths: Names of the objects.
            file: (n,) index into `paths`.
            start: (n,) first byte.
            stop: (n,) one past the last byte.

        Raises:
            RangeError: An object is shorter than asked for.
            ReadError: One is missing, or unreadable after retries.
        """
        ...

    def close(self) -> None:
        """Release every handle. Reading again opens them anew."""
        ...
