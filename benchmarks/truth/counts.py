"""The formulas: how repeats, losses, differences and errors of shares are counted. Pure functions of recorded samples.

**Repeats and losses within a pass.** Let s_1, s_2, … be the samples that a dataset of n samples delivered, in their
order, and u the number of different ones among the first n. An exact loader has u = n. Otherwise v = n - u places of
the first pass were filled by samples that had been delivered already, either because the loader repeated them or
because it lost v others and began its next pass early. The samples that the first n + v deliveries do not contain are
*lost*; the other violations are *repeated*: they pushed samples back, which then followed.

If fewer than n samples were delivered, the places are those that were delivered, and losses cannot be seen, unless the
data ended: then each sample that was not delivered is lost.

The count is never too large, and sometimes a little too small: if the next pass begins early and delivers a lost sample
first, the sample seems to be in its place.

**Fairness.** Loaders pad or drop samples where hosts, workers or batches do not divide the data, and buffers mix the
end of a pass with the next. The same counts of the same loader without any interruption are subtracted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.truth.adapter import Dataset
from benchmarks.truth.tars import tokens_of

Step = Sequence[Sequence[Sequence[Any]]]
"""Of each host, the samples of its batch."""


@dataclass(frozen=True)
class Violations:
    """Samples that were repeated and lost within the first pass."""

    repeated: int = 0
    lost: int = 0

    def beyond(self, other: Violations) -> Violations:
        """Return the violations that `other`, the uninterrupted run, does not have."""
        return Violations(max(0, self.repeated - other.repeated), max(0, self.lost - other.lost))

    def __add__(self, other: Violations) -> Violations:
        return Violations(self.repeated + other.repeated, self.lost + other.lost)


def violations(numbers: Sequence[int], samples: int, *, ended: bool = False) -> Violations:
    """Count the violations of one dataset of `samples` samples, from the numbers that it delivered in their order."""
    first = numbers[:samples]
    missing = len(first) - len(set(first))
    if ended:
        return Violations(len(numbers) - len(set(numbers)), samples - len(set(numbers)))
    if len(numbers) < samples + missing:
        return Violations(repeated=missing)
    lost = samples - len(set(numbers[: samples + missing]))
    return Violations(missing - lost, lost)


def by_dataset(steps: Iterable[Step], datasets: int, *, pieces: bool = False) -> list[list[int]]:
    """Return the numbers that each dataset delivered, in an order. With `pieces` a sample counts with its last token.

    The samples of a step, of all hosts, are used at the same time. They are put into the order that favours the loader:
    if a pass ends within the step, its last samples come before the first ones of the next.
    """
    numbers = [list[int]() for _ in range(datasets)]
    delivered, tokens = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for step in steps:
        found = list[tuple[int, int, int]]()  # how often a sample was delivered before, and the sample
        for dataset, number, length, *_ in (sample for batch in step for sample in batch):
            times, place = 1, (dataset, number)
            if pieces:
                before, size = tokens[place], tokens_of(dataset, number)
                tokens[place] = before + length
                times = (before + length) // size - before // size
            found += [(delivered[place] + each, dataset, number) for each in range(times)]
            delivered[place] += times
        for _, dataset, number in sorted(found):
            numbers[dataset].append(number)
    return numbers


def total_violations(numbers: Sequence[Sequence[int]], datasets: Sequence[Dataset], *, ended: bool) -> list[Violations]:
    """Return the violations of each dataset."""
    return [violations(each, dataset.samples, ended=ended) for each, dataset in zip(numbers, datasets, strict=True)]


def share_error(steps: Sequence[Step], shares: Sequence[Sequence[float]]) -> float:
    """Return the largest distance, over all prefixes of steps, of what a dataset delivered from its share, in samples.

    `steps` has the batches of all hosts, `shares` the weights of each step, which may change. An exact mixture stays
    below one sample for each dataset; independent random choices are off by about the root of what was delivered.
    """
    datasets = max((len(each) for each in shares), default=0)
    delivered, expected, worst = np.zeros(datasets), np.zeros(datasets), 0.0
    for step, weights in zip(steps, shares, strict=True):
        chosen = [sample[0] for batch in step for sample in batch]
        delivered += np.bincount(np.asarray(chosen, np.int64), minlength=datasets)
        expected[: len(weights)] += len(chosen) * np.asarray(weights)
        worst = max(worst, float(np.max(np.abs(delivered - expected))))
    return worst


def differing_steps(one: Sequence[Step], other: Sequence[Step]) -> int:
    """Return the number of steps that both runs have and whose global batches contain different samples."""
    return sum(_content(mine) != _content(theirs) for mine, theirs in zip(one, other, strict=False))


def _content(step: Step) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(sample) for batch in step for sample in batch)
