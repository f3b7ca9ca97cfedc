"""Packs made one after the other, each closed before the next begins."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.transforms.packing_lengths import ascending, check_lengths, in_order_of_arrival

# (ascending sizes, how many of them fit, room, samples that may still enter) -> places in sizes, descending
Filling: TypeAlias = Callable[[list[int], int, int, int], Iterable[int]]


def one_by_one(
    lengths: npt.NDArray[np.int64],  # (n,)
    capacity: int,
    max_samples: int | None,
    first_leads: bool,
    filling: Filling,
) -> list[list[int]]:
    """Open a pack with the longest sample that is left, fill it by a rule, and so on until no sample is left."""
    check_lengths(lengths, capacity, max_samples)
    order, sizes = ascending(lengths)
    packs: list[list[int]] = []
    while order:
        leader = order.index(0) if first_leads and not packs else len(order) - 1
        pack = [order.pop(leader)]
        room = capacity - sizes.pop(leader)
        others = len(order) if max_samples is None else max_samples - 1
        for place in filling(sizes, bisect_right(sizes, room), room, others):
            pack.append(order.pop(place))
            del sizes[place]
        packs.append(pack)
    return in_order_of_arrival(packs)


def longest_that_fit(sizes: list[int], end: int, room: int, count: int) -> list[int]:
    """The longest that fits, then the longest that fits beside it, and so on."""
    places: list[int] = []
    while end and len(places) < count:
        end -= 1
        places.append(end)
        room -= sizes[end]
        end = bisect_right(sizes, room, 0, end)
    return places
