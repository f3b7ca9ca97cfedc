# SPDX-License-Identifier: Apache-2.0
"""From the items of a run to the steps that delivered them: the inverse of `stream.passes.place_of`, in numpy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from energon_grain.stream.passes import PassPlan, Progress, Segment
from energon_grain.stream.spec import StreamSpec

Int64Array = npt.NDArray[np.int64]
_LAST: Segment = (1 << 62, 1 << 62, 0, 0, 1)


class Timeline:
    """The steps of a run whose order is arithmetic, until now and further on.

    Args:
        spec: The stream.
        hosts: Number of hosts.
        now: Its place, with the history of batch sizes.
    """

    def __init__(self, spec: StreamSpec, hosts: int, now: Progress) -> None:
        self._spec, self._hosts, self._now = spec, hosts, now
        self._endless = spec.order.passes is None

    @property
    def first_step(self) -> int:
        """Steps before this one cannot be computed from items."""
        return self._now.history[0][0]

    def steps_of(self, passes: Int64Array, items: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The step of each item, (n,), and the first item of the global batch.

        The step is -1 if the item is in no batch, or in one before `first_step`.

        Args:
            passes: (n,) number of the pass; 0 if the stream is endless.
            items: (n,) number in that pass.
        """
        steps, firsts = np.full(len(items), -1, np.int64), np.zeros(len(items), np.int64)
        for segment, following in self._segments():
            here = np.flatnonzero(self._behind(segment, passes, items) & ~self._behind(following, passes, items))
            if len(here):
                steps[here], firsts[here] = self._inside(segment, following, passes[here], items[here])
        return steps, firsts

    def delivered(self, passes: Int64Array) -> Int64Array:
        """How many of its first items each whole pass of a finite stream delivers, (n,). The rest is in no batch."""
        found, order = np.zeros(len(passes), np.int64), self._spec.order
        lengths = np.array([order.length(number) for number in passes.tolist()], np.int64)
        for segment, following in self._segments():
            _, first, pass_step, item, size = segment
            plan = self._plan(segment)
            later = (passes > first) & (passes <= following[1])
            found[later] = np.minimum(plan.steps_of(lengths[later]) * size, lengths[later])
            begun = passes == first
            found[begun] = np.minimum(item + (plan.remaining(pass_step, item) or 0) * size, lengths[begun])
        return found

    def is_before(self, passes: Int64Array, items: Int64Array) -> npt.NDArray[np.bool_]:
        """(n,) whether items are before `first_step`; see `steps_of`."""
        if not self.first_step:
            return np.zeros(len(items), np.bool_)
        return ~self._behind(self._now.history[0], passes, items)

    def size_at(self, pass_number: int, item: int) -> int:
        """The size of the global batch with an item."""
        at = np.array([pass_number]), np.array([item])
        return [segment for segment in self._now.history if self._behind(segment, *at)[0]][-1][4]

    def skipped(self, steps: Int64Array) -> npt.NDArray[np.bool_]:
        """(n,) whether each step was skipped."""
        found = np.zeros(len(steps), np.bool_)
        for first, count in self._now.skipped:
            found |= (steps >= first) & (steps < first + count)
        return found

    def _segments(self) -> Iterator[tuple[Segment, Segment]]:
        return pairwise([*self._now.history, _LAST])

    def _behind(self, segment: Segment, passes: Int64Array, items: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether items are at or after the beginning of a segment."""
        if segment is _LAST:
            return np.zeros(len(items), np.bool_)
        at_once = items >= segment[3]
        return at_once if self._endless else (passes > segment[1]) | ((passes == segment[1]) & at_once)

    def _plan(self, segment: Segment) -> PassPlan:
        return dataclasses.replace(PassPlan.of(self._spec, self._hosts, segment[1]), global_batch=segment[4])

    def _inside(
        self, segment: Segment, following: Segment, passes: Int64Array, items: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        start, first_pass, pass_step, item, size = segment
        if self._endless:
            ahead = (items - item) // size
            steps, firsts = start + ahead, item + ahead * size
        else:
            plan = self._plan(segment)
            left = plan.remaining(pass_step, item) or 0
            counts = plan.steps_of(self._spec.order.lengths(first_pass + 1, int(passes.max()) - first_pass))
            begins = start + np.cumsum([0, left, *counts])
            counts = np.array([left, *counts])
            turn = passes - first_pass
            before = np.where(turn == 0, item, 0)  # the first batch of the pass in this segment begins here
            ahead = (items - before) // size
            steps, firsts = begins[turn] + ahead, before + ahead * size
            steps[ahead >= counts[turn]] = -1
        steps[steps >= following[0]] = -1
        return steps, firsts
