"""Histories: random, seeded descriptions of runs that are killed, saved and restored. Nothing here runs a loader."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.truth.adapter import Dataset

Kill = Literal["worker", "host", "all", "none"]
MOST_SHARDS = 24  # of a dataset: enough for eight hosts with three workers each
MOST_HOSTS = 8
MOST_WORKERS = 3


@dataclass(frozen=True, kw_only=True)
class Part:
    """The run between two starts. Steps count from the start of the part."""

    hosts: int
    workers: int
    steps: int  # the step at which it ends; the last part goes on until enough was delivered
    saves: tuple[int, ...]  # steps after which all hosts save; none: the next part starts from an older state
    kill: Kill
    delay_s: float  # the kill comes this long after the hosts were asked for the last step
    weights: tuple[float, ...]
    datasets: int  # the first datasets of the history


@dataclass(frozen=True, kw_only=True)
class History:
    """A run of several parts over the same data, with one global batch."""

    seed: int
    datasets: tuple[Dataset, ...]
    global_batch: int
    pack: int
    passes: int
    parts: tuple[Part, ...]
    most_steps: int  # where the last part ends at the latest

    def uninterrupted(self) -> History:
        """Return the same run in one part, as it would have been without any event."""
        return replace(self, parts=(replace(self.parts[0], saves=(), kill="none"),))


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The events that histories of a check contain."""

    other_hosts: bool = False
    other_workers: bool = False
    mixture: bool = False
    pack: bool = False
    other_weights: bool = False
    more_datasets: bool = False
    even: bool = True  # sizes that divide by everything in the history; False: any sizes
    kills: bool = True
    most_hosts: int = MOST_HOSTS


def draw(seed: int, rules: Rules) -> History:
    """Draw a history. The same seed and rules give the same history."""
    rng = random.Random(f"{seed}/{rules}")
    pairs = _hosts_and_workers(rng, rules, 1 + rng.choice((1, 1, 2, 2, 3, 4)) if rules.kills else 1)
    world = math.lcm(*(hosts * max(1, workers) for hosts, workers in pairs))
    global_batch = math.lcm(*(hosts for hosts, _ in pairs)) * rng.choice((1, 1, 2, 3))
    datasets = _datasets(rng, rules, world, global_batch)
    weights = _weights(rng, datasets, rules)
    passes = 0 if rules.mixture or rules.pack else 1
    pack = rng.choice((64, 128, 256)) if rules.pack else 0
    if pack:
        global_batch = math.lcm(*(hosts for hosts, _ in pairs))
    steps = _steps(datasets, weights, global_batch, pack)
    parts = _parts(rng, rules, pairs, weights, len(datasets), steps)
    return History(
        seed=rng.randrange(1 << 31),
        datasets=datasets,
        global_batch=global_batch,
        pack=pack,
        passes=passes,
        parts=parts,
        most_steps=steps,
    )


def _hosts_and_workers(rng: random.Random, rules: Rules, parts: int) -> list[tuple[int, int]]:
    """Draw hosts and workers of all parts, so that their world sizes have a common multiple of at most MOST_SHARDS."""
    sizes = [size for size in (1, 1, 2, 2, 3, 4, 5, 6, 7, 8) if size <= rules.most_hosts]
    while True:
        hosts, workers = rng.choice(sizes), rng.randint(0, MOST_WORKERS)
        pairs = [(hosts, workers)]
        for _ in range(parts - 1):
            hosts = rng.choice(sizes) if rules.other_hosts else hosts
            workers = rng.randint(0, MOST_WORKERS) if rules.other_workers else workers
            pairs.append((hosts, workers))
        changed = len(set(pairs)) > 1 or parts == 1 or not (rules.other_hosts or rules.other_workers)
        if changed and math.lcm(*(hosts * max(1, workers) for hosts, workers in pairs)) <= MOST_SHARDS:
            return pairs


