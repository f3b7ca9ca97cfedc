# SPDX-License-Identifier: Apache-2.0
"""Planning packs from costs alone: which samples of a window go together, before any of them is read.

A pack is filled by the largest sample that still fits, again and again: that makes the packs of first fit decreasing
(Johnson 1973), close to the best there are. Of samples of equal cost it does not matter which is taken. So a window is
counted, how often there is each cost, and the search for the largest that fits is a bisection in the costs that are
left, as in the best fit by integer lengths of Krell et al. (arXiv:2107.02027). Equal samples enter a pack together, and
a pack that can be filled in the same way again is repeated as often as the counts allow: what takes time is the number
of different packs.

Two things keep this apart from sorting all samples at once. The packs of a window come in a keyed random order: by
size, one of them would hold the longest samples, and training would see them first. And the emptiest packs do not come
at all: their samples are the first of the next window, at most `CARRIED` of them, and none for more than `PATIENCE`
windows. With windows of 16,384 samples this fills packs to 0.9999, 0.9999 and 0.9984 of what first fit decreasing over
all of 1,000,000 samples at once does (Zipf 1.2, log-normal, uniform), for 1.5 to 3.3 µs a pack
(`python -m benchmarks.plan_packs`).

    costs 5 9 3 7 1 8, capacity 10:  9+1, 8, 7+3, 5      the packs, largest first
    the emptiest is carried:         9+1, 8, 7+3         and the 5 is the first sample of the next window

Several costs: samples are parted by all costs but the first (which are rounded up to 32nds of their capacities where
that makes more than 64 parts); the search goes through the parts, and takes what has the largest share of all
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
"""Samples that a window leaves to the next one at most: so many positions a saved state may hold."""
PATIENCE = 4
"""Windows after which a sample is in a pack at the latest, however empty that is."""
_FULL = 0.99
"""A pack that is filled so far is not carried."""
_PARTS, _GRID = 64, 32
_FAR = 1 << 32


@dataclass(frozen=True, slots=True, eq=False)
class WindowPacks:
    """The packs of a window.

    Attributes:
        cuts: (packs + 1,) where each pack begins among the members.
        members: (m,) number of a sample in the window; those of a pack in ascending order.
        starts: (m,) first unit of the sample's first cost that is in the pack; 0 but for samples that were split.
        stops: (m,) one past the last.
        rest: (k,) samples that are carried over, in ascending order.
        dropped: (d,) samples that are larger than a pack, and left out.
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
    """Samples that are larger than a pack. Raises as `plan_packs`."""
    large = np.flatnonzero(over.any(axis=0))
    wrong = large[:0]
    if oversize == "error":
        wrong = large
    elif oversize == "split":
        wrong = np.flatnonzero(over[1:].any(axis=0))
    if len(wrong):
        raise OversizeSample(int(wrong[0]), int(np.argmax(over[:, wrong[0]])))
    return large


