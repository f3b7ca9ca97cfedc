"""Feeds: where lanes get their samples from. Each feed is an index map with the hooks on its samples."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from energon_grain.stream.draws import Draws
from energon_grain.stream.dropped import Dropped
from energon_grain.stream.index_map import IndexMap
from energon_grain.stream.operators.lane import Lane
from energon_grain.stream.operators.operator import Item
from energon_grain.stream.state import Form, Number, Place

FeedState = tuple[int, int]
"""(pass, rounds of it that were taken)."""
_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class FeedNode:
    """An index map at the bottom of the operators.

    Round j of lane l is position `((j div S) * L + l) * S + j mod S` of the pass, with stripes of S positions: S is 1,
    or the batch size of finite batches formed in lanes, so that all but the last batch of a pass are full.

    Attributes:
        index: Number of the feed.
        order: From positions to draws of this feed's leaves, counted from 0.
        first_leaf: Number of its first leaf among all.
        leaf_sizes: Samples of each of its leaves.
        lanes: L.
        stripe: S.
    """

    index: int
    order: IndexMap
    first_leaf: int
    leaf_sizes: tuple[int, ...]
    lanes: int
    stripe: int

    @property
    def finite(self) -> bool:
        """Whether its passes end."""
        return self.order.passes is not None

    def items(self) -> int:
        """Samples of a pass; endless: of one pass over what is repeated."""
        return self.order.samples

    def rounds(self, lane: int, pass_number: int) -> int:
        """Rounds that a lane has in a pass."""
        length = self.order.length(pass_number)
        if length is None:
            return _ENDLESS
        whole, rest = divmod(length, self.lanes * self.stripe)
        return whole * self.stripe + min(max(rest - lane * self.stripe, 0), self.stripe)

    def in_stream(self, lane: int, pass_number: int, rounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """(n,) positions, among those of all passes, of rounds of a lane."""
        stripe, place = np.divmod(rounds, self.stripe)
        return (stripe * self.lanes + lane) * self.stripe + place + self.order.start(pass_number)

    def draw(self, positions: npt.NDArray[np.int64]) -> Draws:
        """Draws of positions among those of all passes; leaves are counted among all leaves of the stream."""
        draws = self.order.draw_in_stream(positions)
        return Draws(
            leaf=draws.leaf + np.int32(self.first_leaf), child=draws.child, index=draws.index, epoch=draws.epoch
        )

    def open(self, lane: Lane, state: FeedState | None) -> FeedLane:
        """A lane's end of the feed."""
        return lane.reader.open(self, lane, state)  # type: ignore[return-value]

    @property
    def state_form(self) -> Form:
        """Pass and rounds; what was read ahead is read again."""
        return Number(), Number()

    @property
    def reference_form(self) -> Form:
        """The position."""
        return Place(self.index)

    def number(self, reference: int) -> int:
        """The position."""
        return reference

    def rebuild(self, reference: int, lane: Lane) -> Any:
        """The sample."""
        return lane.sample((self.index, reference))

    def children(self) -> tuple[()]:
        """None."""
        return ()


class Refill(Protocol):
    """Brings samples into a lane's queue."""

    def __call__(self, feed: FeedLane) -> None:
        """Queue at least one entry of the lane's next rounds, which exist."""
        ...


class FeedLane:
    """One lane's end of a feed: a queue of what was read ahead.

    Attributes:
        node: The feed.
        lane: Whose samples these are.
        queue: (position, encoded sample or `Dropped`) of the next rounds.
        pass_number: Of the feed.
        taken: Rounds taken in this pass.
        scheduled: Rounds that are taken, queued or being read.
        count: Rounds of this pass.
        expected: Samples that will probably be asked for soon.
    """

    __slots__ = (
        "_asked",
        "_refill",
        "count",
        "expected",
        "lane",
        "node",
        "pass_number",
        "queue",
        "scheduled",
        "taken",
    )

    def __init__(self, node: FeedNode, lane: Lane, state: FeedState | None, refill: Refill) -> None:
        self.node = node
        self.lane = lane
        self.queue: deque[tuple[int, Any]] = deque()
        self.expected = 1.0
        self._refill = refill
        self._asked = 0
        self.pass_number, self.taken = (lane.pass_number if node.finite else 0, 0) if state is None else state
        self.scheduled = self.taken
        self.count = node.rounds(lane.number, self.pass_number)

    def begin(self, pass_number: int) -> None:
        """Go to the beginning of a pass. An endless feed goes on."""
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
            self._asked += 1
            if type(entry[1]) is not Dropped:
                if self.lane.around.failing:
                    self.lane.around.succeeded("")
                return entry
            self.lane.declined(entry[1])

    def state(self) -> FeedState:
        """Pass and rounds."""
        return self.pass_number, self.taken

    def asked(self) -> int:
        """Samples that were asked for since the last call of this."""
        taken, self._asked = self._asked, 0
        return taken

    def expect(self, items: float) -> None:
        """Read about as many samples ahead."""
        self.expected = items

    def positions_from(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Positions of rounds of this pass."""
        return self.node.in_stream(self.lane.number, self.pass_number, np.arange(first, stop))
