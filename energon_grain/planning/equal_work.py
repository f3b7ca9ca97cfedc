# SPDX-License-Identifier: Apache-2.0
"""Assigns the items of balanced steps to hosts: arithmetic over the columns of the items, the same on every host.

Without balancing, the items of a step are assigned round robin: position q of the stream holds item q and belongs to
host q mod H. With balancing, positions and hosts stay the same, and items change positions within their step. Batches,
their numbers and everything that counts positions are therefore unaffected; only the conversion from a position to an
item calls `EqualPlaces.items`.

One difference remains: later items of a lane cannot replace a dropped item, because they may belong to other hosts. The
next item of its step (wrapping around) that was not dropped replaces it, read again by the host that needs it. A drop
therefore moves no other item, and any number of hosts can continue from any state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.batching import Balance
from energon_grain.planning.balance import divide
from energon_grain.planning.costs import Costs
from energon_grain.sources.source import Source
from energon_grain.stream.index_map import IndexMap, Sources
from energon_grain.stream.passes import PassPlan, Share

Int64Array = npt.NDArray[np.int64]
_ITEMS_PER_CHUNK = 1 << 15
"""Items that are divided at once. More items take longer each, because they leave the cache."""


@dataclass(frozen=True, slots=True)
class EqualWork:
    """Equal work for hosts. See `stream.places.Placing`."""

    balance: Balance

    @property
    def requested_by(self) -> str:
        return f"balance={self.balance.by!r}"

    def places(
        self, order: IndexMap, sources: Sources, share: Share, *, pass_number: int, first: int, plan: PassPlan
    ) -> EqualPlaces:
        return EqualPlaces(self, order, sources, share, pass_number=pass_number, first=first, plan=plan)

    def manifest(self, sources: Mapping[str, Source]) -> dict[str, Any]:
        balance = self.balance
        return {
            "by": balance.by,
            "micro_batches": balance.micro_batches,
            "columns": {key: Costs(source, balance.costs, "balance").ids for key, source in sources.items()},
        }


class EqualPlaces:
    """The balanced steps of one pass, for one host.

    Args:
        wanted: Settings of the batches.
        order: Order of the stream.
        sources: Sources of its leaves.
        share: The host's part.
        pass_number: Number of the pass.
        first: Item at the start of a step; all requested items come after it.
        plan: Plan of the pass.
    """

    def __init__(
        self,
        wanted: EqualWork,
        order: IndexMap,
        sources: Sources,
        share: Share,
        *,
        pass_number: int,
        first: int,
        plan: PassPlan,
    ) -> None:
        self._order = order
        self._costs = [Costs(source, wanted.balance.costs, wanted.requested_by) for source in sources]
        self._parts = wanted.balance.micro_batches
        self._share = share
        self._pass = pass_number
        self._first = first
        self._plan = plan
        self._column = (share.host - first) % share.hosts  # the host's column in its steps
        self._known: dict[int, Int64Array] = {}

    @property
    def end(self) -> int | None:
        """The local position after the last one of the pass; None: endless."""
        stop, plan = self._plan.length, self._plan
        if stop is None:
            return None
        surplus = (stop - self._first) % plan.global_batch
        if surplus and plan.drops_last:
            stop -= surplus
        elif surplus and plan.pads:
            stop += plan.global_batch - surplus
        return self._share.first_at(stop)

    @property
    def whole_until(self) -> int | None:
        """The local position after those of steps without padding; None if there is no padding."""
        length = self._plan.length
        if length is None or not self._plan.pads:
            return None
        return self._share.first_at(length - (length - self._first) % self._plan.global_batch)

    def items(self, places: Int64Array) -> Int64Array:
        """Return the items at positions of this host; those after the end of a pass are padding."""
        if self._share.hosts == self._parts == 1:
            return places
        steps, slots = np.divmod(places - self._first, self._plan.global_batch)
        requested, which = np.unique(steps, return_inverse=True)
        known = self._known  # another thread may use it at the same time
        new = [step for step in requested.tolist() if step not in known]
        steps_per_chunk = max(1, _ITEMS_PER_CHUNK // self._plan.global_batch)
        known = {step: known[step] for step in requested.tolist() if step in known}
        for begin in range(0, len(new), steps_per_chunk):
            some = new[begin : begin + steps_per_chunk]
            known.update(zip(some, self._own(np.array(some)), strict=True))
        self._known = known
        rows = np.stack([known[step] for step in requested.tolist()])
        return rows[which, slots // self._share.hosts]

    def positions(self, items: Int64Array) -> Int64Array:
        """Return the positions of items: padding repeats the pass from its beginning."""
        length = self._plan.length
        return items if length is None else items % length

    def hosts_of(self, step: int) -> Int64Array:
        """Return (G,) the host of each item of a step, counted from the first."""
        items, _ = self._divided(np.array([step]))
        hosts = np.empty(self._plan.global_batch, np.int64)
        hosts[items[0] - self._first - step * self._plan.global_batch] = (
            self._first + np.arange(self._share.hosts)[:, None]
        ) % self._share.hosts
        return hosts

    def substitutes(self, item: int) -> Int64Array:
        """Return the other items of an item's step, in the order in which they replace it."""
        first = item - (item - self._first) % self._plan.global_batch
        length, count = self._plan.length, self._plan.global_batch
        count = count if length is None else min(count, length - first)
        return first + (item - first + np.arange(1, count)) % count

    def _own(self, steps: Int64Array) -> Int64Array:
        """Return (n, b) items of this host in each of the steps, in batch order."""
        items, costs = (each[:, self._column] for each in self._divided(steps))
        if self._parts == 1:
            return items
        order = divide(costs, self._parts).reshape(len(steps), -1)
        if self._plan.keeps and self._plan.length is not None:
            short = self._first + (steps + 1) * self._plan.global_batch > self._plan.length
            order[short] = np.arange(order.shape[1])
        return np.take_along_axis(items, order, axis=1)

    def _divided(self, steps: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (n, H, b) items of the steps, and their costs. Columns belong to hosts: see `_column`."""
        size = self._plan.global_batch
        firsts = self._first + steps[:, None] * size
        costs = self._costs_of(self.positions(firsts + np.arange(size)).reshape(-1)).reshape(len(steps), size)
        divided = divide(costs, self._share.hosts)
        rows = np.arange(len(steps))[:, None, None]
        return firsts[:, :, None] + divided, costs[rows, divided]

    def _costs_of(self, positions: Int64Array) -> Int64Array:
        """Return the costs of items at positions: of a sample, or of the members of a pack."""
        costs = np.zeros(len(positions), np.int64)
        for leaf, places, draws in self._order.draw(positions, self._pass).by_leaf():
            np.add.at(costs, places, self._costs[leaf].of(draws.index))
        return costs
