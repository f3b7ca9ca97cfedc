"""Greedy knapsack: pack after pack, each filled as far as the samples that are left can fill it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from energon_grain.transforms.packing_one_by_one import longest_that_fit, one_by_one

_SEARCHED = 128  # samples that a search weighs up at least, where there are as many


def greedy_knapsack_indices(
    lengths: npt.NDArray[np.int64], capacity: int, max_samples: int | None = None, *, first_leads: bool = False
) -> list[list[int]]:
    """Groups of indices, each of at most `capacity` in sum; every index once.

    Each pack takes the longest sample that is left, and of the others those that fill the rest of it best: a subset-sum
    problem, solved exactly with one big integer whose bit s says that the sum s can be reached, so that adding a
    sample is a shift. If the longest did not come first, short samples, which fill gaps best, would all go into the
    first packs and leave the long ones alone at the end. (The subset-sum heuristic of A. Caprara and U. Pferschy,
    *Worst-case analysis of the subset sum algorithm for bin packing*, 2004; the longest first as in MBS' of K. Fleszar
    and K. S. Hindi, *New heuristics for one-dimensional bin-packing*, 2002.)

    Exact where fewer than 256 samples could enter a pack; of more, every second (third, …) by length is weighed up, and
    the pack is never emptier than the longest samples that fit would make it. A pack for which the best
    filling has more than `max_samples` takes the longest that fit.

    Args:
        lengths: (n,), each between 0 and `capacity`.
        capacity: What the lengths of a pack add up to at most.
        max_samples: How many samples a pack holds at most.
        first_leads: Whether index 0 opens the first pack, which is then filled as any other.

    Raises:
        ConfigError: A length does not fit, or a limit is less than 1.
    """
    return one_by_one(lengths, capacity, max_samples, first_leads, _fullest)


def _fullest(sizes: list[int], end: int, room: int, count: int) -> list[int]:
    """Places among the ascending `sizes[:end]`, descending, at most `count`, whose sizes fill `room` best."""
    longest = longest_that_fit(sizes, end, room, count)
    left = room - sum(sizes[place] for place in longest)
    if not left or len(longest) == end or (end > 1 and sizes[0] + sizes[1] > room):
        return longest
    candidates = range(end - 1, -1, -max(1, end // _SEARCHED))
    within = (2 << room) - 1
    reached, before = 1, list[int]()
    for place in candidates:
        before.append(reached)
        reached |= (reached << sizes[place]) & within
        if reached >> room:
            break
    total = reached.bit_length() - 1
    if total <= room - left:
        return longest
    chosen: list[int] = []
    for place, sums in zip(candidates[len(before) - 1 :: -1], reversed(before), strict=False):
        if not sums >> total & 1:
            chosen.append(place)
            total -= sizes[place]
    return chosen[::-1] if len(chosen) <= count else longest
