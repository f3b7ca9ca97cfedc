"""Reading samples for lanes: ahead of need and in large chunks, or directly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from energon_grain.sources.source import Source
from energon_grain.stream.chunk import Chunk, Encoded
from energon_grain.stream.chunk_pace import MAX_CHUNK, ChunkPace
from energon_grain.stream.operators.feed import FeedLane, FeedNode, FeedState
from energon_grain.stream.operators.lane import Lane, Samples
from energon_grain.stream.operators.lane_ahead import LaneReadAhead, joined_draws
from energon_grain.stream.operators.operator import Operator
from energon_grain.stream.plan import draw_sizes
from energon_grain.stream.read_ahead import ReadAhead
from energon_grain.stream.state import Position

Run = Callable[[Chunk], Encoded]
_DIRECT_CHUNK = 64
_CHUNKS_AHEAD = 4
"""Samples that wait in all lanes together, in chunks, where nobody is expected to ask for more."""


class AheadReader:
    """Reads ahead for all lanes of a host.

    It is also the iterator of chunks that workers take from. A chunk first fills up what each lane is expected to ask
    for, in the order in which lanes will be asked; what is left goes to the feeds that have least in relation to that.
    Lanes advance unevenly, and each is read from its own place on: none holds up another, and what is read ahead stays
    within a few chunks. This changes speed alone, never what lanes get.

    Args:
        sources: Of all leaves.
        pace: How much a chunk may hold.
        ahead: Fetches what lies in object stores.
    """

    def __init__(self, sources: list[Source], pace: ChunkPace, ahead: ReadAhead) -> None:
        self._sources = sources
        self._pace = pace
        self._ahead = LaneReadAhead(ahead, sources)
        self._feeds: list[FeedLane] = []
        self._pending: deque[list[tuple[FeedLane, int, list[int]]]] = deque()
        self._urgent: FeedLane | None = None
        self._number = 0
        self._most = MAX_CHUNK
        self.encoded: Iterator[Encoded] = iter(())
        self.expect: Callable[[], None] = lambda: None

    def open(self, node: FeedNode, lane: Lane, state: FeedState | None) -> Operator:
        """A lane's end of a feed."""
        feed = FeedLane(node, lane, state, self._refill)
        self._feeds.append(feed)
        return feed

    def _refill(self, feed: FeedLane) -> None:
        while not feed.queue:
            self._urgent = feed
            encoded = next(self.encoded)
            at = 0
            for other, pass_number, positions in self._pending.popleft():
                stop = at + len(positions)
                if other.pass_number == pass_number:  # else its pass was cut short in the meantime
                    other.queue.extend(zip(positions, encoded.outcomes[at:stop], strict=True))
                at = stop
        self._urgent = None

    def __iter__(self) -> AheadReader:
        return self

    def __next__(self) -> Chunk:
        """The chunk to read next.

        Raises:
            StopIteration: Every lane has all of its pass; when a pass begins, there may be more.
        """
        self.expect()
        shares = self._shares()
        if not shares:
            raise StopIteration
        arrival = self._ahead.arrival(self._feeds, shares)
        # One call of the samplers draws for all lanes of a feed.
        by_node: dict[int, list[tuple[FeedLane, int]]] = {}
        for feed, count in shares:
            by_node.setdefault(feed.node.index, []).append((feed, count))
        shares = [share for same in by_node.values() for share in same]
        parts = [feed.positions_from(feed.scheduled, feed.scheduled + count) for feed, count in shares]
        split = iter(parts)
        draws = joined_draws(
            [same[0][0].node.draw(np.concatenate([next(split) for _ in same])) for same in by_node.values()]
        )
        sizes = np.cumsum(draw_sizes(draws, self._sources))
        fits = max(1, int(np.searchsorted(sizes, self._pace.size_bytes, side="right")))
        pending: list[tuple[FeedLane, int, list[int]]] = []
        left = fits
        for (feed, _), part in zip(shares, parts, strict=True):
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
        return Chunk(number=self._number - 1, draws=draws[:fits], size_bytes=int(sizes[fits - 1]), arrival=arrival)

    def _shares(self) -> list[tuple[FeedLane, int]]:
        """How many further rounds to read for which feeds, the most urgent first."""
        feeds, first = self._feeds, 0
        asked = {id(feed): feed.asked() for feed in feeds}
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
            # It wants more than was expected: twice as much each time, as long as that goes on.
            wanted[0] = min(max(1, wanted[0], 2 * asked[id(feeds[0])]), left[0])
        wanted = np.diff(np.minimum(np.cumsum(wanted), room), prepend=0)
        spare = room - int(wanted.sum())
        if spare > 0:
            spare = min(spare, int(_CHUNKS_AHEAD * min(room, self._most) - ahead.sum()))
        if spare > 0:
            wanted += np.minimum(_level(ahead + wanted, expected, spare), left - wanted)
        return [(feed, count) for feed, count in zip(feeds, wanted.tolist(), strict=True) if count]


