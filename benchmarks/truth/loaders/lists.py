"""The reference adapter: an exact loader of plain lists, which the tests of the harness break in many ways.

A position is one integer: the number of samples that were delivered to all hosts. Sample i of the run is sample
`permutation(pass)[i % n]` of its dataset, and datasets take turns by their weights.
"""

from __future__ import annotations

import json
import random
import zlib
from functools import lru_cache

from benchmarks.truth.adapter import CLAIMS, Adapter, Run, Sample
from benchmarks.truth.tars import tokens_of


class Loader(Adapter):
    """Lists of numbers in memory; reads no data and has no workers."""

    name = "lists"
    page = "benchmarks/truth/loaders/README.md"
    settings = "none"
    claims = frozenset(CLAIMS)
    forkable = True

    def open(self, run: Run) -> None:
        self.run = run
        self.step = 0
        self.taken = [0] * len(run.datasets)  # samples that each dataset delivered so far
        self.kept = list[list[tuple[int, int]]]()  # the past, for `which`

    def next(self) -> list[Sample]:
        run = self.run
        units = [self._unit() for _ in range(run.batch * run.hosts)]
        self.kept.append([place for unit in units for place in unit])
        self.step += 1
        mine = units[run.host * run.batch : (run.host + 1) * run.batch]
        return [
            Sample(dataset, number, tokens_of(dataset, number), zlib.crc32(b"%d %d %d" % (run.seed, dataset, number)))
            for unit in mine
            for dataset, number in unit
        ]

    def _unit(self) -> list[tuple[int, int]]:
        """Return the next sample, or the next pack: samples while they fit."""
        if not self.run.pack:
            return [self._draw()]
        unit, space = list[tuple[int, int]](), self.run.pack
        while True:
            taken = list(self.taken)
            place = self._draw()
            if tokens_of(*place) > space:
                self.taken = taken
                return unit
            unit.append(place)
            space -= tokens_of(*place)

    def _draw(self) -> tuple[int, int]:
        run, total = self.run, sum(self.taken)
        if run.passes and total >= run.passes * sum(each.samples for each in run.datasets):
            raise StopIteration
        chosen = max(range(len(run.datasets)), key=lambda i: run.weights[i] * (total + 1) - self.taken[i])
        return self._take(chosen)

    def _take(self, dataset: int) -> tuple[int, int]:
        position, samples = self.taken[dataset], self.run.datasets[dataset].samples
        self.taken[dataset] += 1
        return dataset, _order(self.run.seed, dataset, position // samples, samples)[position % samples]

    def save(self) -> bytes:
        return json.dumps({"step": self.step, "taken": self.taken, "kept": self.kept}).encode()

    def restore(self, states: list[bytes]) -> None:
        state = json.loads(states[0])
        added = len(self.run.datasets) - len(state["taken"])
        self.step, self.taken, self.kept = state["step"], state["taken"] + [0] * added, state["kept"]

    def which(self, step: int) -> list[tuple[int, int]]:
        return self.kept[step]

    def when(self, dataset: int, number: int, steps: int) -> list[int]:
        return [step for step in range(steps) if (dataset, number) in map(tuple, self.kept[step])]


@lru_cache(64)
def _order(seed: int, dataset: int, epoch: int, samples: int) -> list[int]:
    numbers = list(range(samples))
    random.Random(f"{seed}/{dataset}/{epoch}").shuffle(numbers)
    return numbers
