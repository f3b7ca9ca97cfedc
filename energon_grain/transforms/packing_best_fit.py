"""Best fit: each sample into the pack that it leaves the least room in."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

from energon_grain.transforms.packing_lengths import check_lengths, in_order_of_arrival


def best_fit_indices(
    lengths: npt.NDArray[np.int64],
    capacity: int,
    max_samples: int | None = None,
    *,
    first_leads: bool = False,
    decreasing: bool = True,
) -> list[list[int]]:
    """Groups of indices, each of at most `capacity` in sum; every index once.

    Of the packs with room for a sample the fullest takes it, of equally full ones the first; where none has room, a
    new one begins. `decreasing`: the longest samples first (best-fit-decreasing), else in their order. It needs at most
    11/9 OPT + 4 packs decreasing, and about 17/10 OPT in any order (D. S. Johnson et al., *Worst-case performance
    bounds for simple one-dimensional packing algorithms*, 1974). A sample costs one binary search in the sorted list
    of open packs, which those leave that have no room for the shortest sample.

    Args:
        lengths: (n,), each between 0 and `capacity`.
        capacity: What the lengths of a pack add up to at most.
        max_samples: How many samples a pack holds at most.
        first_leads: Whether index 0 opens the first pack, whatever its length.
        decreasing: Whether long samples choose before short ones.

    Raises:
        ConfigError: A length does not fit, or a limit is less than 1.
    """
    check_lengths(lengths, capacity, max_samples)
    if not lengths.size:
        return []
    sizes: list[int] = lengths.tolist()
    order: list[int] = np.argsort(-lengths, kind="stable").tolist() if decreasing else list(range(len(sizes)))
    if first_leads:
        order.remove(0)
        order.insert(0, 0)
    shortest = min(sizes)
    bits = len(sizes).bit_length()
    number = (1 << bits) - 1
    packs: list[list[int]] = []
    open_packs: list[
        int
    ] = []  # room << bits | number of the pack, ascending: one search finds the least sufficient room
    for index in order:
        size = sizes[index] << bits
        at = bisect_left(open_packs, size)
        if at == len(open_packs):
            entry = (capacity << bits | len(packs)) - size
            pack = [index]
            packs.append(pack)
        else:
            entry = open_packs.pop(at) - size
            pack = packs[entry & number]
            pack.append(index)
        if entry >> bits >= shortest and len(pack) != max_samples:
            insort(open_packs, entry)
    return in_order_of_arrival(packs)
