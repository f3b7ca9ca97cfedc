"""The arithmetic behind each form of a leaf's order, on whole chunks; `leaf_order` says what it means.

Numbers are uint64 here. All are below 2**63: sizes are at most 2**62 and child positions are int64, so a sum of two
never overflows, and products occur only where their value is a place or a position again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.samplers.columns import Array, Column, at, operand, scaled, signed, spread
from energon_grain.samplers.hashing import fold, fold_array
from energon_grain.samplers.permutation import permute

Draws = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Samples and the passes that they are drawn in: index and epoch, int64 (k,) each."""

_FULL, _BLOCKS, _SHORT, _WINDOW, _REPLACEMENT = map(fold, ("full", "blocks", "short", "window", "replacement"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The numbers of one leaf, or of the leaf of each element of a chunk."""

    n: Column
    """Samples."""
    total: Column
    """T = n * passes, places in a lap."""
    passes: Column
    lanes: Column
    """L, or 1 where lanes ask for runs."""
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
        """Give the row of each element, from a row that holds one number a leaf."""
        return Row(**{name: at(getattr(self, name), leaf) for name in Row.__slots__})


def sequential(row: Row, child: Array) -> Draws:
    """Keep the order."""
    n = operand(row.n)
    epoch = child // n
    return signed(child - epoch * n), signed(epoch)


def full(row: Row, child: Array) -> Draws:
    """Permute each lap as a whole."""
    lap, place = _laps(child, row.total)
    return _by_pass(row, lap, permute(place, row.total, fold_array(row.key, _FULL, lap)).view(np.uint64))


def blocks(row: Row, child: Array) -> Draws:
    """Permute blocks, cut their order into stretches, mix inside windows."""
    lap, place = _laps(child, row.total)
    lanes, total = operand(row.lanes), operand(row.total)
    offset = place // lanes
    stretch = place - offset * lanes
    base = total // lanes
    longer = total - base * lanes
    start = stretch * base + np.minimum(stretch, longer)
    length = base + (stretch < longer)
    place = _mix_windows(row, fold_array(row.key, _WINDOW, lap), start, offset, length)
    return _by_pass(row, lap, _block_order(row, fold_array(row.key, _BLOCKS, lap), place))


def replacement(row: Row, child: Array) -> Draws:
    """Draw every sample anew."""
    return signed(scaled(fold_array(row.key, _REPLACEMENT, child), row.n)), signed(child // operand(row.n))


def block_replacement(row: Row, child: Array) -> Draws:
    """Draw the start of every block anew, mix inside windows."""
    lanes, block, n = operand(row.lanes), operand(row.block), operand(row.n)
    offset = child // lanes
    lane = child - offset * lanes
    endless = np.broadcast_to(np.uint64(1 << 63), offset.shape)
    offset = _mix_windows(row, fold_array(row.key, _WINDOW, lane), np.zeros_like(offset), offset, endless)
    slot = offset // block
    index = scaled(fold_array(row.key, _REPLACEMENT, lane, slot), row.n) + (offset - slot * block)
    return signed(np.minimum(index, index - n)), signed(child // n)  # index - n wraps to above index where index < n


def _laps(child: Array, total: Column) -> tuple[Column, Array]:
    """Give lap and place of each child position; one integer for all laps where they are all the same."""
    if isinstance(total, int):
        lap = int(child.min()) // total
        if int(child.max()) // total == lap:
            return lap, child - np.uint64(lap * total)
    laps = child // operand(total)
    return laps, child - laps * operand(total)


def _mix_windows(row: Row, key: Column, start: Array, offset: Array, length: Array) -> Array:
    """Permute offsets inside windows; stretches begin at place `start` and have `length` offsets. Gives places."""
    window = operand(row.window)
    inside = offset % window
    begin = offset - inside
    size = np.minimum(length - begin, window)
    begin += start
    keys = fold_array(key, begin)
    if not isinstance(row.window, int):
        return begin + permute(inside, size, keys).view(np.uint64)
    mixed = permute(inside, row.window, keys).view(np.uint64)
    short = np.flatnonzero(size != window)
    if short.size:
        mixed[short] = permute(inside[short], size[short], at(keys, short)).view(np.uint64)
    return begin + mixed


def _block_order(row: Row, key: Column, place: Array) -> Array:
    """Give the value at each place of the block order."""
    one = np.uint64(1)
    block, count, last = operand(row.block), operand(row.blocks), operand(row.last)
    short = scaled(fold_array(key, _SHORT), row.blocks)
    place = place + (place >= short * block + last) * (block - last)  # as if the short block had B places
    slot = place // block
    inside = place - slot * block
    others = max(row.blocks - 1, 1) if isinstance(row.blocks, int) else np.maximum(row.blocks - one, one)
    number = permute(np.minimum(slot - (slot > short), operand(others) - one), others, key).view(np.uint64)
    return np.where(slot == short, count - one, number) * block + inside


def _by_pass(row: Row, lap: Column, value: Array) -> Draws:
    """Give index and epoch of values of [0, T)."""
    if isinstance(row.passes, int) and row.passes == 1:
        return signed(value), signed(spread(lap, value.size).copy() if isinstance(lap, int) else lap)
    turn = value // operand(row.n)
    return signed(value - turn * operand(row.n)), signed(turn + operand(lap) * operand(row.passes))