def _datasets(rng: random.Random, rules: Rules, world: int, global_batch: int) -> tuple[Dataset, ...]:
    count = rng.choice((2, 2, 3, 3, 4, 5, 6, 7, 8)) if rules.mixture else 1
    if rules.pack:
        count = min(count, 3)
    unit = math.lcm(world, global_batch) if count == 1 and not rules.pack else world
    sizes = list[Dataset]()
    for index in range(count):
        samples = round(math.exp(rng.uniform(math.log(50), math.log(5000 if rng.random() < 0.03 else 400))))
        shards = world
        if rules.even:
            samples = max(unit * -(-50 // unit), samples // unit * unit)
        elif rng.random() < 0.5:
            shards = rng.randint(1, 12)
        sizes.append(Dataset(name=f"{index}-{samples}-{shards}", samples=samples, shards=min(shards, samples)))
    return tuple(sizes)


def _weights(rng: random.Random, datasets: Sequence[Dataset], rules: Rules) -> tuple[float, ...]:
    """Draw weights within a factor of two of the sizes, so that passes of all datasets end at similar times."""
    if not rules.mixture:
        return (1.0,)
    return _normal([each.samples * 2 ** rng.uniform(-0.7, 0.7) for each in datasets])


def _normal(weights: Sequence[float]) -> tuple[float, ...]:
    """Round weights to thousandths that sum to one thousand, for loaders that take integers."""
    total = sum(weights)
    thousandths = [max(1, round(1000 * weight / total)) for weight in weights]
    thousandths[thousandths.index(max(thousandths))] += 1000 - sum(thousandths)
    return tuple(each / 1000 for each in thousandths)


def _steps(datasets: Sequence[Dataset], weights: Sequence[float], global_batch: int, pack: int) -> int:
    """Return the steps in which each dataset ends its first pass and a fifth of the next, with a limit."""
    samples = max(1.2 * each.samples / weight for each, weight in zip(datasets, weights, strict=True))
    samples = min(samples, 4 * sum(each.samples for each in datasets))
    per_step = global_batch * (pack / 18 if pack else 1)
    return max(4, math.ceil(samples / per_step))


def _parts(
    rng: random.Random,
    rules: Rules,
    pairs: Sequence[tuple[int, int]],
    weights: tuple[float, ...],
    datasets: int,
    steps: int,
) -> tuple[Part, ...]:
    """Cut the pass at random steps. Events come in the first five sixths, so that the end of the pass shows them."""
    most = max(1, steps * 2 // 3)
    cuts = sorted(rng.randint(1, most) for _ in pairs[1:])
    parts, started, known = list[Part](), 0, datasets
    if rules.more_datasets:
        known = max(1, datasets - 1)
        weights = _normal([weight + 1e-9 for weight in weights[:known]])
    for index, (hosts, workers) in enumerate(pairs):
        last = index == len(pairs) - 1
        length = max(1, (steps if last else cuts[index]) - started)
        saves = tuple(sorted(rng.randint(1, length) for _ in range(rng.choice((0, 1, 1, 1, 2)))))
        saves = () if last else saves or ((rng.randint(1, length),) if index == 0 else ())
        kill: Kill = "none" if last or not rules.kills else rng.choice(("all", "all", "host", "worker", "none"))
        if kill == "none" and not last:
            saves = (*saves, length)  # a run that is stopped on purpose saves at its end
        if index and rules.other_weights and rng.random() < 0.8:
            weights = _normal([weight * 2 ** rng.uniform(-0.7, 0.7) for weight in weights])
        if index and rules.more_datasets and known < datasets:
            known += 1
            weights = _normal([*weights, rng.uniform(0.1, 0.5)])
        parts.append(
            Part(
                hosts=hosts,
                workers=workers,
                steps=length,
                saves=saves,
                kill=kill,
                delay_s=rng.choice((0.0, rng.uniform(0, 0.003))),
                weights=weights,
                datasets=known,
            )
        )
        started = started + (saves[-1] if saves else 0)
    return tuple(parts)
