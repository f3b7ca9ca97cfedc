# SPDX-License-Identifier: Apache-2.0
"""From encoded samples to the items of a host.

If the order is arithmetic, a lane turns its positions into items, in order. A dropped sample shifts the later positions
of its lane forward by one. Until something is dropped, item m is position m, and taking items is a slice. The state is
one count per lane: after d drops, the item of round i is at round i + d of the lane, or later.

Otherwise, each lane runs operators on its samples, and the state is the state of the operators.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from energon_grain.errors import EmptyDatasetError, FatalSampleError
from energon_grain.stream.batches import RestoreKey, with_restore_key
from energon_grain.stream.chunks import Chunk, ChunkPace, Encoded, MadeBatch
from energon_grain.stream.drops import DropBudget, Dropped, PartialItem
from energon_grain.stream.feed import DirectReader, LaneChunks, read_positions
from energon_grain.stream.lanes import Items, Lane, LaneContext, Reference, Samples, State
from energon_grain.stream.passes import Share
from energon_grain.stream.spec import Program
from energon_grain.stream.stage import PureStage
from energon_grain.stream.state import Position, positions
from energon_grain.stream.worker_config import ErrorHandler

Int64Array = npt.NDArray[np.int64]


class Taken(NamedTuple):
    """Consecutive items.

    Attributes:
        samples: The items that exist, in order.
        restore_keys: Restore keys of the draws that the items were made from.
        missing: Indices of requested items that the pass does not have.
        made: The finished batch of all the items. If set, `samples` and `restore_keys` are meaningless.
    """

    samples: list[Any]
    restore_keys: list[tuple[Any, ...]]
    missing: list[int]
    made: MadeBatch | None = None


@dataclass(kw_only=True, eq=False)
class LaneAssembly:
    """Turns the chunks of one host into its items.

    Attributes:
        drops: (lanes,) samples dropped so far in each lane. Replaced by a new array on each change.
        chunks: Encoded chunks of consecutive local positions, starting at `first`.
        again: Encodes a chunk to samples, for chunks whose finished batches cannot be used.
        first: Local position of the first chunk; the next position of each lane is here or later.
        end: Local positions of a pass; None: endless.
        on_drop: Called once per dropped sample, in the order of items.
        on_member_drop: Called once per sample missing from a pack, in the order of items. No item shifts for it.
        patience: Positions that a lane may drop on the way to one item.
        substitute: Replaces `on_drop`: given a local position and the drop there, returns the sample to use instead and
            its restore key. Lanes then do not shift. None: lanes shift.
        takes_batches: Whether batches still match positions: nothing was dropped, and the end is not reached.
    """

    lanes: int
    drops: Int64Array
    chunks: Iterator[tuple[Chunk, Encoded]]
    again: Callable[[Chunk], Encoded]
    first: InitVar[int]
    end: int | None
    on_drop: Callable[[Dropped], None]
    on_member_drop: Callable[[Dropped], None]
    on_success: Callable[[], None]
    patience: int
    substitute: Callable[[int, Dropped], tuple[Any, RestoreKey]] | None = None
    takes_batches: bool = field(init=False)

    def __post_init__(self, first: int) -> None:
        self._set_drops(self.drops)
        self.takes_batches = not self._shifted
        self._base = first
        self._made: deque[tuple[int, Chunk]] = deque()
        self._window: list[Any] = []
        self._keys: list[tuple[Any, ...]] = []
        self._bad: set[int] = set()

    def _set_drops(self, drops: Int64Array) -> None:
        self.drops = drops
        self._shifted = bool(drops.any())
        self._least = int(drops.min())

    def take(self, first: int, count: int) -> Taken:
        """Local items first, …, first + count - 1. Items must be requested in ascending order."""
        self._forget(first)
        if self._shifted:
            items = np.arange(first, first + count)
            places = items + self.drops[items % self.lanes] * self.lanes
            stop = int(places.max()) + 1
        else:
            places = range(first, first + count)
            stop = first + count
        if self.end is None or stop <= self.end:
            self._fill(stop)
            if not self._bad or self._bad.isdisjoint(places.tolist() if isinstance(places, np.ndarray) else places):
                self.on_success()
                base = self._base
                if not isinstance(places, np.ndarray):
                    low, high = first - base, first - base + count
                    taken = self._slice(low, high)
                    # Release at once: with large samples, reusing memory while it is in the cache is twice as fast.
                    self._window[low:high] = [None] * count
                    return taken
                self._split_batches()
                offsets = (places - base).tolist()
                return Taken([self._take_entry(at) for at in offsets], [self._keys[at] for at in offsets], [])
        self._split_batches()
        return self._take_one_by_one(first, count)

    def _slice(self, low: int, high: int) -> Taken:
        """Entries low, …, high - 1 of the window."""
        if self._made:
            head = self._window[low]
            if type(head) is MadeBatch and head.samples == high - low:
                return Taken([], [], [], head)
            if head is None or any(type(entry) is MadeBatch for entry in self._window[low:high]):
                self._split_batches()
        return Taken(self._window[low:high], self._keys[low:high], [])

    def _split_batches(self) -> None:
        """Replace all batches by their samples, permanently."""
        self.takes_batches = False
        while self._made:
            start, chunk = self._made.popleft()
            begin = max(start, self._base)
            if begin < start + len(chunk.draws):
                encoded = self.again(chunk)
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
                taken.samples.append(self._take_entry(at))
                taken.restore_keys.append(self._keys[at])
        return taken

    def _take_entry(self, at: int) -> Any:
        """Remove and return an entry of the window. The window may live long, because other lanes may be far behind."""
        entry, self._window[at] = self._window[at], None
        return entry

    def _find(self, item: int) -> int | None:
        """Index in the window of one item: the next sample of its lane that was not dropped."""
        lane = item % self.lanes
        for _ in range(self.patience):
            position = item + int(self.drops[lane]) * self.lanes
            if self.end is not None and position >= self.end:
                return None
            self._fill(position + 1)
            entry = self._window[position - self._base] if position in self._bad else None
            if type(entry) is PartialItem:
                for dropped in entry.dropped:
                    self.on_member_drop(dropped)
                entry = self._window[position - self._base] = entry.value
            if type(entry) is not Dropped:
                self.on_success()
                return position - self._base
            at = position - self._base
            self._window[at] = None
            if self.substitute is not None:
                self._window[at], self._keys[at] = self.substitute(position, entry)
                self._bad.discard(position)
                self.on_success()
                return at
            self.on_drop(entry)
            drops = self.drops.copy()
            drops[lane] += 1
            self._set_drops(drops)
        raise FatalSampleError(
            f"all of {self.patience} consecutive samples of a lane were dropped: the hooks skip all (or nearly all) "
            f"samples. loader.stats() lists what was dropped and why; filter the dataset instead"
        )

    def _fill(self, stop: int) -> None:
        """Make positions before `stop` available."""
        while self._base + len(self._window) < stop:
            chunk, encoded = next(self.chunks)
            start = self._base + len(self._window)
            if encoded.made:
                if self.takes_batches:
                    self._made.append((start, chunk))
                else:
                    encoded = self.again(chunk)
            if encoded.drops:
                bad = (at for at, entry in enumerate(encoded.outcomes) if type(entry) in (Dropped, PartialItem))
                self._bad.update(start + at for at in bad)
            self._window += encoded.outcomes
            self._keys += encoded.restore_keys

    def _forget(self, first: int) -> None:
        """Release positions that no lane will request again, now that items before `first` are taken."""
        reach = first + self._least * self.lanes
        while self._made and self._made[0][0] + len(self._made[0][1].draws) <= first:
            self._made.popleft()
        gone = min(reach - self._base, len(self._window))  # positions not read yet still follow
        if gone > 1024 or gone > len(self._window) // 2:
            del self._window[:gone], self._keys[:gone]
            self._base += gone
            if self._bad:
                self._bad = {position for position in self._bad if position >= self._base}


@dataclass(kw_only=True, eq=False)
class LaneProgram:
    """Turns samples into a host's items: local item m is item `m div L'` of local lane `m mod L'`.

    Attributes:
        before: State of each local lane; None: no item was made yet.
        begins: Whether the pass begins, and `before` holds the states at the end of the previous pass.
        batch_size: Items of a step, for reading ahead.
    """

    program: Program
    share: Share
    reader: LaneChunks
    context: LaneContext
    pass_number: int
    before: InitVar[tuple[State, ...] | None]
    begins: bool
    batch_size: int

    def __post_init__(self, before: tuple[State, ...] | None) -> None:
        self._root = self.program.root
        self._lanes = [
            Lane(int(local) * self.share.hosts + self.share.host, self.pass_number, self.reader, self.context)
            for local in range(self.share.local_lanes)
        ]
        self._at_once = max(1, min(self.batch_size, len(self._lanes)))
        self._operators: list[Items | None] = [None] * len(self._lanes)
        if before is None:
            self._operators = [self._root.open(lane, None) for lane in self._lanes]
            before = tuple(operator.state() for operator in self._operators if operator is not None)
        self._states = list(before)
        self._ended = [False] * len(self._lanes)
        self._soon = max(1.0, self.batch_size / len(self._lanes))
        self.reader.expect = self._expect
        if self.begins:
            # A saved state does not record which single lanes are still at the end of the previous pass.
            self._at_once = len(self._lanes)
            for local, operator in enumerate(self._operators):
                opened = operator or self._open(local)
                opened.begin(self.pass_number)
                self._states[local] = opened.state()

    def begin_batch(self, number: int) -> None:
        """Set the number, in the pass, of the batch that the next items belong to. Hooks can read it."""
        self.context.batch = number

    def _open(self, local: int) -> Items:
        """The operator of a local lane. Also opens the lanes that the same step will need.

        The samples that these lanes hold are read together. Other lanes read theirs when it is their turn, so the first
        batch after a restore does not wait for them.
        """
        lanes = [(local + place) % len(self._lanes) for place in range(self._at_once)]
        lanes = [lane for lane in lanes if self._operators[lane] is None]
        held = [*positions((self._root.state_form,) * len(lanes), tuple(self._states[lane] for lane in lanes))]
        samples = self.context.read(held) if held else {}
        with self.context.rebuilding():
            for lane in lanes:
                self._lanes[lane].samples = samples
                self._operators[lane] = self._root.open(self._lanes[lane], self._states[lane])
                self._lanes[lane].replays.clear()
        samples.clear()  # shared by parts of the graph that count passes on their own
        opened = self._operators[local]
        assert opened is not None
        return opened

    def _expect(self) -> None:
        for operator, ended in zip(self._operators, self._ended, strict=True):
            if operator is not None and not ended:
                operator.expect(self._soon)

    @property
    def states(self) -> tuple[State, ...]:
        return tuple(self._states)

    @property
    def ended(self) -> bool:
        """Whether all lanes have reached the end of this pass."""
        return all(self._ended)

    def take(self, first: int, count: int) -> Taken:
        """Local items first, …, first + count - 1. Items must be requested in ascending order, without gaps."""
        taken = Taken([], [], [])
        touched: dict[int, Items] = {}
        for place in range(count):
            local = (first + place) % len(self._lanes)
            operator = touched.get(local) or self._operators[local] or self._open(local)
            touched[local] = operator
            item = operator.next()
            if item is None:
                self._ended[local] = True
                taken.missing.append(place)
                continue
            self.context.in_a_row = self.context.passes_in_a_row = 0
            key = ("item", self.pass_number, self._lanes[local].number, item[0])
            taken.samples.append(with_restore_key(item[1], key))
            taken.restore_keys.append(key)
        for local, operator in touched.items():
            self._states[local] = operator.state()
        return taken

    def filler(self) -> tuple[Any, RestoreKey]:
        """The first item of the pass and its restore key, to pad batches with. Made again on each call.

        Raises EmptyDatasetError if the pass has no item.
        """
        with self.context.replay():
            for number in range(self.share.lanes):
                lane = Lane(number, self.pass_number, self.context.direct, self.context)
                item = self._root.open(lane, None).next()
                if item is not None:
                    key = ("item", self.pass_number, number, item[0])
                    return with_restore_key(item[1], key), key
        raise EmptyDatasetError("a pass has no items: filters and packers drop everything")


def rebuild_item(program: Program, context: LaneContext, pass_number: int, lane: int, reference: Reference) -> Any:
    """Make an item again from its restore key."""
    at = Lane(lane, pass_number, context.direct, context)
    at.samples = context.read([*positions(program.root.reference_form, reference)])
    with context.rebuilding():
        value = program.root.rebuild(reference, at)
    return with_restore_key(value, ("item", pass_number, lane, reference))


def lane_context(
    program: Program,
    stage: PureStage,
    pace: ChunkPace,
    drops: DropBudget,
    on_restore_error: ErrorHandler,
    patience: int,
) -> LaneContext:
    """The context shared by the lanes of a host."""

    def read(positions: list[Position]) -> Samples:
        return read_positions(positions, program.feeds, stage.sources, stage.run, pace)

    def leaf_of(position: Position) -> int:
        feed = program.feeds[position[0]]
        if len(feed.leaf_sizes) == 1:
            return feed.leaves[0]
        return int(feed.draw(np.array([position[1]])).leaf[0])

    return LaneContext(
        on_drop=drops.drop,
        on_success=drops.worked,
        on_restore_error=on_restore_error,
        read=read,
        leaf_of=leaf_of,
        hook_lock=stage.hook_lock,
        direct=DirectReader(stage.run),
        patience=patience,
        failing=True,
    )
