"""Loaders with one fault each, which the checks of LoaderTruth must find: the exact loader of plain lists, broken."""

from __future__ import annotations

import json
import os
import random

from benchmarks.truth.adapter import Run, Sample
from benchmarks.truth.loaders import lists


class Repeats(lists.Loader):
    """Delivers the last step before a save again."""

    def save(self) -> bytes:
        state = json.loads(super().save())
        state["taken"] = [max(0, taken - self.run.batch * self.run.hosts) for taken in state["taken"]]
        return json.dumps(state).encode()


class Loses(lists.Loader):
    """Had read a batch ahead, and forgets it."""

    def restore(self, states: list[bytes]) -> None:
        super().restore(states)
        self.taken = [taken + self.run.batch for taken in self.taken]


class LosesElsewhere(lists.Loader):
    """Keeps its position as the batches of a host: on another number of hosts it is somewhere else."""

    def restore(self, states: list[bytes]) -> None:
        super().restore(states)
        self.taken = [taken // len(states) * self.run.hosts for taken in self.taken]


class Drifts(lists.Loader):
    """Draws datasets at random, so that shares are right only in the long run."""

    def _draw(self) -> tuple[int, int]:
        choice = random.Random(f"{self.run.seed}/{sum(self.taken)}")
        return self._take(choice.choices(range(len(self.taken)), self.run.weights)[0])


class ForgetsPacks(lists.Loader):
    """Fills a buffer of packs, and does not save it."""

    def open(self, run: Run) -> None:
        super().open(run)
        self.waiting: list[list[tuple[int, int]]] = []

    def _unit(self) -> list[tuple[int, int]]:
        while len(self.waiting) < 4:
            self.waiting.append(super()._unit())
        return self.waiting.pop(0)


class StartsOver(lists.Loader):
    """Begins all datasets again when weights or datasets change."""

    def save(self) -> bytes:
        return json.dumps({**json.loads(super().save()), "weights": self.run.weights}).encode()

    def restore(self, states: list[bytes]) -> None:
        super().restore(states)
        if tuple(json.loads(states[0])["weights"]) != self.run.weights:
            self.taken = [0] * len(self.taken)


class Varies(lists.Loader):
    """Every start has an order of its own."""

    def open(self, run: Run) -> None:
        super().open(run)
        self.run = Run.from_json({**run.to_json(), "seed": int.from_bytes(os.urandom(4), "little")})


class VariesWithWorkers(lists.Loader):
    """Another number of workers gives another order."""

    def open(self, run: Run) -> None:
        super().open(run)
        self.run = Run.from_json({**run.to_json(), "seed": run.seed + run.workers})


class Unseeded(lists.Loader):
    """Random numbers of augmentations come from the operating system."""

    def next(self) -> list[Sample]:
        return [sample._replace(random=random.SystemRandom().random()) for sample in super().next()]


class InOrder(lists.Loader):
    """Does not shuffle at all."""

    def next(self) -> list[Sample]:
        before = sum(self.taken)
        return [sample._replace(number=before + place) for place, sample in enumerate(super().next())]


class WrongPast(lists.Loader):
    """Answers with the step after the one that was asked for."""

    def which(self, step: int) -> list[tuple[int, int]]:
        return super().which((step + 1) % self.step)

    def when(self, dataset: int, number: int, steps: int) -> list[int]:
        return [step + 1 for step in super().when(dataset, number, steps)]


class Raises(lists.Loader):
    """Cannot read what it saved."""

    def restore(self, states: list[bytes]) -> None:
        trace = "".join(f"  File module.py, line {number}\n" for number in range(100))
        raise ValueError(f"in a worker\n{trace}ValueError: expected a state of version 2, got 1\n")


class Hangs(lists.Loader):
    """Never returns from a restore."""

    def restore(self, states: list[bytes]) -> None:
        import time

        time.sleep(1000)


class ClaimsLittle(lists.Loader):
    """Shuffles, and promises nothing else."""

    claims = frozenset({"shuffle"})


class EndsEarly(lists.Loader):
    """Ends after two steps of each start."""

    def open(self, run: Run) -> None:
        super().open(run)
        self.left = 2

    def next(self) -> list[Sample]:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return super().next()
