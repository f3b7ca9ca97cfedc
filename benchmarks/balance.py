"""Measure how equal `balance=` makes the work of hosts, the time it saves, and its cost.

`python -m benchmarks.balance [--steps 200]` prints three tables. It needs only this package.

1. Largest over mean cost of hosts: in stream order, by LPT with equal counts (the start of `divide`), by `divide`, and
   the lower bound for any division (`bound`). Means over steps; the last column is `divide` over the bound.
2. Saved step time: a step takes as long as its slowest host. Lengths are those of web documents as fitted by Barford
   and Crovella ("Generating representative web workloads", SIGMETRICS 1998: log-normal with mu = 9.357 and sigma =
   1.318 in bytes), at four bytes per token, cut at the context. A sample of n tokens costs a decoder n + n² / 12 d
   (projections and MLP take 24 d² operations per token and layer, causal attention 2 n d), with d = 4,096.
3. Planning time on each host per sample of the global batch: draws, costs and division.

With `--chart FILE`, it reads which host gets which samples from loaders over texts of the three laws, for their first
steps, and draws the largest over the mean.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks import token_packing
from benchmarks.child import program
from benchmarks.picture import bars, texts
from energon_grain import Stream, WorkerConfig, get_train_dataset
from energon_grain.planning import balance
from energon_grain.stream.passes import PassPlan, places_of
from energon_grain.testing import make_text_dataset

Array = npt.NDArray[np.int64]
SHAPES = ((64, 8), (16, 8), (64, 32), (256, 4))
TARGET, TARGET_US = 1.03, 5.0
_RNG = np.random.default_rng(0)
LAWS = {name: partial(law, np.random.default_rng(0)) for name, law in token_packing.LAWS.items()}
_WIDTH = 4096


def loads(costs: Array, parts: Array) -> Array:
    """Return (steps, hosts) the cost of each host's items."""
    return costs[np.arange(len(costs))[:, None, None], parts].sum(axis=2)


def lpt(costs: Array, hosts: int) -> Array:
    """Return (steps, hosts) the loads of LPT with equal counts, without exchange."""
    return balance._largest_first(costs, hosts)[1]


def bound(costs: Array, hosts: int) -> npt.NDArray[np.float64]:
    """Return (steps,) a lower bound of the largest load for any division: the larger of two bounds.

    *Of counts.* Among the largest (k - 1)·H + j items, some j hosts hold j·k or more (pigeonhole principle), and the
    smallest items in addition. k = 1 and j = H is the mean; k = j = 1 is the largest item with the smallest others. *Of
    sizes*, for bins with any number of items: Martello and Toth's bound L2 on the number of bins of a capacity.
    """
    count, size = costs.shape[1], costs.shape[1] // hosts
    falling = -np.sort(-costs, axis=1)
    before = np.concatenate([np.zeros((len(costs), 1), np.int64), np.cumsum(falling, axis=1)], axis=1)
    least = before[:, -1] / hosts
    j = np.arange(1, hosts + 1)
    for k in range(1, size + 1):
        stop, others = (k - 1) * hosts + j, j * (size - k)
        excess = before[:, stop] - before[:, stop - j * k] + before[:, -1:] - before[:, count - others]
        least = np.maximum(least, np.where(stop <= count - others, excess / j, 0).max(axis=1))
    return np.array([_capacity(row, hosts, low) for row, low in zip(np.sort(costs, axis=1), least, strict=True)])