def _level(have: npt.NDArray[np.float64], weight: npt.NDArray[np.float64], spare: int) -> npt.NDArray[np.int64]:
    """Whole numbers, `spare` in all at most, that bring `have / weight` to one level from below."""
    ratio = have / weight
    order = np.argsort(ratio, kind="stable")
    total_weight, total_have = np.cumsum(weight[order]), np.cumsum(have[order])
    # With the first k raised to a common level, that is (spare + what they have) / their weight.
    levels = (spare + total_have) / total_weight
    reached = np.append(ratio[order][1:] >= levels[:-1], True)
    level = levels[int(np.argmax(reached))]
    more = np.maximum(np.floor(level * weight - have), 0).astype(np.int64)
    if not more.any():
        more[order[0]] = 1
    return np.diff(np.minimum(np.cumsum(more), spare), prepend=0)


class DirectReader:
    """Reads a few samples at a time when they are asked for: for replaying single items.

    Args:
        run: Reads and encodes a chunk.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def open(self, node: FeedNode, lane: Lane, state: FeedState | None) -> Operator:
        """A lane's end of a feed."""
        return FeedLane(node, lane, state, self._refill)

    def _refill(self, feed: FeedLane) -> None:
        stop = min(feed.scheduled + _DIRECT_CHUNK, feed.count)
        positions = feed.positions_from(feed.scheduled, stop)
        encoded = self._run(Chunk(number=-1, draws=feed.node.draw(positions), size_bytes=0))
        feed.queue.extend(zip(positions.tolist(), encoded.outcomes, strict=True))
        feed.scheduled = stop


def read_positions(
    positions: list[Position], feeds: Sequence[FeedNode], sources: list[Source], run: Run, pace: ChunkPace
) -> Samples:
    """Encoded samples of positions, read together, one each time that a position is named.

    What is dropped is there as `Dropped`.
    """
    read: Samples = {}
    by_feed: dict[int, list[int]] = {}
    for feed, position in positions:
        by_feed.setdefault(feed, []).append(position)
    for feed, wanted in by_feed.items():
        draws = feeds[feed].draw(np.array(wanted, np.int64))
        sizes = np.cumsum(draw_sizes(draws, sources))
        first = 0
        while first < len(wanted):
            before = int(sizes[first - 1]) if first else 0
            fits = int(np.searchsorted(sizes, before + pace.size_bytes, side="right"))
            stop = min(max(fits, first + 1), first + MAX_CHUNK, len(wanted))
            encoded = run(Chunk(number=-1, draws=draws[first:stop], size_bytes=int(sizes[stop - 1]) - before))
            for position, outcome in zip(wanted[first:stop], encoded.outcomes, strict=True):
                read.setdefault((feed, position), []).append(outcome)
            first = stop
    return read
