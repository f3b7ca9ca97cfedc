"""The order of one leaf, and the kernel that draws many leaves at once.

A leaf of n samples is asked for *child positions* c = 0, 1, 2, ... without end and answers with draws (index, epoch).
With m = `passes`, T = m * n positions make one *lap*: c lies in lap `e = c div T` at place `p = c mod T`, and
each lap has keys of its own, `fold(key, purpose, e)`. m > 1 concatenates m passes over the leaf and shuffles them as
one: a value v in [0, T) of the shuffled order stands for sample `v mod n` of pass `e * m + v div n`, which is the
draw's `epoch`. So each pair (index, epoch) is drawn exactly once, and for m = 1 each epoch is a permutation of the
samples.

Four forms:

*Sequential* (`shuffle=False`): index `c mod n`, epoch `c div n`.

*Full shuffle* (`block=None`): v = perm_e(p), one permutation of [0, T) a lap. The best mixing, one random read a
sample.

*Block shuffle* (`block=B`), for reads of consecutive samples:

1. [0, T) is cut into ceil(T / B) blocks of B consecutive values; the last one is short, of r = T - (blocks - 1) * B.
2. The blocks are permuted: slot s of the order holds block perm_e(s). The short block stands in slot
   s* = perm_e^-1(blocks - 1), so that slots up to s* begin at place s * B and later ones B - r places earlier.
   This order of T places is the *block order*.
3. The block order is cut into L *stretches*, one a lane: stretch s begins at `s * (T div L) + min(s, T mod L)` and is
   `T div L` long, or one longer if s < T mod L. Place p goes to stretch `p mod L`, offset `p div L`.
4. Each stretch is cut into *windows* of W = K * B offsets, K = `window`; the last window of a stretch is shorter.
   Inside a window the offsets are permuted, with a key of (key, e, place where the window begins). Windows are cut by
   places, not by blocks: one touches up to K + 1 blocks (one more beside the short block).

So while L lanes each go through one window, L * W positions, every sample of L stretches of W places of the block order
comes up once, in an order mixed over all of them; and whoever reads the windows of one lane reads runs of B
consecutive samples. With T = 10, B = 4, L = 2, K = 1: blocks 0123, 4567, 89; the block order may be 4567 89 0123; its
stretches are 4 5 6 7 8 and 9 0 1 2 3; the windows 4567 | 8 and 9012 | 3; lane 0 might get 6 4 7 5 8, lane 1 might get
0 9 2 1 3, and the leaf gives 6 0 4 9 7 2 5 1 8 3. If T is not a multiple of L, lane l has stretch (l - e * T) mod L in
lap e: another one each time, still one stretch a lap.

With `runs=True` the caller's lanes ask for contiguous runs of child positions (epochized blends), and step 3 is left
out: the block order is one single stretch.

*Replacement*: every draw is independent of the others. Without blocks index c is a hash of (key, c) scaled to [0, n).
With blocks, lane `l = c mod L` (0 with `runs`) at offset `o = c div L` draws for each slot a start, uniform in [0, n),
and reads the B samples from there on, around the end to the beginning; offsets are permuted inside windows as above.
So each draw is uniform over the samples, and blocks are drawn with replacement. The epoch is `c div n`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.samplers.hashing import Column, fold, fold_array
from energon_grain.samplers.permutation import MAX_SIZE, permute, unpermute

Array = npt.NDArray[np.uint64]
Draws = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]

_FULL, _BLOCKS, _WINDOW, _REPLACEMENT = (fold(purpose) for purpose in ("full", "blocks", "window", "replacement"))


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafOrder:
    """How one leaf is ordered. See the module for what each form means.

    Attributes:
        n: number of samples, at least 1.
        key: 64-bit key, `fold(seed, leaf key, ...)`.
        shuffle: False keeps the order of the samples, and `block`, `window`, `passes` and `replacement` mean nothing.
        block: B, consecutive samples in a block; None shuffles fully.
        window: K, blocks in a window; means nothing without `block`.
        passes: m, passes over the leaf that are shuffled as one.
        replacement: draw with replacement; `passes` means nothing then.
        runs: the child positions of each lane are one contiguous run, so there are no stretches.
    """

    n: int
    key: int
    shuffle: bool = True
    block: int | None = None
    window: int = 1
    passes: int = 1
    replacement: bool = False
    runs: bool = False

    def __post_init__(self) -> None:
        for name, value in (("n", self.n), ("window", self.window), ("passes", self.passes), ("block", self.block)):
            if value is not None and value < 1:
                raise ConfigError(f"LeafOrder({name}={value}): {name} must be at least 1")
        if self.n * self.passes > MAX_SIZE:
            raise ConfigError(f"LeafOrder(n={self.n}, passes={self.passes}): n * passes must be at most 2**62")


def window_blocks(*, block: int, lanes: int, shuffle_buffer_size: int | None, at_least: int = 1) -> int:
    """Give K, the blocks in a window, so that the windows of all lanes together hold a shuffle buffer of samples.

    `K = max(at_least, ceil(shuffle_buffer_size / (block * lanes)))`. `at_least` is `parallel_shard_iters` if batches or
    packs are formed inside a lane above the leaf, where a lane must mix on its own, else 1.
    """
    return max(at_least, -(-(shuffle_buffer_size or 0) // (block * lanes)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """The numbers of one leaf, or of the leaf of each element of a chunk."""

    n: Column
    total: Column  # T
    passes: Column
    lanes: Column  # L, or 1 with runs
    block: Column  # B, at most total
    window: Column  # W, places
    blocks: Column  # ceil(T / B)
    last: Column  # r, 1 to B
    key: Column

    def at(self, leaf: npt.NDArray[np.intp]) -> _Row:
        return _Row(**{name: np.asarray(getattr(self, name))[leaf] for name in _Row.__slots__})


def _row(order: LeafOrder, lanes: int) -> _Row:
    passes = 1 if order.replacement or not order.shuffle else order.passes
    total = order.n * passes
    block = min(order.block or 1, total)
    blocks = -(-total // block)
    return _Row(
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


class LeafTable:
    """Draws from any number of leaves with one kernel: the cost of a chunk does not grow with the number of leaves.

    Attributes:
        lanes: L.
    """

    __slots__ = ("_columns", "_form", "_forms", "_rows", "lanes")

    def __init__(self, orders: Sequence[LeafOrder], lanes: int) -> None:
        """Make a table; leaf i is `orders[i]`.

        Raises:
            ConfigError: there is no lane.
        """
        if lanes < 1:
            raise ConfigError(f"LeafTable(lanes={lanes}): there must be at least 1 lane")
        self.lanes = lanes
        self._rows = [_row(order, lanes) for order in orders]
        self._columns = _Row(
            **{name: np.array([getattr(row, name) for row in self._rows], dtype=np.uint64) for name in _Row.__slots__}
        )
        self._form = np.array([_form(order) for order in orders], dtype=np.int8)
        self._forms = [int(form) for form in np.unique(self._form)]

    def __len__(self) -> int:
        return len(self._rows)

    def draw(self, leaf: npt.NDArray[np.int32] | int, child: npt.NDArray[np.int64]) -> Draws:
        """Draw samples: which sample, and in which pass over its leaf.

        Args:
            leaf: numbers of the leaves, int32 (k,), or one for all.
            child: child positions in those leaves, int64 (k,), at least 0, in any order.

        Returns:
            index: sample numbers in [0, n of the leaf), int64 (k,).
            epoch: passes over the leaf, int64 (k,).
        """
        places = np.ascontiguousarray(child, dtype=np.int64).view(np.uint64)
        if isinstance(leaf, int):
            return _DRAW[int(self._form[leaf])](self._rows[leaf], places)
        if not places.size:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        if bool((leaf == leaf[0]).all()):
            return self.draw(int(leaf[0]), child)
        if len(self._forms) == 1:
            return _DRAW[self._forms[0]](self._columns.at(leaf.astype(np.intp)), places)
        index, epoch = np.empty(places.size, dtype=np.int64), np.empty(places.size, dtype=np.int64)
        forms = self._form[leaf]
        for form in self._forms:
            at = np.flatnonzero(forms == form)
            if at.size:
                index[at], epoch[at] = _DRAW[form](self._columns.at(leaf[at].astype(np.intp)), places[at])
        return index, epoch


def _form(order: LeafOrder) -> int:
    if not order.shuffle:
        return 0
    return 1 + (order.block is not None) + 2 * order.replacement


def _sequential(row: _Row, child: Array) -> Draws:
    epoch = child // _u(row.n)
    return _signed(child - epoch * _u(row.n)), _signed(epoch)


def _full(row: _Row, child: Array) -> Draws:
    lap, place = _laps(child, row.total)
    return _passes(row, lap, permute(place, row.total, fold_array(row.key, _FULL, lap)).view(np.uint64))


def _block(row: _Row, child: Array) -> Draws:
    lap, place = _laps(child, row.total)
    lanes = _u(row.lanes)
    offset = place // lanes
    stretch = place - offset * lanes
    total = _u(row.total)
    base = total // lanes
    longer = total - base * lanes
    start = stretch * base + np.minimum(stretch, longer)
    length = base + (stretch < longer)
    place = _mix_windows(row, fold_array(row.key, _WINDOW, lap), start, offset, length)
    key = fold_array(row.key, _BLOCKS, lap)
    block, last = _u(row.block), _u(row.last)
    short_end = _short_slot(row.blocks, key) * block + last
    place += (place >= short_end) * (block - last)  # now as if the short block had B places
    slot = place // block
    inside = place - slot * block
    return _passes(row, lap, permute(slot, row.blocks, key).view(np.uint64) * block + inside)


def _replacement(row: _Row, child: Array) -> Draws:
    index = _scaled(_array(fold_array(row.key, _REPLACEMENT, child)), row.n)
    return _signed(index), _signed(child // _u(row.n))


def _block_replacement(row: _Row, child: Array) -> Draws:
    lanes, block, n = _u(row.lanes), _u(row.block), _u(row.n)
    offset = child // lanes
    lane = child - offset * lanes
    key = fold_array(row.key, _WINDOW, lane)
    offset = _mix_windows(row, key, np.zeros_like(offset), offset, np.full_like(offset, MAX_SIZE * 2))
    slot = offset // block
    start = _scaled(_array(fold_array(row.key, _REPLACEMENT, lane, slot)), row.n)
    index = start + (offset - slot * block)
    return _signed(np.minimum(index, index - n)), _signed(child // n)  # the smaller one, unsigned, is below n


def _laps(child: Array, total: Column) -> tuple[Column, Array]:
    """Give (lap, place) of each child position; one integer for all laps where they are all the same."""
    if isinstance(total, int) and child.size:
        first = int(child.min()) // total
        if int(child.max()) // total == first:
            return first, child - np.uint64(first * total) if first else child
    lap = child // _u(total)
    return lap, child - lap * _u(total)


def _mix_windows(row: _Row, key: Column, start: Array, offset: Array, length: Array) -> Array:
    """Permute offsets inside windows; stretches begin at place `start` and have `length` offsets. Gives places."""
    if isinstance(row.window, int) and row.window == 1:
        return start + offset
    window = _u(row.window)
    begin = offset - offset % window
    size = np.minimum(length - begin, window)
    begin += start
    offset = offset - (begin - start)
    keys = fold_array(key, begin)
    short = np.flatnonzero(size != window)
    if short.size in (0, size.size) or not isinstance(row.window, int):
        return begin + permute(offset, size if short.size else row.window, keys).view(np.uint64)
    mixed = permute(offset, row.window, keys).view(np.uint64)
    mixed[short] = permute(offset[short], size[short], _array(keys)[short]).view(np.uint64)
    return begin + mixed


def _short_slot(blocks: Column, key: Column) -> np.uint64 | Array:
    """Give s*, the slot of the last block."""
    if isinstance(blocks, int) and isinstance(key, int):
        return np.uint64(_one_short_slot(blocks, key))
    keys = _array(key)
    last = np.broadcast_to(_u(blocks) - np.uint64(1), keys.shape)
    return unpermute(last, blocks, keys).view(np.uint64)


@lru_cache(maxsize=4096)
def _one_short_slot(blocks: int, key: int) -> int:
    return int(unpermute(np.array([blocks - 1]), blocks, key)[0])


def _passes(row: _Row, lap: Column, value: Array) -> Draws:
    """Give (index, epoch) of values of [0, T)."""
    if isinstance(row.passes, int) and row.passes == 1:
        epoch = np.full(value.size, lap, dtype=np.int64) if isinstance(lap, int) else _signed(lap)
        return _signed(value), epoch
    turn = value // _u(row.n)
    return _signed(value - turn * _u(row.n)), _signed(turn + _u(lap) * _u(row.passes))


def _scaled(x: Array, n: Column) -> Array:
    """Give floor(x * n / 2**64), exactly, from halves of 32 bits: x scaled to [0, n)."""
    low32, s32 = np.uint64(0xFFFF_FFFF), np.uint64(32)
    size = _u(n)
    x_high, x_low, n_high, n_low = x >> s32, x & low32, size >> s32, size & low32
    middle = x_high * n_low + (x_low * n_low >> s32)
    other = x_low * n_high + (middle & low32)
    return x_high * n_high + (middle >> s32) + (other >> s32)


def _u(column: Column) -> np.uint64 | Array:
    return np.uint64(column) if isinstance(column, int) else column


def _array(column: Column) -> Array:
    return np.atleast_1d(np.asarray(column, dtype=np.uint64))


def _signed(values: Array) -> npt.NDArray[np.int64]:
    return values.view(np.int64)


_DRAW = {0: _sequential, 1: _full, 2: _block, 3: _replacement, 4: _block_replacement}
