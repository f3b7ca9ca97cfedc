"""Indices that a source is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


def in_range(indices: npt.NDArray[np.integer[Any]], count: int, *, where: str, what: str = "sample") -> Int64Array:
    """Give `indices` as int64 once all are known to be in [0, count).

    Args:
        indices: (n,) in any order, repeats allowed.
        count: How many there are.
        where: What holds them, as the message names it.
        what: What they number.

    Raises:
        IndexError: One is out of range; names the first that is.
    """
    found = np.asarray(indices, np.int64)
    if len(found) and (int(found.min()) < 0 or int(found.max()) >= count):
        wrong = found[(found < 0) | (found >= count)][0]
        raise IndexError(f"{where}: {what} {int(wrong)} asked for, but there are {count}")
    return found
