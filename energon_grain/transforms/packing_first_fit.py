"""First-fit-decreasing: the longest samples first, each into the first pack with room for it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from energon_grain.transforms.packing_one_by_one import longest_that_fit, one_by_one


def first_fit_decreasing_indices(
    lengths: npt.NDArray[np.int64], capacity: int, max_samples: int | None = None, *, first_leads: bool = False
) -> list[list[int]]:
    """Groups of indices, each of at most `capacity` in sum; every index once.

    Packs are made one after the other: a pack takes the longest sample that is left and fits, until none does. That
    gives the packs of first-fit-decreasing (a sample enters the first pack exactly if it fits when its turn comes,
    whatever other packs hold), with one binary search a sample. It needs at most 11/9 OPT + 6/9 packs (D. S. Johnson,
    *Near-optimal bin packing algorithms*, 1973; the constant: G. Dósa, *The tight bound of first fit decreasing
    bin-packing algorithm*, 2007).

    Args:
        lengths: (n,), each between 0 and `capacity`.
        capacity: What the lengths of a pack add up to at most.
        max_samples: How many samples a pack holds at most.
        first_leads: Whether index 0 opens the first pack, which is then filled as any other.

    Raises:
        ConfigError: A length does not fit, or a limit is less than 1.
    """
    return one_by_one(lengths, capacity, max_samples, first_leads, longest_that_fit)
