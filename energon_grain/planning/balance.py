# SPDX-License-Identifier: Apache-2.0
"""Equal work for every host: which items of a step each host gets, when what they cost is known beforehand.

A step of G items goes to H hosts, exactly b = G / H to each, and waits for the host that has most to do. Finding the
best division is NP-hard (it is multiway number partitioning with equal counts), so this is a good one, of integers, the
same wherever it is computed, and cheap enough for every host to compute it for all:

1. *Largest first* (Graham's LPT, with equal counts): items in order of falling cost go each to the host that has least
   so far, of those that have fewer than b. Of equal loads the first host: so items of equal costs stay where they would
   be without any of this, item i at host i mod H.
2. *Exchange.* Hosts are ranked by their load and paired; each pair exchanges the two items that make its loads most
   alike, if any do. Pairs are, in turns, the heaviest with the lightest, and then ranks a power of two apart, the
   largest power first (the comparators of a butterfly): pairing opposite ranks alone stops early, with the heaviest
   host at a partner that has nothing to offer. Two such cycles; four find hardly more.

The pairs of all steps of a plan are one numpy call. The number of rounds is fixed, so that a step's division does not
depend on the steps beside it. Worked, two hosts and costs 9 8 7 5 1 0: the first gets 9, the second 8, 7 and 0, the
first 5 and 1. Both have 15, and there is nothing to exchange.

Measured (`benchmarks/balance.py`, the largest over the mean load, means of 200 steps): log-normal lengths on 64 hosts
of 8 items are 2.51 as they come and 1.208 divided, where 1.207 is a bound that no division can beat; of Zipf's they are
3.29, 1.262 and 1.253; uniform ones on 16 hosts of 8, with room to be equal, 1.36, by LPT alone 1.008, and 1.002.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
_CYCLES = 2
_COMPARED = 8
"""Items of a host that are looked at in one exchange: with more, there are good pairs among any of them."""


def divide(costs: Int64Array, parts: int) -> npt.NDArray[np.intp]:
    """Divide each step's items into parts of equal counts and costs as equal as may be.

    Args:
        costs: (steps, items) 0 or more each; what is alike is told apart by its place.
        parts: Divides the number of items.

    Returns:
        (steps, parts, items of a part) places of items, those of a part in ascending order.
    """
    steps, count = costs.shape
    size, rest = divmod(count, parts)
    assert not rest
    if parts == 1 or size == 0 or not steps:
        return np.broadcast_to(np.arange(count), costs.shape).reshape(steps, parts, size).copy()
    bits = int(costs.max()).bit_length() + count.bit_length()
    costs = costs >> max(0, bits - 62)  # sums fit into 64 bits; what is lost is nothing beside such costs
    members, loads = _largest_first(costs, parts)
    rows = np.arange(steps)[:, None]
    cycle = _pairs(parts)
    held = costs[rows[:, :, None], members]
    for number in range(_CYCLES * len(cycle)):
        ranks = np.argsort(-loads, axis=1, kind="stable")
        heavy, light = (ranks[:, places] for places in cycle[number % len(cycle)])
        half = (loads[rows, heavy] - loads[rows, light]) >> 1
        among = (number + np.arange(min(size, _COMPARED)) * size // min(size, _COMPARED)) % size
        give, take = held[rows, heavy][:, :, among], held[rows, light][:, :, among]
        # An exchange moves the difference of two costs, and is best where that is half the difference of the loads.
        off = np.abs(give[:, :, :, None] - take[:, :, None, :] - half[:, :, None, None]).reshape(*half.shape, -1)
        best = off.argmin(axis=2)
        row, pair = np.nonzero(np.take_along_axis(off, best[:, :, None], axis=2)[:, :, 0] < half)
        given, taken = (among[place] for place in np.divmod(best[row, pair], len(among)))
        one, other = (row, heavy[row, pair], given), (row, light[row, pair], taken)
        moved = held[one] - held[other]
        loads[one[:2]] -= moved
        loads[other[:2]] += moved
        for each in (held, members):
            each[one], each[other] = each[other], each[one]
    return np.sort(members, axis=2)


def _largest_first(costs: Int64Array, parts: int) -> tuple[npt.NDArray[np.intp], Int64Array]:
    """(steps, parts, items of a part) places of items, and (steps, parts) what they cost."""
    steps, count = costs.shape
    size = count // parts
    members = np.empty((steps, parts, size), np.intp)
    loads = np.empty((steps, parts), np.int64)
    orders = np.argsort(-costs, axis=1, kind="stable")
    for step, falling in enumerate(np.take_along_axis(costs, orders, axis=1).tolist()):
        least, left, taken_by = [(0, part) for part in range(parts)], [size] * parts, list[int]()
        for cost in falling:
            load, part = least[0]
            taken_by.append(part)
            left[part] -= 1
            if left[part]:
                heapq.heapreplace(least, (load + cost, part))
            else:
                heapq.heappop(least)
                loads[step, part] = load + cost
        members[step] = orders[step, np.argsort(taken_by, kind="stable")].reshape(parts, size)
    return members, loads


def _pairs(parts: int) -> list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """The pairings of a cycle: ranks of heavier parts, and of those that they exchange with."""
    ranks = np.arange(parts)
    pairings = [(ranks[: parts // 2], ranks[::-1][: parts // 2])]
    for power in reversed(range((parts - 1).bit_length())):
        apart = 1 << power
        heavy = ranks[(ranks & apart == 0) & (ranks + apart < parts)]
        pairings.append((heavy, heavy + apart))
    return pairings
