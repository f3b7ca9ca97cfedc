# SPDX-License-Identifier: Apache-2.0
"""Sums of residuals over the uses of every sample, every shard and every dataset, from the samples of many steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.history.bulk_draws import DrawnSteps
from energon_grain.sources.rows import SelectedSource, rows_of
from energon_grain.sources.source import Source
from energon_grain.stream.spec import LeafSpec

FloatArray: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Residuals: TypeAlias = Callable[[DrawnSteps], FloatArray]
"""The residual of each sample of some steps, (m,)."""
_DENSE, _KEPT = 1 << 22, 1 << 26
_EPOCHS = 4
_NUMBERED_AT_ONCE = 1 << 20


@dataclass(slots=True, kw_only=True, eq=False)
class Groups:
    """Samples that are counted together, such as those of a shard.

    Attributes:
        leaf: (g,) number of the leaf of each group.
        name: Name of each.
        share: (g,) its share of the samples of its leaf.
        of: For each leaf, the group of each of its samples, (samples,); an integer: all are in this group.
        score: (g,) sum over steps of uses times residual.
        uses: (g,) sum of uses.
        squares: (g,) sum of squared uses over the probed steps.
        largest: (g,) largest number of uses in a step.
        kept: The counted steps, piece by piece, and how often each uses the samples of each group, (k, g) uint8; None:
            it is not kept.
    """

    leaf: Int64Array
    name: Sequence[str]
    share: FloatArray
    of: Sequence[npt.NDArray[Any] | int]
    score: FloatArray
    uses: FloatArray
    squares: FloatArray
    largest: FloatArray
    kept: list[tuple[Int64Array, npt.NDArray[np.uint8]]] | None = None

    @classmethod
    def made(cls, leaf: Sequence[int], name: Sequence[str], share: Sequence[float], of: Sequence[Any]) -> Groups:
        zeros = [np.zeros(len(name)) for _ in range(4)]
        return cls(
            leaf=np.array(leaf, np.int64),
            name=name,
            share=np.array(share),
            of=of,
            score=zeros[0],
            uses=zeros[1],
            squares=zeros[2],
            largest=zeros[3],
        )

    def add(self, drawn: DrawnSteps, residuals: FloatArray, probed: npt.NDArray[np.bool_]) -> None:
        """Count the samples of some steps. `probed`: (k,) whether the squares of a step are counted."""
        own = self._group_of(drawn)
        groups = len(self.name)
        self.score += np.bincount(own, residuals, groups)
        keys = drawn.row * groups + own
        if len(drawn.steps) * groups <= _DENSE:
            counts = np.bincount(keys, minlength=len(drawn.steps) * groups).reshape(-1, groups)
            self.uses += counts.sum(axis=0)
            self.squares += (counts[probed] ** 2).sum(axis=0)
            np.maximum(self.largest, counts.max(axis=0), out=self.largest)
            if self.kept is not None:
                self.kept.append((drawn.steps, np.minimum(counts, 255).astype(np.uint8)))
            return
        found, count = np.unique(keys, return_counts=True)
        row, group = np.divmod(found, groups)
        self.uses += np.bincount(group, count, groups)
        self.squares += np.bincount(group, count.astype(np.float64) ** 2 * probed[row], groups)
        np.maximum.at(self.largest, group, count)

    def keep(self, steps: int) -> None:
        """Keep how often each of a number of steps uses each group, if that takes at most 64 MiB."""
        if len(self.name) > 1 and steps * len(self.name) <= _KEPT:
            self.kept = []

    def _group_of(self, drawn: DrawnSteps) -> Int64Array:
        if len(self.of) == 1:
            only = self.of[0]
            return (
                np.full(len(drawn.row), only, np.int64) if isinstance(only, int) else only[drawn.index].astype(np.int64)
            )
        found = np.empty(len(drawn.row), np.int64)
        for leaf, groups in enumerate(self.of):
            own = np.flatnonzero(drawn.leaf == leaf)
            found[own] = groups if isinstance(groups, int) else groups[drawn.index[own]]
        return found


def datasets_of(leaves: Sequence[LeafSpec]) -> Groups:
    """All samples of each leaf as a group."""
    numbers = list(range(len(leaves)))
    return Groups.made(numbers, [str(leaf.leaf.source.path) for leaf in leaves], [1.0] * len(leaves), numbers)


def shards_of(leaves: Sequence[LeafSpec]) -> Groups:
    """The samples of each shard as a group; of sources whose shards are unknown, all samples."""
    of_leaf: list[int] = []
    names: list[str] = []
    shares: list[float] = []
    groups: list[npt.NDArray[Any] | int] = []
    for number, leaf in enumerate(leaves):
        own, found = _shards(leaf.leaf.source)
        counts = [1] if isinstance(found, int) else np.bincount(found, minlength=len(own)).tolist()
        offset = len(names)
        groups.append(found + offset if isinstance(found, int) else found + found.dtype.type(offset))
        names += own
        of_leaf += [number] * len(own)
        shares += [count / max(1, sum(counts)) for count in counts]
    return Groups.made(of_leaf, names, shares, groups)


def _shards(source: Source) -> tuple[list[str], npt.NDArray[np.int32] | int]:
    """The names of a source's shards, and the shard of each sample."""
    rows = rows_of(source)
    if rows is None or not isinstance(source, SelectedSource):
        return [""], 0
    counts = rows.shard_counts
    if len(counts) == 1:
        return list(counts), 0
    ends = np.cumsum(list(counts.values()))
    found = np.empty(len(source), np.int32)
    for begin in range(0, len(source), _NUMBERED_AT_ONCE):
        numbers = source.numbers(np.arange(begin, min(begin + _NUMBERED_AT_ONCE, len(source))))
        found[begin : begin + len(numbers)] = np.searchsorted(ends, numbers, side="right")
    return list(counts), found


class Samples:
    """The score of every sample.

    Attributes:
        score: For each leaf, (samples,) sum of the residuals of the sample's uses, float32.
        uses: For each leaf, (samples,) number of uses, int32.
    """

    def __init__(self, leaves: Sequence[LeafSpec]) -> None:
        self._repeats = [leaf.order.replacement for leaf in leaves]
        self.score = [np.zeros(len(leaf.leaf.source), np.float32) for leaf in leaves]
        self.uses = [np.zeros(len(leaf.leaf.source), np.int32) for leaf in leaves]

    def add(self, drawn: DrawnSteps, residuals: FloatArray) -> None:
        """Count the samples of some steps."""
        if len(self.score) == 1:
            self._add(0, drawn.index, drawn.epoch, residuals.astype(np.float32))
            return
        for leaf in range(len(self.score)):
            own = np.flatnonzero(drawn.leaf == leaf)
            self._add(leaf, drawn.index[own], drawn.epoch[own], residuals[own].astype(np.float32))

    def _add(self, leaf: int, index: Int64Array, epoch: Int64Array, residuals: npt.NDArray[np.float32]) -> None:
        """Samples are unique in each pass, and indexing then adds much faster than `add.at`."""
        score, uses = self.score[leaf], self.uses[leaf]
        epochs = range(int(epoch.min()), int(epoch.max()) + 1) if len(epoch) else range(0)
        if self._repeats[leaf] or len(epochs) > _EPOCHS:
            np.add.at(score, index, residuals)
            np.add.at(uses, index, 1)
            return
        for each in epochs:
            own = slice(None) if len(epochs) == 1 else np.flatnonzero(epoch == each)
            score[index[own]] += residuals[own]
            uses[index[own]] += 1

    def __len__(self) -> int:
        return sum(map(len, self.score))
