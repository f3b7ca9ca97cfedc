"""Fetching ahead what the lanes of a host will read from object stores."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energon_grain.sources.source import Source
from energon_grain.stream.draws import Draws
from energon_grain.stream.operators.feed import FeedLane
from energon_grain.stream.plan import draw_sizes
from energon_grain.stream.read_ahead import Arrival, ReadAhead

_FIRST_SAMPLES = 256
_GROWTH = 4


@dataclass(frozen=True, slots=True)
class _Step:
    """Further rounds of every feed.

    Attributes:
        begins: First round of each feed, and the pass that it belongs to.
        arrival: Of all of them.
    """

    begins: dict[int, tuple[int, int]]
    arrival: Arrival


class LaneReadAhead:
    """Fetches in steps: when half of what was fetched ahead for a lane is used, all lanes are brought up to the full.

    How far each lane is taken ahead goes by what it is expected to ask for. Nothing here changes what lanes get.

    Args:
        ahead: What fetches.
        sources: Of all leaves.
    """

    def __init__(self, ahead: ReadAhead, sources: list[Source]) -> None:
        self._ahead = ahead
        self._sources = sources
        self._ends: dict[int, tuple[int, int]] = {}
        self._steps: deque[_Step] = deque()
        self._samples = float(_FIRST_SAMPLES)

    def arrival(self, feeds: Sequence[FeedLane], shares: Sequence[tuple[FeedLane, int]]) -> Arrival | None:
        """When the next rounds of some feeds will be there; begins to fetch what comes behind them.

        Args:
            feeds: All.
            shares: (feed, how many rounds from `scheduled` on) that are about to be read.
        """
        if not self._ahead:
            return None
        wanted = {id(feed): feed.scheduled + count for feed, count in shares}
        half = self._half(feeds)
        if any(self._end(feed) < min(wanted[id(feed)] + half[id(feed)], feed.count) for feed, _ in shares):
            self._step(feeds, wanted, half)
        place = self._newest(shares)
        for _ in range(place):
            self._steps.popleft()
        return self._steps[0].arrival if self._steps else None

    def _half(self, feeds: Sequence[FeedLane]) -> dict[int, int]:
        """Rounds of each feed that are a fair share of one step."""
        weight = np.array([max(feed.expected, 1e-3) for feed in feeds])
        rounds: list[int] = np.ceil(self._samples * weight / weight.sum()).astype(np.int64).tolist()
        return {id(feed): count for feed, count in zip(feeds, rounds, strict=True)}

    def _newest(self, shares: Sequence[tuple[FeedLane, int]]) -> int:
        """Place of the last step that these rounds reach into."""
        for place in range(len(self._steps) - 1, 0, -1):
            begins = self._steps[place].begins
            for feed, count in shares:
                begin = begins.get(id(feed))
                if begin is not None and begin[0] == feed.pass_number and begin[1] < feed.scheduled + count:
                    return place
        return 0

    def _end(self, feed: FeedLane) -> int:
        """First round of a feed's pass that was not yet fetched ahead."""
        pass_number, end = self._ends.get(id(feed), (feed.pass_number, 0))
        return max(end, feed.scheduled) if pass_number == feed.pass_number else feed.scheduled

    def _step(self, feeds: Sequence[FeedLane], wanted: dict[int, int], half: dict[int, int]) -> None:
        """Begin to fetch rounds of all feeds, up to twice their share of a step beyond what is wanted now."""
        by_node: dict[int, list[tuple[FeedLane, int, int]]] = {}
        for feed in feeds:
            begin = self._end(feed)
            end = min(wanted.get(id(feed), feed.scheduled) + 2 * half[id(feed)], feed.count)
            if begin < end:
                by_node.setdefault(feed.node.index, []).append((feed, begin, end))
        runs = [run for same in by_node.values() for run in same]
        draws = joined_draws(
            [
                same[0][0].node.draw(np.concatenate([feed.positions_from(begin, end) for feed, begin, end in same]))
                for same in by_node.values()
            ]
        )
        owner = np.repeat(np.arange(len(runs)), [end - begin for _, begin, end in runs])
        need = np.concatenate([np.arange(begin - feed.scheduled, end - feed.scheduled) for feed, begin, end in runs])
        order = np.argsort(need / np.array([half[id(feed)] for feed, _, _ in runs])[owner], kind="stable")
        coming = self._ahead.fetch(draws[order])
        # What is fetched ends where it would be too much.
        covered = np.bincount(owner[order[: len(coming)]], minlength=len(runs)).tolist()
        begins: dict[int, tuple[int, int]] = {}
        for (feed, begin, _), rounds in zip(runs, covered, strict=True):
            if rounds:
                begins[id(feed)] = feed.pass_number, begin
                self._ends[id(feed)] = feed.pass_number, begin + rounds
        self._steps.append(_Step(begins, coming.until(len(coming))))
        mean_bytes = max(1.0, float(draw_sizes(draws, self._sources).mean()))
        self._samples = max(1.0, min(self._samples * _GROWTH, self._ahead.step_bytes / mean_bytes))


def joined_draws(draws: list[Draws]) -> Draws:
    """Draws, one behind the other."""
    if len(draws) == 1:
        return draws[0]
    return Draws(
        leaf=np.concatenate([part.leaf for part in draws]),
        child=np.concatenate([part.child for part in draws]),
        index=np.concatenate([part.index for part in draws]),
        epoch=np.concatenate([part.epoch for part in draws]),
    )
