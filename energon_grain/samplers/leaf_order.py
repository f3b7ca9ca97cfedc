# SPDX-License-Identifier: Apache-2.0
"""The order of one leaf, and the kernel that draws from many leaves at once.

A leaf of n samples maps *child positions* c = 0, 1, 2, ... without end to draws (index, epoch). With m = `passes`,
T = m * n positions make one *lap*: c is in lap `e = c div T` at place `p = c mod T`, and each lap has its own keys,
`fold(key, purpose, e)`. m > 1 concatenates m passes over the leaf and shuffles them as one: a value v in [0, T) of the
shuffled order represents sample `v mod n` of pass `e * m + v div n`, which is the draw's `epoch`. So each pair (index,
epoch) is drawn exactly once, and for m = 1 each epoch is a permutation of the samples.

The forms of an order:

*Sequential* (`shuffle=False`): index `c mod n`, epoch `c div n`.

*Full shuffle* (`block=None`): v = perm(p), one permutation of [0, T) per lap. Best mixing, one random read per sample.

*Block shuffle* (`block=B`), for reads of consecutive samples:

1. [0, T) is cut into ceil(T / B) blocks of B consecutive values; the last one is short, of r = T - (blocks - 1) * B.
2. The blocks are assigned to slots. The short block is in slot s*, a hash; the other slots hold, in order,
   perm(0), perm(1), ... of the other blocks. Slots up to s* begin at place s * B, later ones B - r places earlier.
   This order of T places is the *block order*.
3. The block order is cut into L *stretches*, one per lane: stretch s begins at `s * (T div L) + min(s, T mod L)` and
   is `T div L` long, or one longer if s < T mod L. Place p belongs to stretch `p mod L`, offset `p div L`.
4. Each stretch is cut into *windows* of W = K * B offsets, K = `window`; the last window of a stretch is shorter.
   Inside a window the offsets are permuted, with a key of (key, e, place where the window begins). Windows are cut by
   places, not by blocks: one touches up to K + 1 blocks (one more beside the short block).

So while L lanes each pass through one window, in L * W positions, every sample of L pieces of W places of the block
order is drawn once, in an order mixed over all of them; and a reader of the windows of one lane reads runs of B
consecutive samples. With T = 10, B = 4, L = 2, K = 1: blocks 0123, 4567, 89; the block order may be 4567 89 0123; its
stretches are 4 5 6 7 8 and 9 0 1 2 3; the windows 4567 | 8 and 9012 | 3; lane 0 might get 6 4 7 5 8, lane 1 might get
0 9 2 1 3, and the order of the leaf is 6 0 4 9 7 2 5 1 8 3. If T is not a multiple of L, lane l has stretch
(l - e * T) mod L in lap e: a different one each time, still one stretch per lap.

*Stored blocks* (`starts`): if splitting stored units is expensive (row groups of Parquet), the blocks of step 1 are
those of the source, of any lengths, each a whole number of units that are read at once. Their order is perm(0),
perm(1), ... of all of them, computed once per lap. Steps 3 and 4 are the same, except that a window is K whole blocks,
as far as they are in the stretch. So a lane reads K blocks at a time, and every block is read in a single lane, except
those shared by two stretches (at most L - 1).

With `runs=True` the caller's lanes request contiguous runs of child positions (epochized blends), and step 3 is
omitted: the block order is one single stretch.

*Replacement*: every draw is independent of the others. Without blocks, index c is a hash of (key, c) scaled to [0, n).
With blocks, lane `l = c mod L` at offset `o = c div L` (lane 0, offset c with `runs`) draws a start for each slot,
uniform in [0, n), and reads the B samples from there on, wrapping around at the end. Offsets are permuted inside
windows as above. So each draw is uniform over the samples, and blocks are drawn with replacement. The epoch of both is
`c div n`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.samplers.columns import Array, Column, at, operand, scaled, signed, spread
from energon_grain.samplers.hashing import fold, fold_array
from energon_grain.samplers.permutation import MAX_SIZE, Permutation, permute, unpermute

Draws = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Samples and the passes that they are drawn in: index and epoch, int64 (k,) each."""

