# SPDX-License-Identifier: Apache-2.0
"""Sources of samples for lanes: an index map and the hooks on its samples, read ahead or directly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from energon_grain.stream.chunks import MAX_CHUNK, Chunk, ChunkPace, Encoded
from energon_grain.stream.drops import Dropped, PartialItem
from energon_grain.stream.index_map import Draws, Sources
from energon_grain.stream.lanes import Feed, Item, Items, Lane, Samples
from energon_grain.stream.look_ahead import LookAhead, PrefetchedChunk
from energon_grain.stream.state import Position

FeedState = tuple[int, int]
"""(pass, rounds taken in it)."""
Run = Callable[[Chunk], Encoded]
_DIRECT_CHUNK = 64
_FIRST_SAMPLES = 256
_GROWTH = 4


class Refill(Protocol):
    """Adds samples to the queue of a lane."""

    def __call__(self, feed: FeedLane) -> None:
        """Queue at least one entry of the lane's next rounds, which exist."""


class FeedLane:
    """One lane of a feed: a queue of samples that were read ahead.

    Attributes:
        queue: (position, encoded sample or `Dropped`) of the next rounds.
        taken: Rounds taken in this pass.
        scheduled: Rounds that are taken, queued or being read.
        expected: Samples that will probably be requested soon.
    """

    __slots__ = (
        "_refill",
        "_requested",
        "count",
        "expected",
        "lane",
        "node",
        "pass_number",
        "queue",
        "scheduled",
        "taken",
    )

    def __init__(self, node: Feed, lane: Lane, state: FeedState | None, refill: Refill) -> None:
        self.node = node
        self.lane = lane
        self.queue: deque[tuple[int, Any]] = deque()
        self.expected = 1.0
        self._refill = refill
        self._requested = 0
        self.pass_number, self.taken = (lane.pass_number if node.finite else 0, 0) if state is None else state
        self.scheduled = self.taken
        self.count = node.rounds(lane.number, self.pass_number)

    def begin(self, pass_number: int) -> None:
        if not self.node.finite or (self.pass_number == pass_number and not self.taken):
            return
        self.pass_number = pass_number
        self.taken = self.scheduled = 0
        self.count = self.node.rounds(self.lane.number, pass_number)
        self.queue.clear()

    def next(self) -> Item | None:
        """The next sample that was not dropped."""
        while True:
            if not self.queue:
                if self.taken >= self.count:
                    return None
                self._refill(self)
            entry = self.queue.popleft()
            self.taken += 1
            self._requested += 1
            if type(entry[1]) is PartialItem:
                for dropped in entry[1].dropped:
                    self.lane.context.on_drop(dropped)
                entry = entry[0], entry[1].value
            if type(entry[1]) is not Dropped:
                if self.lane.context.failing:
                    self.lane.context.succeeded("")
                return entry
            self.lane.dropped(entry[1])

    def state(self) -> FeedState:
        return self.pass_number, self.taken

    def take_requests(self) -> int:
        """Samples requested since the last call of this method."""
        taken, self._requested = self._requested, 0
        return taken

    def expect(self, items: float) -> None:
        """Set how many samples to read ahead."""
        self.expected = items

    def positions_from(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Positions of rounds of this pass."""
        return self.node.in_stream(self.lane.number, self.pass_number, np.arange(first, stop))


_Rounds = tuple[FeedLane, int, int]
"""Rounds of a feed: the first, and one past the last."""


def _drawn(runs: Sequence[_Rounds]) -> tuple[list[_Rounds], list[npt.NDArray[np.int64]], Draws]:
    """The rounds, grouped by feed, with their positions, and the draws of all of them.

    One call of the samplers draws for all lanes of a feed.
    """
    by_node: dict[int, list[_Rounds]] = {}
    for run in runs:
        by_node.setdefault(run[0].node.index, []).append(run)
    runs = [run for same in by_node.values() for run in same]
    parts = [feed.positions_from(begin, end) for feed, begin, end in runs]
    split = iter(parts)
    draws = [same[0][0].node.draw(np.concatenate([next(split) for _ in same])) for same in by_node.values()]
    return runs, parts, Draws.joined(draws)


class LaneChunks:
    """Reads ahead for all lanes of a host.

    It is also the iterator of chunks for workers. A chunk first covers the expected requests of each lane, in the order
    of the lanes' turns. The remaining space goes to the feeds that have the least relative to their expectation. Lanes
    advance unevenly, and each is read from its own position: none delays another, and all read-ahead stays within a few
    chunks. This affects speed only, never the samples of a lane.
    """

    def __init__(self, sources: Sources, pace: ChunkPace, ahead: LookAhead | None) -> None:
        self._sources = sources
        self._pace = pace
        self._ahead = LaneLookAhead(ahead, sources)
        self._feeds: list[FeedLane] = []
        self._pending: deque[list[tuple[FeedLane, int, list[int]]]] = deque()
        self._urgent: FeedLane | None = None
        self._number = 0
        self._most = MAX_CHUNK
        self.encoded: Iterator[Encoded] = iter(())
        self.expect: Callable[[], None] = lambda: None

    def open(self, feed: Feed, lane: Lane, state: FeedState | None) -> Items:
        opened = FeedLane(feed, lane, state, self._refill)
        self._feeds.append(opened)
        return opened

    def _refill(self, feed: FeedLane) -> None:
        while not feed.queue:
            self._urgent = feed
            encoded = next(self.encoded)
            at = 0
            for other, pass_number, positions in self._pending.popleft():
                stop = at + len(positions)
                if other.pass_number == pass_number:  # otherwise its pass was cut short in the meantime
                    other.queue.extend(zip(positions, encoded.outcomes[at:stop], strict=True))
                at = stop
        self._urgent = None

    def __iter__(self) -> LaneChunks:
        return self

    def __next__(self) -> Chunk:
        """The next chunk to read.

        Raises StopIteration if every lane has all samples of its pass. When a new pass begins, there may be more.
        """
        self.expect()
        shares = self._shares()
        if not shares:
            raise StopIteration
        ahead = self._ahead.prefetched(self._feeds, shares)
        runs = [(feed, feed.scheduled, feed.scheduled + count) for feed, count in shares]
        runs, parts, draws = _drawn(runs)
        sizes = np.cumsum(self._sources.sizes(draws))
        fits = max(1, int(np.searchsorted(sizes, self._pace.size_bytes, side="right")))
        pending: list[tuple[FeedLane, int, list[int]]] = []
        left = fits
        for (feed, *_), part in zip(runs, parts, strict=True):
            positions = part[:left].tolist()
            if not positions:
                break
            feed.scheduled += len(positions)
            left -= len(positions)
            pending.append((feed, feed.pass_number, positions))
        self._most = fits if fits < len(draws) else MAX_CHUNK
        fits = min(fits, len(draws))
        self._pending.append(pending)
        self._number += 1
        return Chunk(number=self._number - 1, draws=draws[:fits], size_bytes=int(sizes[fits - 1]), prefetched=ahead)

    def _shares(self) -> list[tuple[FeedLane, int]]:
        """How many further rounds to read for which feeds, the most urgent first."""
        feeds, first = self._feeds, 0
        requested = {id(feed): feed.take_requests() for feed in feeds}
        if self._urgent is not None:
            first = feeds.index(self._urgent)
        feeds = [feed for feed in (*feeds[first:], *feeds[:first]) if feed.scheduled < feed.count]
        if not feeds:
            return []
        room = self._pace.samples
        ahead = np.array([feed.scheduled - feed.taken for feed in feeds], np.float64)
        left = np.array([min(feed.count - feed.scheduled, MAX_CHUNK) for feed in feeds], np.int64)
        expected = np.array([max(feed.expected, 1e-3) for feed in feeds])
        wanted = np.minimum(np.maximum(np.ceil(expected - ahead), 0), left).astype(np.int64)
        if feeds[0] is self._urgent and ahead[0] == 0:
            # It needs more than expected: double the amount each time, while that continues.
            wanted[0] = min(max(1, wanted[0], 2 * requested[id(feeds[0])]), left[0])
        wanted = np.diff(np.minimum(np.cumsum(wanted), room), prepend=0)
        spare = room - int(wanted.sum())
        if spare > 0:
            # Samples that wait in all lanes together, beyond what lanes are expected to request.
            spare = min(spare, int(min(self._pace.ahead, self._pace.depth * self._most) - ahead.sum()))
        if spare > 0 and (wanted.any() or spare >= min(room, int(left.sum())) // 2):
            wanted += np.minimum(_level(ahead + wanted, expected, spare), left - wanted)
        return [(feed, count) for feed, count in zip(feeds, wanted.tolist(), strict=True) if count]


def _level(have: npt.NDArray[np.float64], weight: npt.NDArray[np.float64], spare: int) -> npt.NDArray[np.int64]:
    """Integers with a sum of at most `spare` that raise `have / weight` to a common level from below."""
    ratio = have / weight
    order = np.argsort(ratio, kind="stable")
    total_weight, total_have = np.cumsum(weight[order]), np.cumsum(have[order])
    # With the first k raised to a common level, the level is (spare + their `have`) / their weight.
    levels = (spare + total_have) / total_weight
    reached = np.append(ratio[order][1:] >= levels[:-1], True)
    level = levels[int(np.argmax(reached))]
    more = np.maximum(np.floor(level * weight - have), 0).astype(np.int64)
    if not more.any():
        more[order[0]] = 1
    return np.diff(np.minimum(np.cumsum(more), spare), prepend=0)


class DirectReader:
    """Reads a few samples at a time on request, to replay single items."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def open(self, feed: Feed, lane: Lane, state: FeedState | None) -> Items:
        return FeedLane(feed, lane, state, self._refill)

    def _refill(self, feed: FeedLane) -> None:
        stop = min(feed.scheduled + _DIRECT_CHUNK, feed.count)
        positions = feed.positions_from(feed.scheduled, stop)
        encoded = self._run(Chunk(number=-1, draws=feed.node.draw(positions), size_bytes=0))
        feed.queue.extend(zip(positions.tolist(), encoded.outcomes, strict=True))
        feed.scheduled = stop


def read_positions(
    positions: list[Position], feeds: Sequence[Feed], sources: Sources, run: Run, pace: ChunkPace
) -> Samples:
    """Encoded samples of positions, read together, one for each time that a position is listed.

    Dropped samples are returned as `Dropped`.
    """
    read: Samples = {}
    by_feed: dict[int, list[int]] = {}
    for feed, position in positions:
        by_feed.setdefault(feed, []).append(position)
    for feed, wanted in by_feed.items():
        draws = feeds[feed].draw(np.array(wanted, np.int64))
        sizes = np.cumsum(sources.sizes(draws))
        first = 0
        while first < len(wanted):
            before = int(sizes[first - 1]) if first else 0
            fits = int(np.searchsorted(sizes, before + pace.size_bytes, side="right"))
            stop = min(max(fits, first + 1), first + MAX_CHUNK, len(wanted))
            encoded = run(Chunk(number=-1, draws=draws[first:stop], size_bytes=int(sizes[stop - 1]) - before))
            for position, outcome in zip(wanted[first:stop], encoded.outcomes, strict=True):
                value = outcome.value if type(outcome) is PartialItem else outcome
                read.setdefault((feed, position), []).append(value)
            first = stop
    return read


@dataclass(frozen=True, slots=True)
class _Step:
    """Further rounds of every feed.

    Attributes:
        begins: First round of each feed, and its pass.
    """

    begins: dict[int, tuple[int, int]]
    prefetched: PrefetchedChunk


class LaneLookAhead:
    """Prefetches in steps: when half of a lane's prefetched rounds are used, all lanes are filled up again.

    Lanes are prefetched in proportion to their expected requests. This never changes the samples of a lane.
    """

    def __init__(self, ahead: LookAhead | None, sources: Sources) -> None:
        self._ahead = ahead
        self._sources = sources
        self._ends: dict[int, tuple[int, int]] = {}
        self._steps: deque[_Step] = deque()
        self._samples = float(_FIRST_SAMPLES)

    def prefetched(self, feeds: Sequence[FeedLane], shares: Sequence[tuple[FeedLane, int]]) -> PrefetchedChunk | None:
        """The handle of the prefetched next rounds of some feeds. Also starts prefetching the rounds after them.

        Args:
            feeds: All feeds.
            shares: (feed, number of rounds after `scheduled`) that are about to be read.
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
        return self._steps[0].prefetched if self._steps else None

    def _half(self, feeds: Sequence[FeedLane]) -> dict[int, int]:
        """Rounds of each feed that are its fair share of one step."""
        weight = np.array([max(feed.expected, 1e-3) for feed in feeds])
        rounds: list[int] = np.ceil(self._samples * weight / weight.sum()).astype(np.int64).tolist()
        return {id(feed): count for feed, count in zip(feeds, rounds, strict=True)}

    def _newest(self, shares: Sequence[tuple[FeedLane, int]]) -> int:
        """Index of the last step that these rounds reach into."""
        for place in range(len(self._steps) - 1, 0, -1):
            begins = self._steps[place].begins
            for feed, count in shares:
                begin = begins.get(id(feed))
                if begin is not None and begin[0] == feed.pass_number and begin[1] < feed.scheduled + count:
                    return place
        return 0

    def _end(self, feed: FeedLane) -> int:
        """First round of a feed's pass that is not prefetched yet."""
        pass_number, end = self._ends.get(id(feed), (feed.pass_number, 0))
        return max(end, feed.scheduled) if pass_number == feed.pass_number else feed.scheduled

    def _step(self, feeds: Sequence[FeedLane], wanted: dict[int, int], half: dict[int, int]) -> None:
        """Start prefetching rounds of all feeds, up to twice their share of a step beyond the current requests."""
        assert self._ahead is not None
        runs: list[_Rounds] = []
        for feed in feeds:
            begin = self._end(feed)
            end = min(wanted.get(id(feed), feed.scheduled) + 2 * half[id(feed)], feed.count)
            if begin < end:
                runs.append((feed, begin, end))
        runs, _, draws = _drawn(runs)
        owner = np.repeat(np.arange(len(runs)), [end - begin for _, begin, end in runs])
        need = np.concatenate([np.arange(begin - feed.scheduled, end - feed.scheduled) for feed, begin, end in runs])
        order = np.argsort(need / np.array([half[id(feed)] for feed, _, _ in runs])[owner], kind="stable")
        prefetched = self._ahead.fetch(draws[order])
        # The prefetch ends early where it would be too large.
        covered = np.bincount(owner[order[: len(prefetched)]], minlength=len(runs)).tolist()
        begins: dict[int, tuple[int, int]] = {}
        for (feed, begin, _), rounds in zip(runs, covered, strict=True):
            if rounds:
                begins[id(feed)] = feed.pass_number, begin
                self._ends[id(feed)] = feed.pass_number, begin + rounds
        self._steps.append(_Step(begins, prefetched.until(len(prefetched))))
        mean_bytes = max(1.0, float(self._sources.sizes(draws).mean()))
        self._samples = max(1.0, min(self._samples * _GROWTH, self._ahead.step_bytes / mean_bytes))
