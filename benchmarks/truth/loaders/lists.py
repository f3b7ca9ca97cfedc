"""The reference adapter: an exact loader of plain lists, which the tests of the harness break in many ways.

A position is one integer: the number of samples that were delivered to all hosts. Sample i of the run is sample
`permutation(pass)[i % n]` of its dataset, and datasets take turns by their weights.
"""

from __future__ import annotations

import json
import random
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
        mine = units[run.host * run.batch : (run.host + 1) * run.batch]
        self.kept.append([(sample.dataset, sample.number) for unit in units for sample in unit])
        self.step += 1
        return [sample for unit in mine for sample in unit]

    def _unit(self) -> list[Sample]:
        """Return the next sample, or the next pack: samples while they fit."""
        if not self.run.pack:
            return [self._draw()]
        unit, space = list[Sample](), self.run.pack
        while True:
            taken = list(self.taken)
            sample = self._draw()
            if sample.tokens > space:
                self.taken = taken
                return unit
            unit.append(sample)
            space -= sample.tokens

    def _draw(self) -> Sample:
        run = self.run
        total = sum(self.taken)
        if run.passes and total >= run.passes * sum(each.samples for each in run.datasets):
            raise StopIteration
        chosen = max(range(len(run.datasets)), key=lambda i: run.weights[i] * (total + 1) - self.taken[i])
        position, samples = self.taken[chosen], run.datasets[chosen].samples
        self.taken[chosen] += 1
        number = _order(run.seed, chosen, position // samples, samples)[position % samples]
        return Sample(
            chosen, number, tokens_of(chosen, number), random.Random(f"{run.seed}/{chosen}/{position}").random()
        )

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