class OversizeSample(ValueError):  # noqa: N818 (a signal: who knows the sample says more)
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
    """Put the samples of a window into packs.

    Parts of a sample that is split lie in consecutive packs, which may hold parts of others, too: whole packs of it,
    and what is left in a pack with other samples, in front of them or behind them.

    Args:
        costs: (costs, n) of each sample, 0 or more.
        capacities: Of a pack, one for each cost, above 0.
        key: Of the order of packs.
        oversize: What becomes of a sample that is larger than a pack: "error"; it is "split" by its first cost; it is
            left out ("drop"); it has a pack "alone", which is then over the capacity.
        patient: Samples from this number on may be carried over.
        last: No window follows: nothing is carried.

    Raises:
        OversizeSample: A sample is larger than a pack, with `oversize="error"`; or in another cost than the first,
            with "split".
    """
    count = costs.shape[1]
    limits = np.array(capacities, np.int64)[:, None]
    large = _too_large(costs > limits, oversize)
    starts, stops = np.zeros(count, np.int64), costs[0].copy()
    kept = np.ones(count, np.bool_)
    whole = np.zeros(count, np.int64)
    if oversize == "split":  # what is left of each when it has filled as many packs as it can
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
    come = np.flatnonzero(~carried)
    rank_of_all = permute(np.arange(len(come) + len(alone)), max(1, len(come) + len(alone)), fold(key, "packs"))
    rank[come], rank_of_alone = rank_of_all[: len(come)], rank_of_all[len(come) :]
    # (sample, order of its pack, place beside it) of each member; the whole packs of what is split lie beside it.
    parts = [(samples, rank[pack_of], np.zeros(len(samples), np.int64)), (alone, rank_of_alone, np.zeros_like(alone))]
    begins = [starts[samples], starts[alone]]
    ends = [stops[samples], stops[alone]]
    if oversize == "split" and len(large):
        split = np.flatnonzero(whole[samples])
        chain = split[np.lexsort((samples[split], pack_of[split]))]
        first = np.flatnonzero(np.diff(pack_of[chain], prepend=-1))
        turn = np.arange(len(chain)) - np.repeat(first, np.diff([*first.tolist(), len(chain)]))
        before = turn % 2 == 0  # its whole packs come first, and those of the second one last
        capacity = capacities[0]
        filled, remainder = whole[samples[chain]], costs[0, samples[chain]]
        begins[0][chain] = np.where(before, filled * capacity, 0)
        ends[0][chain] = begins[0][chain] + remainder
        number = np.repeat(np.arange(len(chain)), filled)
        place = np.arange(len(number)) - np.repeat(np.cumsum(filled) - filled, filled)
        beside = np.where(before, -_FAR * (turn + 1), _FAR * (turn + 1))[number] + place
        parts.append((samples[chain][number], rank[pack_of[chain]][number], beside))
        begins.append(np.where(before, 0, remainder)[number] + place * capacity)
        ends.append(begins[-1] + capacity)
    members, ranks, beside = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((members, beside, ranks))
    members, ranks, beside = members[order], ranks[order], beside[order]
    begin = np.flatnonzero((np.diff(ranks, prepend=-1) != 0) | (np.diff(beside, prepend=0) != 0))
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
    """(packs,) which of them are carried over; `must`: samples whose packs are not."""
    filled = np.max(
        [np.bincount(pack_of, row, packs) / limit for row, limit in zip(costs, limits, strict=True)], axis=0
    )
    stays = filled >= _FULL
    stays[pack_of[must]] = True
    order = np.argsort(filled, kind="stable")
    order = order[~stays[order]]
    held = np.cumsum(np.bincount(pack_of, minlength=packs)[order])
    carried = np.zeros(packs, np.bool_)
    carried[order[held <= min(CARRIED, window // 4)]] = True
    return carried


def fill(costs: Int64Array, capacities: tuple[int, ...]) -> tuple[Int64Array, int]:
    """(n,) number of the pack of each sample, none of which is larger than a pack; and how many packs there are."""
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
    # Each run as often as its pack is repeated; then each sample of a kind, in their order, takes the next place.
    repeated = np.arange(int(times.sum())) - np.repeat(np.cumsum(times) - times, times)
    pack, kind, together = np.repeat(first, times) + repeated, np.repeat(kind, times), np.repeat(together, times)
    by_kind = np.argsort(kind, kind="stable")
    pack_of = np.empty(count, np.int64)
    pack_of[order] = np.repeat(pack[by_kind], together[by_kind])
    return pack_of, packs


@dataclass(slots=True)
class _Part:
    """Samples that are equal in all costs but the first.

    Attributes:
        vector: Those costs, or a little more.
        share: Of the capacities, together.
        sizes: The first costs that are left, ascending.
        counts: How many of each.
        kinds: Number of each among all parts' sizes.
    """

    vector: tuple[int, ...]
    share: float
    sizes: list[int]
    counts: list[int]
    kinds: list[int]


def _runs_of_one(part: _Part, capacities: tuple[int, ...]) -> tuple[list[int], int]:
    """(first pack, kind, samples of it in a pack, packs), one behind the other; and how many packs there are.

    What `_runs` does, for samples that are equal in all costs but the first: nearly always, and three times as fast.
    """
    sizes, counts, kinds = part.sizes, part.counts, part.kinds
    capacity = capacities[0]
    most = min((limit // cost for limit, cost in zip(capacities[1:], part.vector, strict=False) if cost), default=_FAR)
    runs: list[int] = []
    packs = 0
    while sizes:
        room, places, at = capacity, most, len(sizes)
        chosen: list[tuple[int, int]] = []
        times = _FAR
        while places:
            at = bisect_right(sizes, room, 0, at) - 1
            if at < 0:
                break
            size, count = sizes[at], counts[at]
            together = min(count, places, room // size if size else count)
            chosen.append((at, together))
            times = min(times, count // together)
            room -= together * size
            places -= together
        for at, together in chosen:  # from the end, so that the others stay where they are
            runs += (packs, kinds[at], together, times)
            counts[at] -= together * times
            if not counts[at]:
                del sizes[at], counts[at], kinds[at]
        packs += times
    return runs, packs


def _runs(parts: list[_Part], capacities: tuple[int, ...]) -> tuple[list[int], int]:
    """As `_runs_of_one`, of several parts."""
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
    """What is put into a pack: (part, place of a size in it, how many samples of that size)."""
    room, *rooms = capacities
    below = [len(part.sizes) for part in parts]
    chosen: list[tuple[_Part, int, int]] = []
    while (found := _largest(parts, below, room, rooms, capacities[0])) is not None:
        part, at = parts[found], below[found] - 1
        below[found] = at
        size, count = part.sizes[at], part.counts[at]
        together = min(
            count,
            room // size if size else count,
            *(left // cost for cost, left in zip(part.vector, rooms, strict=True) if cost),
        )
        chosen.append((part, at, together))
        room -= together * size
        rooms = [left - together * cost for cost, left in zip(part.vector, rooms, strict=True)]
    return chosen


def _largest(parts: list[_Part], below: list[int], room: int, rooms: list[int], capacity: int) -> int | None:
    """The part with the largest samples that still fit; None: none do. Lowers `below` to what fits."""
    best, found = -1.0, None
    for number, part in enumerate(parts):
        if not below[number] or any(cost > left for cost, left in zip(part.vector, rooms, strict=True)):
            continue
        below[number] = bisect_right(part.sizes, room, 0, below[number])
        if below[number] and (share := part.sizes[below[number] - 1] / capacity + part.share) > best:
            best, found = share, number
    return found
