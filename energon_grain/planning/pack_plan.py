# SPDX-License-Identifier: Apache-2.0
"""Plan packs from costs alone: group the samples of a window before any of them is read.

Each pack repeatedly takes the largest sample that still fits. The resulting packs are those of first fit decreasing
(Johnson 1973), which are close to optimal. Samples of equal cost are interchangeable. A window is therefore reduced to
counts per cost, and the largest fitting sample is found by bisection in the remaining costs, as in the best fit by
integer lengths of Krell et al. (arXiv:2107.02027). Equal samples enter a pack together, and a pack that can be filled
in the same way again is repeated while the counts allow it: the running time depends on the number of different packs.

Two things differ from sorting all samples at once. The packs of a window are delivered in a keyed random order: in
order of size, one pack would hold the longest samples, and training would see them first. And the emptiest packs are
not delivered: their samples become the first of the next window, at most `CARRIED` of them, and none for more than
`PATIENCE` windows. With windows of 16,384 samples, this fills packs to 0.9999, 0.9999 and 0.9984 of first fit
decreasing over all of 1,000,000 samples (Zipf 1.2, log-normal, uniform), in 1.5 to 3.3 µs per pack (`python -m
benchmarks.plan_packs`).

    costs 5 9 3 7 1 8, capacity 10:  9+1, 8, 7+3, 5      the packs, largest first
    the emptiest is carried:         9+1, 8, 7+3         and 5 is the first sample of the next window

Several costs: samples are divided into parts by all costs except the first (rounded up to 32nds of their capacities if
there would be more than 64 parts). The search covers all parts, and takes the sample with the largest share of all
capacities together.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from energon_grain.samplers.hashing import fold
from energon_grain.samplers.permutation import permute

Int64Array = npt.NDArray[np.int64]
Oversize = Literal["error", "split", "drop", "alone"]

CARRIED = 256
"""Maximum number of samples that a window leaves to the next one, and of positions in a saved state."""
PATIENCE = 4
"""Maximum number of windows before a sample is packed, even into a nearly empty pack."""
_FULL = 0.99
"""A pack filled to this share is not carried."""
_PARTS, _GRID = 64, 32
_FAR = 1 << 32


@dataclass(frozen=True, slots=True, eq=False)
class WindowPacks:
    """The packs of a window.

    Attributes:
        cuts: (packs + 1,) start of each pack among the members.
        members: (m,) number of a sample in the window; ascending within a pack.
        starts: (m,) first unit of the sample's first cost in the pack; 0 except for split samples.
        stops: (m,) one past the last unit.
        rest: (k,) samples that are carried over, ascending.
        dropped: (d,) samples larger than a pack that are left out.
    """

    cuts: Int64Array
    members: Int64Array
    starts: Int64Array
    stops: Int64Array
    rest: Int64Array
    dropped: Int64Array

    def __len__(self) -> int:
        return len(self.cuts) - 1


def _too_large(over: npt.NDArray[np.bool_], oversize: Oversize) -> npt.NDArray[np.intp]:
    """Return the samples that are larger than a pack. Raises as `plan_packs`."""
    large = np.flatnonzero(over.any(axis=0))
    wrong = large[:0]
    if oversize == "error":
        wrong = large
    elif oversize == "split":
        wrong = np.flatnonzero(over[1:].any(axis=0))
    if len(wrong):
        raise OversizeSample(int(wrong[0]), int(np.argmax(over[:, wrong[0]])))
    return large


class OversizeSample(ValueError):  # noqa: N818 (a signal: the caller knows the sample and raises the full message)
    """A sample is larger than a pack.

    Attributes:
        sample: Its number in the window.
        cost: Number of the cost.
    """

    def __init__(self, sample: int, cost: int) -> None:
        super().__init__(f"sample {sample} is larger than a pack in cost {cost}")
        self.sample, self.cost = sample, cost


def plan_packs(
    costs: Int64Array, capacities: tuple[int, ...], *, key: int, oversize: Oversize, patient: int = 0, last: bool
) -> WindowPacks:
    """Divide the samples of a window into packs.

    The parts of a split sample are in consecutive packs: whole packs of it, and a remainder in a pack with other
    samples, before or after them. These packs may also hold parts of other samples.

    Args:
        costs: (costs, n) of each sample, 0 or more.
        capacities: Capacity of a pack for each cost, above 0.
        key: Key of the order of packs.
        oversize: Handling of a sample larger than a pack: "error"; "split" it by its first cost; "drop" it; or give it
            a pack "alone", which then exceeds the capacity.
        patient: Samples from this number on may be carried over.
        last: Whether no window follows; then nothing is carried.

    Raises:
        OversizeSample: A sample is larger than a pack, with `oversize="error"`; with "split", in another cost than the
            first.
    """
    count = costs.shape[1]
    limits = np.array(capacities, np.int64)[:, None]
    large = _too_large(costs > limits, oversize)
    starts, stops = np.zeros(count, np.int64), costs[0].copy()
    kept = np.ones(count, np.bool_)
    whole = np.zeros(count, np.int64)
    if oversize == "split":  # the remainder of each sample after filling as many whole packs as possible
        whole[large] = (costs[0, large] - 1) // capacities[0]
        costs = costs.copy()
        costs[0] -= whole * capacities[0]
    else:
        kept[large] = False
    samples = np.flatnonzero(kept)
    own = costs[:, samples]
    pack_of, packs = fill(own, capacities)
    carried = np.zeros(packs, np.bool_)
    if not last and packs:
        carried = _emptiest(own, limits, pack_of, packs, (samples < patient) | (whole[samples] > 0), count)
    rest = samples[carried[pack_of]]
    left = ~carried[pack_of]
    samples, pack_of = samples[left], pack_of[left]
    rank = np.full(packs, -1, np.int64)
    alone = large if oversize == "alone" else large[:0]
    delivered = np.flatnonzero(~carried)
    number_of_packs = len(delivered) + len(alone)
    rank_of_all = permute(np.arange(number_of_packs), max(1, number_of_packs), fold(key, "packs"))
    rank[delivered], rank_of_alone = rank_of_all[: len(delivered)], rank_of_all[len(delivered) :]
    # (sample, order of its pack, offset from it) of each member; whole packs of a split sample are next to its pack.
    parts = [(samples, rank[pack_of], np.zeros(len(samples), np.int64)), (alone, rank_of_alone, np.zeros_like(alone))]
    begins = [starts[samples], starts[alone]]
    ends = [stops[samples], stops[alone]]
    if oversize == "split" and len(large):
        split = np.flatnonzero(whole[samples])
        chain = split[np.lexsort((samples[split], pack_of[split]))]
        first = np.flatnonzero(np.diff(pack_of[chain], prepend=-1))
        turn = np.arange(len(chain)) - np.repeat(first, np.diff([*first.tolist(), len(chain)]))
        before = turn % 2 == 0  # whole packs of the first sample precede the pack, those of the second follow it
        capacity = capacities[0]
        filled, remainder = whole[samples[chain]], costs[0, samples[chain]]
        begins[0][chain] = np.where(before, filled * capacity, 0)
        ends[0][chain] = begins[0][chain] + remainder
        number = np.repeat(np.arange(len(chain)), filled)
        place = np.arange(len(number)) - np.repeat(np.cumsum(filled) - filled, filled)
        sort_keys = np.where(before, -_FAR * (turn + 1), _FAR * (turn + 1))[number] + place
        parts.append((samples[chain][number], rank[pack_of[chain]][number], sort_keys))
        begins.append(np.where(before, 0, remainder)[number] + place * capacity)
        ends.append(begins[-1] + capacity)
    members, ranks, sort_keys = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((members, sort_keys, ranks))
    members, ranks, sort_keys = members[order], ranks[order], sort_keys[order]
    begin = np.flatnonzero((np.diff(ranks, prepend=-1) != 0) | (np.diff(sort_keys, prepend=0) != 0))
    return WindowPacks(
        cuts=np.append(begin, len(members)),
        members=members,
        starts=np.concatenate(begins)[order],
        stops=np.concatenate(ends)[order],
        rest=rest,
        dropped=large if oversize == "drop" else large[:0],
    )


def _emptiest(
    costs: Int64Array, limits: Int64Array, pack_of: Int64Array, packs: int, must: npt.NDArray[np.bool_], window: int
) -> npt.NDArray[np.bool_]:
    """Return (packs,) which packs are carried over; `must`: samples whose packs are not carried."""
    filled = np.max(
        [np.bincount(pack_of, row, packs) / limit for row, limit in zip(costs, limits, strict=True)], axis=0
    )
    stays = filled >= _FULL
    stays[pack_of[must]] = True
    order = np.argsort(filled, kind="stable")
    order = order[~stays[order]]
    total = np.cumsum(np.bincount(pack_of, minlength=packs)[order])
    carried = np.zeros(packs, np.bool_)
    carried[order[total <= min(CARRIED, window // 4)]] = True
    return carried


def fill(costs: Int64Array, capacities: tuple[int, ...]) -> tuple[Int64Array, int]:
    """Return (n,) the pack number of each sample, and the number of packs. No sample may be larger than a pack."""
    count = costs.shape[1]
    if not count:
        return np.zeros(0, np.int64), 0
    other = np.zeros(count, np.int64)
    vectors: list[tuple[int, ...]] = [()]
    if len(capacities) > 1:
        found, other = np.unique(costs[1:], axis=1, return_inverse=True)
        if found.shape[1] > _PARTS:
            limits = np.array(capacities[1:], np.int64)[:, None]
            units = -(-limits // _GRID)
            found, other = np.unique(np.minimum(-(-costs[1:] // units) * units, limits), axis=1, return_inverse=True)
        other = other.reshape(-1)
        vectors = [tuple(vector) for vector in found.T.tolist()]
    order = np.lexsort((costs[0], other))
    ordered = np.stack([other[order], costs[0, order]])
    begin = np.flatnonzero(np.any(np.diff(ordered, axis=1, prepend=-1), axis=0))
    kinds = np.diff(np.append(begin, count))
    parts: list[_Part] = []
    for number, vector in enumerate(vectors):
        own = np.flatnonzero(ordered[0, begin] == number)
        share = sum(cost / capacity for cost, capacity in zip(vector, capacities[1:], strict=False))
        sizes = ordered[1, begin[own]]
        parts.append(_Part(vector, share, sizes.tolist(), kinds[own].tolist(), own.tolist()))
    runs, packs = _runs(parts, capacities) if len(parts) > 1 else _runs_of_one(parts[0], capacities)
    first, kind, together, times = np.array(runs, np.int64).reshape(-1, 4).T
    # Repeat each run for its number of packs. Then the samples of a kind take the next positions, in order.
    repeated = np.arange(int(times.sum())) - np.repeat(np.cumsum(times) - times, times)
    pack, kind, together = np.repeat(first, times) + repeated, np.repeat(kind, times), np.repeat(together, times)
    by_kind = np.argsort(kind, kind="stable")
    pack_of = np.empty(count, np.int64)
    pack_of[order] = np.repeat(pack[by_kind], together[by_kind])
    return pack_of, packs


@dataclass(slots=True)
class _Part:
    """Samples that are equal in all costs except the first.

    Attributes:
        vector: Those costs, possibly rounded up.
        share: Their share of the capacities, together.
        sizes: The remaining first costs, ascending.
        counts: Number of samples of each size.
        kinds: Number of each size among the sizes of all parts.
    """

    vector: tuple[int, ...]
    share: float
    sizes: list[int]
    counts: list[int]
    kinds: list[int]


def _runs_of_one(part: _Part, capacities: tuple[int, ...]) -> tuple[list[int], int]:
    """Return (first pack, kind, samples of it per pack, packs) as one flat list, and the number of packs.

    Same result as `_runs`, for samples that are equal in all costs except the first: the usual case, and three times as
    fast.
    """
    sizes, counts, kinds = part.sizes, part.counts, part.kinds
    capacity = capacities[0]
    most = min((limit // cost for limit, cost in zip(capacities[1:], part.vector, strict=False) if cost), default=_FAR)
    runs: list[int] = []
    packs = 0
    while sizes:
        free, places, at = capacity, most, len(sizes)
        chosen: list[tuple[int, int]] = []
        times = _FAR
        while places:
            at = bisect_right(sizes, free, 0, at) - 1
            if at < 0:
                break
            size, count = sizes[at], counts[at]
            together = min(count, places, free // size if size else count)
            chosen.append((at, together))
            times = min(times, count // together)
            free -= together * size
            places -= together
        for at, together in chosen:  # from the end, so earlier positions stay valid
            runs += (packs, kinds[at], together, times)
            counts[at] -= together * times
            if not counts[at]:
                del sizes[at], counts[at], kinds[at]
        packs += times
    return runs, packs


def _runs(parts: list[_Part], capacities: tuple[int, ...]) -> tuple[list[int], int]:
    """Return the result of `_runs_of_one` for several parts."""
    runs: list[int] = []
    packs = 0
    while parts := [part for part in parts if part.sizes]:
        chosen = _one_pack(parts, capacities)
        times = min((part.counts[at] // together for part, at, together in chosen), default=_FAR)
        for part, at, together in chosen:
            runs += (packs, part.kinds[at], together, times)
            part.counts[at] -= together * times
            if not part.counts[at]:
                del part.sizes[at], part.counts[at], part.kinds[at]
        packs += times
    return runs, packs


def _one_pack(parts: list[_Part], capacities: tuple[int, ...]) -> list[tuple[_Part, int, int]]:
    """Choose the content of a pack: (part, position of a size in it, number of samples of that size)."""
    free, *others_free = capacities
    below = [len(part.sizes) for part in parts]
    chosen: list[tuple[_Part, int, int]] = []
    while (found := _largest(parts, below, free, others_free, capacities[0])) is not None:
        part, at = parts[found], below[found] - 1
        below[found] = at
        size, count = part.sizes[at], part.counts[at]
        together = min(
            count,
            free // size if size else count,
            *(left // cost for cost, left in zip(part.vector, others_free, strict=True) if cost),
        )
        chosen.append((part, at, together))
        free -= together * size
        others_free = [left - together * cost for cost, left in zip(part.vector, others_free, strict=True)]
    return chosen


def _largest(parts: list[_Part], below: list[int], free: int, others_free: list[int], capacity: int) -> int | None:
    """Return the part with the largest samples that still fit, or None. Lowers `below` to the sizes that fit."""
    best, found = -1.0, None
    for number, part in enumerate(parts):
        if not below[number] or any(cost > left for cost, left in zip(part.vector, others_free, strict=True)):
            continue
        below[number] = bisect_right(part.sizes, free, 0, below[number])
        if below[number] and (share := part.sizes[below[number] - 1] / capacity + part.share) > best:
            best, found = share, number
    return found
