"""Refusing datasets in which two samples have the same key."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DuplicateKeyError
from energon_grain.formats.key_order import duplicate_keys, key_order

_LISTED = 5


def refuse_duplicate_keys(
    key_start: npt.NDArray[np.int64],
    key_bytes: npt.NDArray[np.uint8],
    shard_first: npt.NDArray[np.int64],
    shard_name: Callable[[int], str],
) -> None:
    """Do nothing if all keys differ. Takes the memory of `key_order`.

    Args:
        key_start: (n + 1,) where each key starts.
        key_bytes: All keys, one after the other.
        shard_first: (shards + 1,) number of the first sample of each shard.
        shard_name: Name of a shard by its place in `shard_first`, asked for only if there is something to report.

    Raises:
        DuplicateKeyError: Some keys occur twice; lists a few of them with their shards.
    """
    order = key_order(key_start, key_bytes)
    places = duplicate_keys(key_start, key_bytes, order)
    found = DuplicateKeys()
    found.add(np.stack([order[places], order[places + 1]], axis=1))
    found.refuse(key_start, key_bytes, shard_first, shard_name)


class DuplicateKeys:
    """Collects samples that have the key of another one: how many, and the first few."""

    def __init__(self) -> None:
        self._count = 0
        self._first: list[tuple[int, int]] = []

    def add(self, pairs: npt.NDArray[np.int64]) -> None:
        """Note (m, 2) numbers of samples that have the same key."""
        self._count += len(pairs)
        self._first += [(one, other) for one, other in pairs[: _LISTED - len(self._first)].tolist()]

    def refuse(
        self,
        key_start: npt.NDArray[np.int64],
        key_bytes: npt.NDArray[np.uint8],
        shard_first: npt.NDArray[np.int64],
        shard_name: Callable[[int], str],
    ) -> None:
        """Do nothing if there are none. Arguments and errors are those of `refuse_duplicate_keys`."""
        if not self._count:
            return
        listed: list[str] = []
        for pair in self._first:
            key = key_bytes[key_start[pair[0]] : key_start[pair[0] + 1]].tobytes().decode("utf-8", "backslashreplace")
            one, other = (shard_name(int(shard)) for shard in np.searchsorted(shard_first, pair, side="right") - 1)
            listed.append(f"{key!r} in {one}" + (" twice" if one == other else f" and in {other}"))
        more = f" and {self._count - len(listed)} more" if self._count > len(listed) else ""
        raise DuplicateKeyError(
            f"{self._count} samples have the key of another one: {'; '.join(listed)}{more}. A key (the name of a tar "
            "member up to the first dot of its last component) may occur once in a dataset, in adjacent members; "
            "rename them"
        )
