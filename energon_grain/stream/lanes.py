"""Assembly: from encoded positions to items.

A lane turns its positions, in order, into items; a dropped sample makes the lane's later positions move up by one. As
long as nothing was dropped item m is position m and this is a slice. The state is one count a lane: with d drops so
far, the lane's item of round i is found at round i + d or behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import FatalSampleError
from energon_grain.stream.chunk import Chunk, Encoded, MadeBatch
from energon_grain.stream.dropped import Dropped

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Taken:
    """Some consecutive items.

    Attributes:
        samples: Those that exist, in the order of items.
        restore_keys: Of the draws that they were made from.
        missing: Places among the items asked for that the pass does not have.
        made: The batch of all of them, made already; then `samples` and `restore_keys` mean nothing.
    """

    samples: list[Any]
    restore_keys: list[tuple[Any, ...]]
    missing: list[int]
    made: MadeBatch | None = None


class LaneAssembly:
    """Turns the chunks of one host into its items.

    Args:
        lanes: Number of lanes of this host.
        drops: (lanes,) samples dropped so far in each lane.
        chunks: Chunks of consecutive local positions, encoded, beginning at `first`.
        again: Encodes a chunk to samples, where batches were made of them that cannot be used.
        first: Local position of the first chunk; every lane's next position is at or behind it.
        end: Local positions of a pass; None: endless.
        on_drop: Called for each dropped sample, once, in the order of items.
        on_success: Called when a sample was not dropped.
        patience: Positions that a lane may drop on its way to one item.
    """

    def __init__(
        self,
        *,
        lanes: int,
        drops: Int64Array,
        chunks: Iterator[tuple[Chunk, Encoded]],
        again: Callable[[Chunk], Encoded],
        first: int,
        end: int | None,
        on_drop: Callable[[Dropped], None],
        on_success: Callable[[], None],
        patience: int,
    ) -> None:
        self._lanes = lanes
        self._set_drops(drops)
        self._chunks = chunks
        self._again = again
        self._made: deque[tuple[int, Chunk]] = deque()
        self._in_step = not self._shifted
        self._base = first
        self._window: list[Any] = []
        self._keys: list[tuple[Any, ...]] = []
        self._bad: set[int] = set()
        self._end = end
        self._on_drop = on_drop
        self._on_success = on_success
        self._patience = patience

    def _set_drops(self, drops: Int64Array) -> None:
        self._drops = drops
        self._shifted = bool(drops.any())
        self._least = int(drops.min())

    @property
    def takes_batches(self) -> bool:
        """Whether batches still are what positions say: nothing was dropped, and the end has not been reached."""
        return self._in_step

    @property
    def drops(self) -> Int64Array:
        """(lanes,) samples dropped so far in each lane. A new array whenever it changes."""
        return self._drops

    def take(self, first: int, count: int) -> Taken:
        """Local items first, …, first + count - 1. Items must be asked for in ascending order."""
        self._forget(first)
        if self._shifted:
            items = np.arange(first, first + count)
            places = items + self._drops[items % self._lanes] * self._lanes
            stop = int(places.max()) + 1
        else:
            places = range(first, first + count)
            stop = first + count
        if self._end is None or stop <= self._end:
            self._fill(stop)
            if not self._bad or self._bad.isdisjoint(places.tolist() if isinstance(places, np.ndarray) else places):
                self._on_success()
                base = self._base
                if not isinstance(places, np.ndarray):
                    low, high = first - base, first - base + count
                    taken = self._slice(low, high)
                    # Let go at once: with large samples, memory that is used again while it is warm is half the speed.
                    del self._window[:high], self._keys[:high]
                    self._base += high
                    return taken
                self._take_apart()
                offsets = (places - base).tolist()
                return Taken([self._hand_out(at) for at in offsets], [self._keys[at] for at in offsets], [])
        self._take_apart()
        return self._take_one_by_one(first, count)

    def _slice(self, low: int, high: int) -> Taken:
        """Places low, …, high - 1 of the window."""
        if self._made:
            head = self._window[low]
            if type(head) is MadeBatch and head.samples == high - low:
                return Taken([], [], [], head)
            if head is None or any(type(entry) is MadeBatch for entry in self._window[low:high]):
                self._take_apart()
        return Taken(self._window[low:high], self._keys[low:high], [])

    def _take_apart(self) -> None:
        """Put samples in the place of batches, for good."""
        self._in_step = False
        while self._made:
            start, chunk = self._made.popleft()
            begin = max(start, self._base)
            if begin < start + len(chunk.draws):
                encoded = self._again(chunk)
                places = slice(begin - self._base, start + len(chunk.draws) - self._base)
                self._window[places] = encoded.outcomes[begin - start :]
                self._keys[places] = encoded.restore_keys[begin - start :]

    def _take_one_by_one(self, first: int, count: int) -> Taken:
        taken = Taken([], [], [])
        for place in range(count):
            at = self._find(first + place)
            if at is None:
                taken.missing.append(place)
            else:
                taken.samples.append(self._hand_out(at))
                taken.restore_keys.append(self._keys[at])
        return taken

    def _hand_out(self, at: int) -> Any:
        """The entry of the window, which no longer holds it: other lanes may be far behind."""
        entry, self._window[at] = self._window[at], None
        return entry

    def _find(self, item: int) -> int | None:
        """Place in the window of one item, looking along its lane for the next sample that was not dropped."""
        lane = item % self._lanes
        for _ in range(self._patience):
            position = item + int(self._drops[lane]) * self._lanes
            if self._end is not None and position >= self._end:
                return None
            self._fill(position + 1)
            if position not in self._bad:
                self._on_success()
                return position - self._base
            self._on_drop(self._hand_out(position - self._base))
            drops = self._drops.copy()
            drops[lane] += 1
            self._set_drops(drops)
        raise FatalSampleError(
            f"a lane came through {self._patience} positions without one sample that was not dropped: the hooks skip "
            f"all (or nearly all) of what it reads. loader.stats() tells what was dropped and why; filter the "
            f"dataset instead"
        )

    def _fill(self, stop: int) -> None:
        """Make positions before `stop` available."""
        while self._base + len(self._window) < stop:
            chunk, encoded = next(self._chunks)
            start = self._base + len(self._window)
            if encoded.made:
                if self._in_step:
                    self._made.append((start, chunk))
                else:
                    encoded = self._again(chunk)
            if encoded.drops:
                self._bad.update(start + at for at, entry in enumerate(encoded.outcomes) if type(entry) is Dropped)
            self._window += encoded.outcomes
            self._keys += encoded.restore_keys

    def _forget(self, first: int) -> None:
        """Let go of positions that no lane will ask for again, now that items before `first` are taken."""
        reach = first + self._least * self._lanes
        while self._made and self._made[0][0] + len(self._made[0][1].draws) <= first:
            self._made.popleft()
        gone = min(reach - self._base, len(self._window))  # what was not read yet is still to come
        if gone > 1024 or gone > len(self._window) // 2:
            del self._window[:gone], self._keys[:gone]
            self._base += gone
            if self._bad:
                self._bad = {position for position in self._bad if position >= self._base}