_FULL, _BLOCKS, _SHORT, _WINDOW, _REPLACEMENT = map(fold, ("full", "blocks", "short", "window", "replacement"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The parameters of one leaf, or of the leaf of each element of a chunk."""

    n: Column
    """Samples."""
    total: Column
    """T = n * passes, places in a lap."""
    passes: Column
    lanes: Column
    """L, or 1 if lanes request runs."""
    block: Column
    """B, at most T."""
    window: Column
    """W = K * B, at most B * blocks."""
    blocks: Column
    """ceil(T / B)."""
    last: Column
    """r, places in the last block, 1 to B."""
    key: Column

    def at(self, leaf: npt.NDArray[np.integer[Any]]) -> Row:
        """Return the row of each element, from a row with one number per leaf."""
        return Row(**{name: at(getattr(self, name), leaf) for name in Row.__slots__})


def sequential(row: Row, child: Array) -> Draws:
    """Keep the order."""
    n = operand(row.n)
    epoch = child // n
    return signed(child - epoch * n), signed(epoch)


def full(row: Row, child: Array) -> Draws:
    """Permute each whole lap."""
    lap, place = _laps(child, row.total)
    return _by_pass(row, lap, permute(place, row.total, fold_array(row.key, _FULL, lap)).view(np.uint64))


def blocks(row: Row, child: Array) -> Draws:
    """Permute blocks, cut their order into stretches, mix inside windows."""
    lap, place = _laps(child, row.total)
    offset = place // operand(row.lanes)
    start, length = _stretch(row, place - offset * operand(row.lanes))
    place = _mix_windows(row, fold_array(row.key, _WINDOW, lap), start, offset, length)
    return _by_pass(row, lap, _block_order(row, fold_array(row.key, _BLOCKS, lap), place))


def replacement(row: Row, child: Array) -> Draws:
    """Draw every sample independently."""
    return signed(scaled(fold_array(row.key, _REPLACEMENT, child), row.n)), signed(child // operand(row.n))


def block_replacement(row: Row, child: Array) -> Draws:
    """Draw the start of every block independently, mix inside windows."""
    lanes, block, n = operand(row.lanes), operand(row.block), operand(row.n)
    offset = child // lanes
    lane = child - offset * lanes
    endless = np.broadcast_to(np.uint64(1 << 63), offset.shape)
    offset = _mix_windows(row, fold_array(row.key, _WINDOW, lane), np.zeros_like(offset), offset, endless)
    slot = offset // block
    index = scaled(fold_array(row.key, _REPLACEMENT, lane, slot), row.n) + (offset - slot * block)
    return signed(np.minimum(index, index - n)), signed(child // n)  # index - n wraps to above index where index < n


def _laps(child: Array, total: Column) -> tuple[Column, Array]:
    """Return lap and place of each child position; one integer for all laps if they are equal."""
    if isinstance(total, int):
        lap = int(child.min()) // total
        if int(child.max()) // total == lap:
            return lap, child - np.uint64(lap * total)
    laps = child // operand(total)
    return laps, child - laps * operand(total)


def _place_in_order(row: Row, lap: Array, value: Array) -> Array:
    """Undo `sequential`."""
    return value


def _no_place(row: Row, lap: Array, value: Array) -> Array:
    raise ConfigError("a leaf that is drawn with replacement: draws are independent, so a sample has no own position")


def _place_full(row: Row, lap: Array, value: Array) -> Array:
    """Undo `full` inside a lap: the place of each value."""
    return unpermute(value, row.total, fold_array(row.key, _FULL, lap)).view(np.uint64)


def _place_in_blocks(row: Row, lap: Array, value: Array) -> Array:
    """Undo `blocks` inside a lap: the place of each value."""
    place = _unordered_blocks(row, fold_array(row.key, _BLOCKS, lap), value)
    stretch, start, length = _stretch_of(row, place)
    key = fold_array(row.key, _WINDOW, lap)
    place = _mix_windows(row, key, start, place - start, length, unpermute)
    return (place - start) * operand(row.lanes) + stretch


def _stretch(row: Row, stretch: Array) -> tuple[Array, Array]:
    """Return the first place of each stretch in the block order, and its length."""
    lanes, total = operand(row.lanes), operand(row.total)
    base = total // lanes
    longer = total - base * lanes
    return stretch * base + np.minimum(stretch, longer), base + (stretch < longer)


def _stretch_of(row: Row, place: Array) -> tuple[Array, Array, Array]:
    """Return the stretch of each place of the block order, its first place, and its length."""
    lanes, total = operand(row.lanes), operand(row.total)
    base = total // lanes
    longer = total - base * lanes
    edge = longer * (base + np.uint64(1))  # from here on, stretches have `base` places
    short = longer + (place - edge) // np.maximum(base, np.uint64(1))
    stretch = np.where(place < edge, place // (base + np.uint64(1)), short)
    return stretch, *_stretch(row, stretch)


def _mix_windows(row: Row, key: Column, start: Array, offset: Array, length: Array, by: Permutation = permute) -> Array:
    """Permute offsets inside windows. Stretches begin at place `start` and have `length` offsets. Returns places."""
    window = operand(row.window)
    inside = offset % window
    begin = offset - inside
    size = np.minimum(length - begin, window)
    begin += start
    keys = fold_array(key, begin)
    if not isinstance(row.window, int):
        return begin + by(inside, size, keys).view(np.uint64)
    mixed = by(inside, row.window, keys).view(np.uint64)
    short = np.flatnonzero(size != window)
    if short.size:
        mixed[short] = by(inside[short], size[short], at(keys, short)).view(np.uint64)
    return begin + mixed


def _block_order(row: Row, key: Column, place: Array) -> Array:
    """Return the value at each place of the block order."""
    one = np.uint64(1)
    block, count, last = operand(row.block), operand(row.blocks), operand(row.last)
    short = scaled(fold_array(key, _SHORT), row.blocks)
    place = place + (place >= short * block + last) * (block - last)  # as if the short block had B places
    slot = place // block
    inside = place - slot * block
    others = max(row.blocks - 1, 1) if isinstance(row.blocks, int) else np.maximum(row.blocks - one, one)
    number = permute(np.minimum(slot - (slot > short), operand(others) - one), others, key).view(np.uint64)
    return np.where(slot == short, count - one, number) * block + inside


def _unordered_blocks(row: Row, key: Column, value: Array) -> Array:
    """Undo `_block_order`: the place of each value in the block order."""
    one = np.uint64(1)
    block, count, last = operand(row.block), operand(row.blocks), operand(row.last)
    short = scaled(fold_array(key, _SHORT), row.blocks)
    number = value // block
    others = max(row.blocks - 1, 1) if isinstance(row.blocks, int) else np.maximum(row.blocks - one, one)
    slot = unpermute(np.minimum(number, operand(others) - one), others, key).view(np.uint64)
    slot = np.where(number == count - one, short, slot + (slot >= short))
    return slot * block + (value - number * block) - (slot > short) * (block - last)


def _values(row: Row, index: Array, epoch: Array) -> tuple[Array, Array]:
    """Undo `_by_pass`: laps and values of [0, T). Raises IndexError if a sample or a pass does not exist."""
    if (index >= operand(row.n)).any() or (epoch >> np.uint64(63)).any():
        raise IndexError("a sample or a pass of a leaf that does not exist")
    lap = epoch // operand(row.passes)
    return lap, (epoch - lap * operand(row.passes)) * operand(row.n) + index


def _by_pass(row: Row, lap: Column, value: Array) -> Draws:
    """Return index and epoch of values of [0, T)."""
    if isinstance(row.passes, int) and row.passes == 1:
        return signed(value), signed(spread(lap, value.size).copy() if isinstance(lap, int) else lap)
    turn = value // operand(row.n)
    return signed(value - turn * operand(row.n)), signed(turn + operand(lap) * operand(row.passes))


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafOrder:
    """How one leaf is ordered. The module docstring defines each form.

    Attributes:
        n: number of samples, at least 1; n * passes is at most 2**62.
        key: 64-bit key, `fold(seed, leaf key, ...)`.
        shuffle: False keeps the order of the samples, and ignores `block`, `window`, `passes` and `replacement`.
        block: B, consecutive samples in a block; None shuffles fully.
        window: K, blocks in a window; ignored without `block`.
        passes: m, passes over the leaf that are shuffled as one.
        replacement: draw with replacement; `passes` is then ignored.
        runs: the child positions of each lane are one contiguous run, so there are no stretches.
        starts: first sample of each stored block, and n; None: a block every B samples. `block` is then their mean
            length. Ignored with `replacement`, whose blocks begin anywhere.
    """

    n: int
    key: int
    shuffle: bool = True
    block: int | None = None
    window: int = 1
    passes: int = 1
    replacement: bool = False
    runs: bool = False
    starts: npt.NDArray[np.int64] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.n * self.passes > MAX_SIZE:
            raise ConfigError(f"{self.passes} passes over {self.n} samples shuffled as one: at most 2**62 places")


class StoredBlocks:
    """The order of a leaf with stored blocks. Thread-safe: at worst, two threads compute the same lap.

    Takes 16 bytes per block for each of two laps, and 30 ns per block to begin a lap.
    """

    def __init__(self, order: LeafOrder, row: Row) -> None:
        assert order.starts is not None
        self._row, self._window = row, order.window
        turns = np.arange(order.passes, dtype=np.int64)[:, None] * order.n
        self._first = (order.starts[None, :-1] + turns).reshape(-1).view(np.uint64)
        self._length = np.tile(np.diff(order.starts), order.passes).view(np.uint64)
        self._laps: dict[int, tuple[npt.NDArray[np.int64], Array]] = {}

    def draw(self, child: Array) -> Draws:
        """Permute blocks, cut their order into stretches, mix inside windows."""
        row = self._row
        lap, place = _laps(child, row.total)
        value = np.empty_like(child)
        for each in [lap] if isinstance(lap, int) else np.unique(lap).tolist():
            here = slice(None) if isinstance(lap, int) else np.flatnonzero(lap == each)
            value[here] = self._of_lap(each, place[here])
        return _by_pass(row, lap, value)

    def place_of(self, laps: Array, value: Array) -> Array:
        """Undo `draw` inside laps: the place of each value in its lap."""
        row, blocks = self._row, len(self._first)
        block = np.searchsorted(self._first, value, side="right") - 1
        slot = unpermute(block, blocks, fold_array(row.key, _BLOCKS, laps))
        place = np.empty_like(value)
        for lap in np.unique(laps).tolist():
            here = np.flatnonzero(laps == lap)
            ends = self._lap(lap)[1]
            ordered = ends[slot[here]] + (value[here] - self._first[block[here]])
            stretch, start, length = _stretch_of(row, ordered)
            mixed = self._mix(lap, ordered, start, start + length, unpermute)
            place[here] = (mixed - start) * operand(row.lanes) + stretch
        return place

    def _of_lap(self, lap: int, place: Array) -> Array:
        order, ends = self._lap(lap)
        lanes = operand(self._row.lanes)
        offset = place // lanes
        start, length = _stretch(self._row, place - offset * lanes)
        place = self._mix(lap, start + offset, start, start + length, permute)
        slot = np.searchsorted(ends, place, side="right") - 1
        return self._first[order[slot]] + (place - ends[slot])

    def _mix(self, lap: int, place: Array, start: Array, stop: Array, by: Permutation) -> Array:
        """Permute places of the block order inside the windows of stretches [start, stop)."""
        ends = self._lap(lap)[1]
        slot = np.searchsorted(ends, place, side="right") - 1
        first = slot - slot % self._window
        begin = np.maximum(ends[first], start)
        end = np.minimum(ends[np.minimum(first + self._window, len(self._first))], stop)
        keys = fold_array(fold_array(self._row.key, _WINDOW, lap), begin)
        return begin + by(place - begin, end - begin, keys).view(np.uint64)

    def _lap(self, lap: int) -> tuple[npt.NDArray[np.int64], Array]:
        """(blocks,) the block in each slot, and (blocks + 1,) the place where each slot begins."""
        found = self._laps.get(lap)
        if found is None:
            blocks = len(self._first)
            order = permute(np.arange(blocks), blocks, fold_array(self._row.key, _BLOCKS, lap))
            ends = np.zeros(blocks + 1, np.uint64)
            np.cumsum(self._length[order], out=ends[1:])
            kept = list(self._laps.items())[-1:]
            self._laps = dict([*kept, (lap, (order, ends))])
            found = order, ends
        return found


def window_blocks(*, block: int, lanes: int, shuffle_buffer_size: int | None, at_least: int = 1) -> int:
    """Return K, the blocks in a window, so that the windows of all lanes together hold a shuffle buffer of samples.

    `K = max(at_least, ceil(shuffle_buffer_size / (block * lanes)))`. `at_least` is `parallel_shard_iters` if batches or
    packs are formed inside a lane above the leaf, where a lane must mix on its own, otherwise 1.
    """
    return max(at_least, -(-(shuffle_buffer_size or 0) // (block * lanes)))


class LeafTable:
    """Draws from any number of leaves with one kernel. The cost of a chunk is independent of the number of leaves.

    In chunks of 65,536, a position costs about 60 ns for a full and 180 ns for a block shuffle; with 100 leaves 140 and
    360 ns. A call costs at least 0.1 to 0.5 ms, so 1,024 positions take about 1 us each.
    """

    __slots__ = ("_columns", "_form", "_forms", "_rows", "_stored_blocks", "lanes")

    def __init__(self, orders: Sequence[LeafOrder], lanes: int) -> None:
        """Make a table; leaf i is `orders[i]`."""
        self.lanes = lanes
        self._rows = [_row(order, lanes) for order in orders]
        self._columns = Row(
            **{name: np.array([getattr(row, name) for row in self._rows], dtype=np.uint64) for name in Row.__slots__}
        )
        self._stored_blocks = {
            number: StoredBlocks(order, self._rows[number])
            for number, order in enumerate(orders)
            if _form(order) == _STORED
        }
        self._form = np.array([_form(order) for order in orders], dtype=np.int8)
        self._forms = [int(form) for form in np.unique(self._form) if form != _STORED]

    def __len__(self) -> int:
        return len(self._rows)

    def draw(self, leaf: npt.NDArray[np.int32] | int, child: npt.NDArray[np.int64]) -> Draws:
        """Draw samples: their index, and the pass over their leaf.

        Args:
            leaf: numbers of the leaves, int32 (k,), or one for all.
            child: child positions in those leaves, at least 0, in any order, int64 (k,).

        Returns:
            index: sample numbers in [0, n of the leaf), int64 (k,).
            epoch: passes over the leaf, int64 (k,).
        """
        places = np.ascontiguousarray(child, dtype=np.int64).view(np.uint64)
        if not places.size:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        if not isinstance(leaf, int) and bool((leaf == leaf[0]).all()):
            leaf = int(leaf[0])
        if isinstance(leaf, int):
            if leaf in self._stored_blocks:
                return self._stored_blocks[leaf].draw(places)
            return _DRAW[int(self._form[leaf])](self._rows[leaf], places)
        if len(self._forms) == 1 and not self._stored_blocks:
            return _DRAW[self._forms[0]](self._columns.at(leaf), places)
        return self._draw_each_form(leaf, places)

    def _draw_each_form(self, leaf: npt.NDArray[np.int32], places: Array) -> Draws:
        index, epoch = np.empty(places.size, dtype=np.int64), np.empty(places.size, dtype=np.int64)
        forms = self._form[leaf]
        for number, order in self._stored_blocks.items():
            here = np.flatnonzero(leaf == number)
            if here.size:
                index[here], epoch[here] = order.draw(places[here])
        for form in self._forms:
            here = np.flatnonzero(forms == form)
            if here.size:
                index[here], epoch[here] = _DRAW[form](self._columns.at(leaf[here]), places[here])
        return index, epoch

    def position_of(
        self, leaf: npt.NDArray[np.int32] | int, index: npt.NDArray[np.int64], epoch: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Undo `draw`: the only child position at which a leaf draws a sample in a pass.

        Args:
            leaf: numbers of the leaves, int32 (k,), or one for all.
            index: samples of those leaves, int64 (k,).
            epoch: passes over them, at least 0, int64 (k,).

        Returns:
            Child positions, int64 (k,): `position_of(leaf, *draw(leaf, child))` is `child`.

        Raises:
            IndexError: a sample or a pass does not exist.
            ConfigError: a leaf is drawn with replacement.
        """
        leaves = np.full(index.size, leaf, dtype=np.int32) if isinstance(leaf, int) else leaf
        child = np.empty(index.size, dtype=np.uint64)
        forms = self._form[leaves]
        group = np.where(forms == _STORED, _STORED + leaves, forms)
        for each in np.unique(group).tolist():
            here = np.flatnonzero(group == each)
            first = int(leaves[here[0]])
            alone = each >= _STORED or bool((leaves[here] == first).all())
            row = self._rows[first] if alone else self._columns.at(leaves[here])
            lap, value = _values(row, index[here].view(np.uint64), epoch[here].view(np.uint64))
            place = (
                self._stored_blocks[first].place_of(lap, value) if each >= _STORED else _PLACE[each](row, lap, value)
            )
            child[here] = lap * operand(row.total) + place
        return signed(child)


_DRAW = (
    sequential,
    full,
    blocks,
    replacement,
    block_replacement,
)

_PLACE = (_place_in_order, _place_full, _place_in_blocks, _no_place, _no_place)
"""Undoes each form of `_DRAW` inside a lap: the place of each value."""


_STORED = len(_DRAW)


def _form(order: LeafOrder) -> int:
    """Return the index of an order's form in `_DRAW`, or `_STORED`."""
    if order.shuffle and order.starts is not None and not order.replacement:
        return _STORED
    return 1 + (order.block is not None) + 2 * order.replacement if order.shuffle else 0


def _row(order: LeafOrder, lanes: int) -> Row:
    passes = 1 if order.replacement or not order.shuffle else order.passes
    total = order.n * passes
    block = min(order.block or 1, total)
    blocks = -(-total // block)
    return Row(
        n=order.n,
        total=total,
        passes=passes,
        lanes=1 if order.runs else lanes,
        block=block,
        window=min(order.window, blocks) * block,
        blocks=blocks,
        last=total - (blocks - 1) * block,
        key=order.key,
    )
