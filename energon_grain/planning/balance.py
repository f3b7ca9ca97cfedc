# SPDX-License-Identifier: Apache-2.0
"""Equal work for every host: assign the items of a step to hosts, given the costs of the items.

A step of G items goes to H hosts, exactly b = G / H each, and takes as long as the slowest host. Finding the best
division is NP-hard (multiway number partitioning with equal counts). This one is good, uses only integers, is the same
wherever it is computed, and is cheap enough for every host to compute it for all hosts:

1. *Largest first* (Graham's LPT, with equal counts): items in descending order of cost go to the host with the least
   load among the hosts with fewer than b items, the first of these if loads are equal. Items of equal costs therefore
   keep their default host: item i is at host i mod H.
2. *Exchange.* Hosts are ranked by load and paired. Each pair exchanges the two items that bring its loads closest
   together, if there are any. Pairs alternate: first the heaviest with the lightest, then ranks at a distance of a
   power of two, largest power first (the comparators of a butterfly). Pairing only opposite ranks stops early, when the
   heaviest host has a partner without a useful item. There are two such cycles; four improve hardly more.

All steps of a plan share one numpy call per pair. The number of rounds is fixed, so the division of a step does not
depend on other steps in the call. Example with two hosts and costs 9 8 7 5 1 0: the first host gets 9, the second 8, 7
and 0, the first 5 and 1. Both have 15, and no exchange is needed.

Measured (`benchmarks/balance.py`, largest load over mean load, means of 200 steps): log-normal lengths on 64 hosts of 8
items have 2.51 undivided and 1.208 divided, where 1.207 is a lower bound for any division; Zipf lengths have 3.29,
1.262 and 1.253; uniform lengths on 16 hosts of 8, which could be equal, have 1.36, 1.008 with LPT alone, and 1.002.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
_CYCLES = 2
_COMPARED = 8
"""Items per host that one exchange considers. With more items, there are good pairs among any of them."""


def divide(costs: Int64Array, parts: int) -> npt.NDArray[np.intp]:
    """Divide each step's items into parts of equal counts and nearly equal costs.

    Args:
        costs: (steps, items) 0 or more each; equal costs are distinguished by position.
        parts: Divides the number of items.

    Returns:
        (steps, parts, items of a part) positions of items, ascending within a part.
    """
    steps, count = costs.shape
    size, rest = divmod(count, parts)
    assert not rest
    if parts == 1 or size == 0 or not steps:
        return np.broadcast_to(np.arange(count), costs.shape).reshape(steps, parts, size).copy()
    bits = int(costs.max()).bit_length() + count.bit_length()
    costs = costs >> max(0, bits - 62)  # sums fit into 64 bits; the lost bits are negligible at such costs
    members, loads = _largest_first(costs, parts)
    rows = np.arange(steps)[:, None]
    cycle = _pairs(parts)
    member_costs = costs[rows[:, :, None], members]
    for number in range(_CYCLES * len(cycle)):
        ranks = np.argsort(-loads, axis=1, kind="stable")
        heavy, light = (ranks[:, places] for places in cycle[number % len(cycle)])
        half = (loads[rows, heavy] - loads[rows, light]) >> 1
        among = (number + np.arange(min(size, _COMPARED)) * size // min(size, _COMPARED)) % size
        give, take = member_costs[rows, heavy][:, :, among], member_costs[rows, light][:, :, among]
        # An exchange moves the difference of two costs. The best difference is half the difference of the loads.
        off = np.abs(give[:, :, :, None] - take[:, :, None, :] - half[:, :, None, None]).reshape(*half.shape, -1)
        best = off.argmin(axis=2)
        row, pair = np.nonzero(np.take_along_axis(off, best[:, :, None], axis=2)[:, :, 0] < half)
        given, taken = (among[place] for place in np.divmod(best[row, pair], len(among)))
        one, other = (row, heavy[row, pair], given), (row, light[row, pair], taken)
        moved = member_costs[one] - member_costs[other]
        loads[one[:2]] -= moved
        loads[other[:2]] += moved
        for each in (member_costs, members):
            each[one], each[other] = each[other], each[one]
    return np.sort(members, axis=2)


def _largest_first(costs: Int64Array, parts: int) -> tuple[npt.NDArray[np.intp], Int64Array]:
    """Return (steps, parts, items of a part) positions of items, and (steps, parts) their total costs."""
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
    """Return the pairings of a cycle: ranks of heavier parts, and ranks of their partners."""
    ranks = np.arange(parts)
    pairings = [(ranks[: parts // 2], ranks[::-1][: parts // 2])]
    for power in reversed(range((parts - 1).bit_length())):
        distance = 1 << power
        heavy = ranks[(ranks & distance == 0) & (ranks + distance < parts)]
        pairings.append((heavy, heavy + distance))
    return pairings
