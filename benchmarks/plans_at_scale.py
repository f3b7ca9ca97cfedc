"""Measure planning at the size of the largest runs by arithmetic alone: nothing is read, and costs are synthetic.

`python -m benchmarks.plans_at_scale [--samples 1_000_000_000] [--leaves 1_000] [--hosts 10_000]` prints a table for
shares by cost, for packs planned on top of them, and for equal work of hosts: the seconds until the plan of the first
global batch on one of that many hosts, the time for each further global batch, and the memory of the process. Each leaf
is fully shuffled; the cost of a sample is a hash of its number, so columns take neither memory nor time here (reading a
column from memory takes some 10 ns per sample).
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from benchmarks.child import program
from energon_grain import PackingPlan
from energon_grain.planning.balance import divide
from energon_grain.planning.cost_blend import CostBlend
from energon_grain.planning.costs import PARTS_OF_ONE, CostsOfStream
from energon_grain.planning.planned_packing import PlannedPacks
from energon_grain.samplers.hashing import fold_array
from energon_grain.samplers.leaf_order import LeafOrder, LeafTable
from energon_grain.samplers.routing import RouteTree
from energon_grain.stream.index_map import EqualPasses, IndexMap

Int64Array = npt.NDArray[np.int64]
BATCH = 8
CAPACITY = 4096


@dataclass(frozen=True)
class SyntheticCosts:
    """Costs of the samples of a leaf: 16 to 2,063 tokens."""

    number: int

    def of(self, indices: Int64Array) -> Int64Array:
        """Return the (n,) costs."""
        hashed = fold_array(self.number, indices.view(np.uint64))
        return ((hashed % np.uint64(2048)).astype(np.int64) + 16) * PARTS_OF_ONE


def leaf(samples: int, key: int) -> IndexMap:
    """Return the order of one leaf."""
    table = LeafTable([LeafOrder(n=samples, key=key)], 48)
    return IndexMap(routes=None, table=table, passes=EqualPasses(samples), same_pass=False, samples=samples)


def blend(samples: int, leaves: int) -> IndexMap:
    """Return the order of a blend by cost of equal leaves."""
    each = samples // leaves
    orders = [leaf(each, key) for key in range(leaves)]
    costs = [CostsOfStream(order, [SyntheticCosts(key)]) for key, order in enumerate(orders)]  # type: ignore[list-item]
    router = CostBlend([(0, [1] * leaves)], costs, key=1)
    table = LeafTable([LeafOrder(n=each, key=key) for key in range(leaves)], 48)
    routes = RouteTree(router, [None] * leaves)
    return IndexMap(routes=routes, table=table, passes=None, same_pass=False, samples=samples)


def timed(name: str, step: Callable[[int], object], steps: int) -> None:
    """Print the time of the first step, and the mean time of the further ones."""
    seconds: list[float] = []
    for number in range(steps):
        begin = time.perf_counter()
        step(number)
        seconds.append(time.perf_counter() - begin)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    further = sum(seconds[1:]) / max(1, steps - 1)
    print(f"{name:42s} first {seconds[0]:7.2f} s   further {1000 * further:9.1f} ms   {memory:6.0f} MiB")


def main(samples: int = 1_000_000_000, leaves: int = 1_000, hosts: int = 10_000, steps: int = 20) -> None:
    step_items = hosts * BATCH
    print(f"{samples:,} samples, {leaves:,} leaves, {hosts:,} hosts of {BATCH} items, {step_items:,} items per step")
    orders: list[IndexMap] = []
    timed("open the blend", lambda _: orders.append(blend(samples, leaves)), 1)
    order = orders[0]
    costs = CostsOfStream(order, [SyntheticCosts(key) for key in range(leaves)])  # type: ignore[list-item]

    def own(step: int) -> object:
        return order.draw_in_stream(step * step_items + np.arange(BATCH) * hosts)

    timed("blend by cost, one host's draws", own, steps)
    plan = PackingPlan("tokens", capacity=CAPACITY)
    packs = PlannedPacks(order, (costs,), plan, 2, 0)

    def packed(step: int) -> object:
        return packs.draw(step * step_items + np.arange(BATCH) * hosts)

    timed("packs of the blend, one host's draws", packed, max(2, steps // 5))
    single = leaf(samples, 3)
    of_single = CostsOfStream(single, [SyntheticCosts(3)])  # type: ignore[list-item]
    first = count()

    def balanced(_: int) -> object:
        at = next(first) * step_items
        return divide(of_single(np.arange(at, at + step_items))[None], hosts)

    timed("equal work, single leaf", balanced, max(2, steps // 5))


if __name__ == "__main__":
    program(main)
