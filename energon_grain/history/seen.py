# SPDX-License-Identifier: Apache-2.0
"""How often a run used each sample, in numpy: laps of a dataset that are over count as a whole, the rest is drawn.

The items of a run until a step are the first positions of the order. `history.prefixes` gives the positions of each
leaf that they use: nearly all of the first ones. In each lap over a leaf, every sample is drawn as often as there are
passes in the lap, so only the positions of the last lap are drawn, forward: that needs no inverse and no sorting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.amendments.exclusions import EXCLUDED
from energon_grain.errors import StateError
from energon_grain.history.positions import repeats_pass
from energon_grain.history.prefixes import Prefix, leaves_of
from energon_grain.history.timeline import Timeline
from energon_grain.history.uncertain_uses import taken_at
from energon_grain.history.uses import Seen, SeenDataset
from energon_grain.history.which import is_filtered
from energon_grain.planning.planned_packing import PlannedPacks
from energon_grain.stream.index_map import Draws, IndexMap
from energon_grain.stream.passes import Progress, place_of
from energon_grain.stream.run import Run

Int64Array = npt.NDArray[np.int64]
_AT_ONCE = 1 << 18
"""Positions that are drawn together: their arrays stay in the cache of a core."""


def seen(run: Run, now: Progress, until: int | None = None, *, dropped: bool) -> Seen:
    """Count the uses of each sample by the steps before a step.

    Args:
        run: The running stream, and what it knows of the past.
        now: Current place of the stream.
        until: The step; None: that of `now`.
        dropped: Whether this stream is known to have dropped something.

    Raises:
        StateError: The step is negative, or steps depend on data and the place at the step is not known; or the run had
            another configuration before.
    """
    until = now.step if until is None else until
    _check(run, until)
    counting = _Counting(run)
    if run.spec.program is not None or dropped or now.drops.any() or now.history[0][0]:
        counting.known_place(_place_at(run, now, until))
    else:
        counting.first_steps(now, until)
    found = Seen(counting.datasets())
    found.until = until
    found.exact = not (dropped or now.drops.any() or is_filtered(run.spec))
    return found


def _check(run: Run, until: int) -> None:
    if until < 0:
        raise StateError(f"seen(until={until}): steps are counted 0, 1, 2, …")
    if run.changed and run.since is not None and run.since.step:
        raise StateError(
            f"seen: the run had another configuration or other data before step {run.since.step}, where it was "
            f"restored at the same position; call this with that configuration and data"
        )


def _place_at(run: Run, now: Progress, until: int) -> Progress:
    """The known place at a step. Raises StateError if there is none, or if this host knows only its own lanes."""
    if until == 0:
        return Progress(drops=np.zeros(run.share.local_lanes, np.int64))
    places = [now, *run.saved, *([] if run.since is None else [run.since])]
    found = next((place for place in places if place.step == until), None)
    if found is None:
        raise StateError(
            f"seen(until={until}): samples are dropped, filtered, grouped or packed, so the uses until a step follow "
            f"from a state of that step only; restore it, and call this without `until`. Known steps: "
            f"{', '.join(map(str, sorted({0, *(place.step for place in places)})))}"
        )
    if run.share.hosts > 1:
        raise StateError(
            "seen: samples are dropped, filtered, grouped or packed, and this host knows only its own lanes; restore a "
            "state of all hosts (save_state_global) on one host, and call this there"
        )
    return found


@dataclass(slots=True, eq=False)
class _Counting:
    """The counts of all leaves."""

    run: Run
    times: list[npt.NDArray[np.int32]] = field(init=False)

    def __post_init__(self) -> None:
        self.times = [np.zeros(len(leaf.leaf.source), np.int32) for leaf in self.run.spec.leaves]

    def datasets(self) -> Iterator[SeenDataset]:
        for leaf, times in zip(self.run.spec.leaves, self.times, strict=True):
            if leaf.key[0] == EXCLUDED:  # only drops samples of another leaf
                continue
            source: Any = leaf.leaf.source
            keys = getattr(source, "keys", None)
            yield SeenDataset(name="/".join(leaf.key), dataset=str(source.path), times=times, keys=keys)

    def first_steps(self, now: Progress, until: int) -> None:
        """Count the steps before a step, if the order is arithmetic."""
        spec, hosts = self.run.spec, self.run.share.hosts
        order, timeline = spec.order, Timeline(spec, hosts, now)
        pass_number, item, _ = place_of(spec, hosts, now.history, until)
        self._prefix(order, 0, Prefix(order.start(pass_number) + item), pass_number)
        if order.passes is not None:  # the last items of a pass can be in no batch
            passes = np.arange(pass_number)
            for number, end in zip(passes.tolist(), timeline.delivered(passes).tolist(), strict=True):
                self._range(order, 0, number, end, order.length(number) or 0, -1)
        for first, steps in now.skipped:
            if first < until:
                self._skipped(now, first, min(steps, until - first))

    def _skipped(self, now: Progress, first: int, steps: int) -> None:
        """Remove the items of steps that were skipped, which are in one pass."""
        spec, hosts = self.run.spec, self.run.share.hosts
        pass_number, item, size = place_of(spec, hosts, now.history, first)
        length = spec.order.length(pass_number)
        end = item + steps * size
        self._range(spec.order, 0, pass_number, item, end if length is None else min(end, length), -1)

    def known_place(self, place: Progress) -> None:
        """Count what the lanes took until a place, except what they hold."""
        program, document = self.run.spec.program, self.run.spec.document
        if document is not None and document != tuple(range(len(document))):
            raise StateError(
                "seen: datasets were moved in this run, or added to blends that others follow, and their uses are not "
                "counted yet; `when` finds the uses of one sample"
            )
        feeds = (
            [(-1, self.run.spec.order, 1, 0)]
            if program is None
            else [(feed.index, feed.order, feed.stripe, feed.leaves[0]) for feed in program.feeds]
        )
        for number, order, stripe, first in feeds:
            taken = taken_at(self.run, place, number)
            least = int(taken.passes.min())
            self._prefix(order, first, _of_lanes(order, taken.passes, taken.rounds, stripe), least)
            if taken.held:
                self._drawn(order.draw_in_stream(np.array(sorted(taken.held), np.int64)), first, -1)

    def _prefix(self, order: IndexMap, first_leaf: int, prefix: Prefix, passes: int) -> None:
        """Count positions of an index map; of one that repeats its first pass, after `passes` whole ones."""
        if repeats_pass(order) and passes:
            before = [times.copy() for times in self.times]
            self._prefix(order, first_leaf, Prefix(order.length(0) or 0), 0)
            for times, old in zip(self.times, before, strict=True):
                times += (times - old) * np.int32(passes - 1)
        if isinstance(order.planned, PlannedPacks):
            for items, sign in ((prefix.rest, 1), (prefix.without, -1)):
                if len(items):
                    self._drawn(order.draw_in_stream(items), first_leaf, sign)
            whole, without, rest = order.planned.taken(prefix.whole)
            order, prefix = order.planned.child, Prefix(whole, rest, without)
        for leaf, own in enumerate(leaves_of(order.routes, prefix)):
            self._leaf(order, leaf, first_leaf + leaf, own)

    def _leaf(self, order: IndexMap, number: int, leaf: int, prefix: Prefix) -> None:
        """Count positions of one leaf: whole laps at once, the rest one by one."""
        of = self.run.spec.leaves[leaf].order
        passes = of.passes if of.shuffle else 1
        lap = of.n * passes
        laps = 0 if of.shuffle and of.replacement else prefix.whole // lap
        self.times[leaf] += np.int32(laps * passes)
        for begin in range(laps * lap, prefix.whole, _AT_ONCE):
            child = np.arange(begin, min(begin + _AT_ONCE, prefix.whole))
            np.add.at(self.times[leaf], order.table.draw(number, child)[0], np.int32(1))
        for child, sign in ((prefix.rest, 1), (prefix.without, -1)):
            for begin in range(0, len(child), _AT_ONCE):
                index, _ = order.table.draw(number, child[begin : begin + _AT_ONCE])
                np.add.at(self.times[leaf], index, np.int32(sign))

    def _range(self, order: IndexMap, first_leaf: int, pass_number: int, begin: int, end: int, sign: int) -> None:
        """Count the items [begin, end) of a pass."""
        for at in range(begin, end, _AT_ONCE):
            draws = order.draw(np.arange(at, min(at + _AT_ONCE, end)), pass_number)
            self._drawn(draws, first_leaf, sign)

    def _drawn(self, draws: Draws, first_leaf: int, sign: int) -> None:
        for leaf, _, own in draws.members.by_leaf():
            np.add.at(self.times[first_leaf + leaf], own.index, np.int32(sign))


def _of_lanes(order: IndexMap, passes: Int64Array, rounds: Int64Array, stripe: int) -> Prefix:
    """The positions, over all passes, that lanes have taken with these rounds of these passes, (L,) each."""
    first, lanes = int(passes.min()), len(rounds)
    own = np.where(passes == first, rounds, 1 << 62)
    base = int(own.min()) // stripe * stripe
    start, parts = order.start(first), list[Int64Array]()
    if (passes == first).all():
        more = rounds - base
        lane = np.repeat(np.arange(lanes), more)
        turn = base + np.arange(len(lane)) - np.repeat(np.cumsum(more) - more, more)
        parts.append(start + (turn // stripe * lanes + lane) * stripe + turn % stripe)
    else:
        for number in range(first, int(passes.max()) + 1):
            places = np.arange(order.length(number) or 0)
            block = places // stripe
            lane, turn = block % lanes, block // lanes * stripe + places % stripe
            taken = (passes[lane] > number) | ((passes[lane] == number) & (turn < rounds[lane]))
            taken &= (turn >= base) | (number > first)
            parts.append(order.start(number) + places[taken])
    return Prefix(start + base * lanes, np.concatenate(parts))
