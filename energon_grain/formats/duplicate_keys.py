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
    *,
    order: npt.NDArray[np.int64] | None = None,
) -> None:
    """Do nothing if all keys differ.

    Args:
        key_start: (n + 1,) where each key starts.
        key_bytes: All keys, one after the other.
        shard_first: (shards + 1,) number of the first sample of each shard.
        shard_name: Name of a shard by its place in `shard_first`, asked for only if there is something to report.
        order: (n,) `key_order` of the keys where it is known already.

    Raises:
        DuplicateKeyError: Some keys occur twice; lists a few of them with their shards.
    """
    if order is None:
        order = key_order(key_start, key_bytes)
    places = duplicate_keys(key_start, key_bytes, order)
    if not len(places):
        return
    listed: list[str] = []
    for place in places[:_LISTED]:
        pair = order[place : place + 2]
        key = key_bytes[key_start[pair[0]] : key_start[pair[0] + 1]].tobytes().decode("utf-8", "backslashreplace")
        one, other = (shard_name(int(shard)) for shard in np.searchsorted(shard_first, pair, side="right") - 1)
        listed.append(f"{key!r} in {one}" + (" twice" if one == other else f" and in {other}"))
    more = f" and {len(places) - len(listed)} more" if len(places) > len(listed) else ""
    raise DuplicateKeyError(
        f"{len(places)} samples have the key of another one: {'; '.join(listed)}{more}. A key (the name of a tar "
        "member up to the first dot of its last component) may occur once in a dataset, in adjacent members; "
        "rename them"
    )
