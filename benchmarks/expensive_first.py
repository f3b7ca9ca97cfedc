"""The gain of starting expensive samples first, if their times were known exactly: a simulation.

    python -m benchmarks.expensive_first [--ahead 2048] [--samples 20000]

Samples are delivered in order. A worker takes one sample at a time out of the next `ahead` that are not delivered yet:
either the next one, as we do, or the most expensive one. With `due`, it prefers a sample of the first batch that is not
complete, so that no other delays it. Nothing else costs time, so these are upper limits. The consumer takes each batch
as soon as it is complete.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.child import program
from benchmarks.waiting_hooks import BATCH, WORKLOADS, Workload


@dataclass(eq=False)
class Waiting:
    """Samples that may be started.

    Attributes:
        seconds: Time of each sample.
        expensive_first: Whether the most expensive one is next instead of the first.
        due: Whether samples before `due_until` go first in any case.
    """

    seconds: Sequence[float]
    expensive_first: bool
    due: bool

    def __post_init__(self) -> None:
        self._begun = [False] * len(self.seconds)
        self._in_order: deque[int] = deque()
        self._by_cost: list[tuple[float, int]] = []

    def add(self, sample: int) -> None:
        """Allow a sample to be started."""
        self._in_order.append(sample)
        heapq.heappush(self._by_cost, (-self.seconds[sample], sample))

    def take(self, due_until: int) -> int | None:
        """The sample to start now; None: all that are allowed have been started."""
        while self._in_order and self._begun[self._in_order[0]]:
            self._in_order.popleft()
        while self._by_cost and self._begun[self._by_cost[0][1]]:
            heapq.heappop(self._by_cost)
        if not self._in_order:
            return None
        first = self._in_order[0]
        sample = first if not self.expensive_first or (self.due and first < due_until) else self._by_cost[0][1]
        self._begun[sample] = True
        return sample


def share_of_ideal(seconds: Sequence[float], workers: int, ahead: int, *, expensive_first: bool, due: bool) -> float:
    """Total time of the samples over workers, divided by the time until the last batch is complete."""
    waiting = Waiting(seconds, expensive_first, due)
    done = [False] * len(seconds)
    running: list[tuple[float, int]] = []
    delivered = allowed = 0
    now = 0.0
    while delivered < len(seconds):
        while allowed < min(delivered + ahead, len(seconds)):
            waiting.add(allowed)
            allowed += 1
        while len(running) < workers and (sample := waiting.take(delivered + BATCH)) is not None:
            heapq.heappush(running, (now + seconds[sample], sample))
        now, sample = heapq.heappop(running)
        done[sample] = True
        while delivered < len(seconds) and all(done[delivered : delivered + BATCH]):
            delivered = min(delivered + BATCH, len(seconds))
    return sum(seconds) / workers / now


def times(load: Workload, samples: int, seed: int) -> list[float]:
    """The seconds that the hook takes on each sample of a shuffled dataset."""
    slow = np.random.default_rng(seed).random(samples) < load.slow
    return np.where(slow, load.slow_ms / 1e3, load.usual_ms / 1e3).tolist()


def mean_share(load: Workload, workers: int, ahead: int, samples: int, *, expensive_first: bool, due: bool) -> float:
    """The mean share of the ideal over three shuffles."""
    shares = (
        share_of_ideal(times(load, samples, seed), workers, ahead, expensive_first=expensive_first, due=due)
        for seed in range(3)
    )
    return statistics.mean(shares)


def main(ahead: list[int] = [512, 2048], samples: int = 20_000) -> None:  # noqa: B006 (an option of typer)
    print("| workload | workers | samples ahead | in order | expensive first | the same, due batch first |")
    print("|---|---|---|---|---|---|")
    for name, workers, most in itertools.product(("slow", "rare"), (4, 16), ahead):
        shares = (
            mean_share(WORKLOADS[name], workers, most, samples, expensive_first=first, due=due)
            for first, due in ((False, False), (True, False), (True, True))
        )
        print(f"| {name} | {workers} | {most} | {' | '.join(f'{share:.3f}' for share in shares)} |", flush=True)


if __name__ == "__main__":
    program(main)
