# SPDX-License-Identifier: Apache-2.0
"""The samples of many steps at once, by arithmetic: no record per sample, no name is looked up, nothing is read.

Items of a step follow each other in the order, so only the first item of each step is needed. Steps of one pass and one
batch size have their first items at equal distances, which is found by bisection for each pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.errors import StateError
from energon_grain.storage.cores import usable_cores
from energon_grain.stream.passes import Progress, place_of
from energon_grain.stream.run import Run

Int64Array: TypeAlias = npt.NDArray[np.int64]
_AT_ONCE = 1 << 16
"""Items that are drawn together: arrays of this size stay in a core's cache."""
_THREADS = 4


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepItems:
    """Where the items of some steps are.

    Attributes:
        first: (n,) first item of each step, in the sequence of all passes.
        count: (n,) number of items of each step, of all hosts.
    """

    first: Int64Array
    count: Int64Array


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DrawnSteps:
    """The samples of some steps.

    Attributes:
        steps: (k,) the steps, as indices into those that were asked for.
        row: (m,) the step of each sample, as an index into `steps`.
        item: (m,) number of its item in the step: 0, 1, 2, …
        leaf: (m,) number of its leaf, int32.
        index: (m,) its index in the leaf.
        epoch: (m,) its pass over the leaf.
    """

    steps: Int64Array
    row: Int64Array
    item: Int64Array
    leaf: npt.NDArray[np.int32]
    index: Int64Array
    epoch: Int64Array


def items_of(run: Run, now: Progress, steps: Int64Array) -> StepItems:
    """The items of steps, ascending, which must follow from arithmetic (`which.is_arithmetic`).

    Raises StateError if a step does not exist.
    """
    spec, hosts = run.spec, run.share.hosts
    first, count = np.empty(len(steps), np.int64), np.empty(len(steps), np.int64)
    at = 0
    while at < len(steps):
        begin = int(steps[at])
        pass_number, item, size = place_of(spec, hosts, now.history, begin)

        def follows(place: int, begin: int = begin, here: tuple[int, int, int] = (pass_number, item, size)) -> bool:
            """Whether a later step is at its distance from this one, in the same pass."""
            step, (number, item, size) = int(steps[place]), here
            return place_of(spec, hosts, now.history, step) == (number, item + (step - begin) * size, size)

        low, high = at, len(steps) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if follows(middle) else (low, middle - 1)
        own = slice(at, low + 1)
        items = item + (steps[own] - begin) * size
        length = spec.order.length(pass_number)
        count[own] = size if length is None else np.minimum(size, length - items)
        first[own] = items + spec.order.start(pass_number)
        at = low + 1
    return StepItems(first=first, count=count)


def draw_steps(run: Run, items: StepItems, wanted: Int64Array) -> Iterator[DrawnSteps]:
    """The samples of some of the steps, piece by piece. Pieces are drawn in threads, and returned in order.

    Args:
        run: The run.
        items: Of all steps.
        wanted: Numbers of the steps to draw, as indices into `items`.
    """
    counts = items.count[wanted]
    cuts = np.searchsorted(np.cumsum(counts), np.arange(_AT_ONCE, int(counts.sum()) + _AT_ONCE, _AT_ONCE))
    bounds = np.unique(np.concatenate([[0], cuts + 1, [len(wanted)]]))
    bounds = bounds[bounds <= len(wanted)]
    pieces = [wanted[begin:end] for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
    if len(pieces) < 4:
        yield from (_drawn(run, items, piece) for piece in pieces)
        return
    threads = min(_THREADS, max(1, usable_cores()))
    with ThreadPoolExecutor(threads, "energon_grain-draws") as executor:
        todo = iter(pieces)
        running = [executor.submit(_drawn, run, items, piece) for piece in islice(todo, 2 * threads)]
        while running:
            yield running.pop(0).result()
            running += [executor.submit(_drawn, run, items, piece) for piece in islice(todo, 1)]


def _drawn(run: Run, items: StepItems, wanted: Int64Array) -> DrawnSteps:
    count = items.count[wanted]
    begins = np.cumsum(count) - count
    item = np.arange(int(count.sum())) - np.repeat(begins, count)
    draws = run.spec.order.draw_in_stream(np.repeat(items.first[wanted], count) + item)
    row = np.repeat(np.arange(len(wanted)), count)
    if draws.items is not None:
        owner = draws.items.owner()
        row, item, draws = row[owner], item[owner], draws.members
    return DrawnSteps(steps=wanted, row=row, item=item, leaf=draws.leaf, index=draws.index, epoch=draws.epoch)


def check_not_skipped(now: Progress, steps: Int64Array) -> None:
    """Check that the run skipped none of the steps. Raises StateError that names the first one."""
    for first, count in now.skipped:
        wrong = steps[(steps >= first) & (steps < first + count)]
        if len(wrong):
            raise StateError(
                f"step {int(wrong[0])}: the run skipped {count} steps from {first} on, so no samples belong to its "
                f"loss; leave these steps out of the losses"
            )