def _capacity(costs: Array, hosts: int, low: float) -> float:
    """Return the smallest capacity from `low` on for which L2 allows `hosts` bins; costs in ascending order."""
    sums = np.concatenate([[0], np.cumsum(costs)])

    def bins(capacity: int) -> int:
        half = int(np.searchsorted(2 * costs, capacity, side="right"))
        alone = np.searchsorted(costs, capacity - costs[:half], side="right")  # items that fit with none of size a
        free = (alone - half) * capacity - (sums[alone] - sums[half])
        more = np.maximum(0, -(-(sums[half] - sums[:half] - free) // capacity))
        return int((len(costs) - half + more).max(initial=len(costs) - half))

    least, most = int(low), int(sums[-1])
    if bins(least) <= hosts:
        return low
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if bins(middle) <= hosts else (middle + 1, most)
    return least


def equality(steps: int) -> bool:
    """Print the first table; returns whether all divisions meet the target."""
    print(f"{'law':11s}{'hosts':>6s}{'items':>6s}{'in order':>9s}{'LPT':>7s}{'ours':>7s}{'bound':>7s} ours/bound")
    fine = True
    for name, law in LAWS.items():
        for hosts, size in SHAPES:
            costs = law(steps * hosts * size).reshape(steps, -1)
            mean, least = costs.sum(axis=1) / hosts, bound(costs, hosts)
            largest = [
                each.max(axis=1)
                for each in (
                    costs.reshape(steps, size, hosts).sum(axis=1),
                    lpt(costs, hosts),
                    loads(costs, balance.divide(costs, hosts)),
                )
            ]
            of_bound = (largest[2] / least).mean()
            fine &= of_bound <= TARGET
            shown = "".join(f"{(each / mean).mean():7.3f}" for each in (*largest[1:], least))
            print(f"{name:11s}{hosts:6d}{size:6d}{(largest[0] / mean).mean():9.2f}{shown}{of_bound:11.4f}")
    return fine


def saved(steps: int) -> None:
    """Print the second table."""
    print(f"\n{'context':>8s}{'hosts':>6s}{'items':>6s}{'in order':>9s}{'ours':>7s}{'step time saved':>17s}")
    for context in (4096, 32768):
        for hosts, size in ((8, 8), (64, 8), (64, 32), (1000, 8)):
            tokens = np.clip(_RNG.lognormal(9.357, 1.318, (steps, hosts * size)) / 4, 1, context)
            costs = (1024 * (tokens + tokens**2 / (12 * _WIDTH))).astype(np.int64)
            before = costs.reshape(steps, size, hosts).sum(axis=1)
            after = loads(costs, balance.divide(costs, hosts))
            times = before.max(axis=1).sum(), after.max(axis=1).sum()
            over = [(each.max(axis=1) / each.mean(axis=1)).mean() for each in (before, after)]
            print(f"{context:8d}{hosts:6d}{size:6d}{over[0]:9.2f}{over[1]:7.3f}{1 - times[1] / times[0]:17.0%}")


def planning() -> bool:
    """Print the third table; returns whether planning meets the target."""
    print(f"\n{'hosts':>6s}{'items':>6s}{'us/sample, division':>23s}{'all planning':>17s}")
    fine = True
    with tempfile.TemporaryDirectory() as folder:
        path = make_text_dataset(Path(folder) / "texts", n=20_000, shards=4)
        for hosts, size in SHAPES:
            steps = max(1, (1 << 18) // (hosts * size))
            costs = LAWS["log-normal"](steps * hosts * size).reshape(steps, -1)
            began = time.perf_counter()
            steps_per_call = (1 << 15) // (hosts * size)
            for first in range(0, steps, steps_per_call):
                balance.divide(costs[first : first + steps_per_call], hosts)
            division = time.perf_counter() - began
            dataset = get_train_dataset(
                path,
                batch_size=size,
                shuffle_buffer_size=None,
                max_samples_per_sequence=None,
                balance="bytes.txt + 0.0001 * bytes.txt ** 2",
                worker_config=WorkerConfig(3, hosts),
            )
            with Stream.of(dataset) as stream:
                plan = PassPlan.of(stream.spec, hosts)
                sources = stream._stage.sources
                work = places_of(stream.spec, sources, stream.share, pass_number=0, first=0, plan=plan)
                assert work is not None
                began = time.perf_counter()
                work.items(stream.share.to_global(np.arange(steps * size)))
                everything = time.perf_counter() - began
            of_one = 1e6 / (steps * hosts * size)
            fine &= everything * of_one < TARGET_US
            print(f"{hosts:6d}{size:6d}{division * of_one:23.2f}{everything * of_one:17.2f}")
    return fine


def draw(file: str, steps: int) -> None:
    """Draw the largest over the mean load of hosts in the steps of real streams."""
    hosts, size = SHAPES[0]
    drawn = dict[str, dict[str, float]]()
    for name, law in LAWS.items():
        lengths = law(steps * hosts * size)
        with tempfile.TemporaryDirectory() as folder:
            path = texts(Path(folder), lengths)
            drawn[name] = {}
            for way, by in (("in stream order", None), ("balance=", "bytes.txt")):
                dataset = get_train_dataset(
                    path,
                    batch_size=size,
                    shuffle_buffer_size=None,
                    max_samples_per_sequence=None,
                    balance=by,
                    worker_config=WorkerConfig(0, hosts),
                )
                over = list[float]()
                with Stream.of(dataset) as stream:
                    for step in range(steps):
                        work = np.zeros(hosts)
                        for record in stream.which(step):
                            work[record.host] += lengths[int(record.key)]
                        over.append(work.max() / work.mean())
                drawn[name][way] = float(np.mean(over))
                print(f"{name:11s} {way:15s} {drawn[name][way]:.3f}", flush=True)
            costs = lengths.reshape(steps, -1)
            drawn[name]["lower bound"] = float((bound(costs, hosts) / costs.sum(axis=1) * hosts).mean())
    bars(file, f"Largest load of {hosts} hosts, {size} samples each, over the mean", drawn, least=1, digits=3)


def main(steps: int = 200, chart: str = "") -> None:
    if chart:
        draw(chart, min(steps, 40))
        return
    equal = equality(steps)
    saved(steps)
    sys.exit(not (planning() and equal))


if __name__ == "__main__":
    program(main)
