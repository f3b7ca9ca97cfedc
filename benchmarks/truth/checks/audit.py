"""audit: can the loader say which samples made step k, and when sample s was used?

After a run, host 0 is asked for five of its steps and five of its samples. `which` and `when` are the shares of right
answers: all samples of the step on all hosts, in any order, and exactly the steps that contain the sample.
"""

from __future__ import annotations

import random
from collections import Counter

from benchmarks.truth.checks.check import Check, Values
from benchmarks.truth.fleet import Fleet
from benchmarks.truth.history import Rules, draw
from benchmarks.truth.play import Player, Record, data_of

QUESTIONS = 5


def measure(fleet: Fleet, seed: int) -> Values:
    """Run a history without events, and ask about it."""
    claims, values = fleet.claims, Values()
    history = draw(seed, Rules(kills=False, mixture="mixture" in claims and seed % 2 == 1, most_hosts=3))
    (part,) = history.parts
    rng = random.Random(seed)
    with data_of(history, fleet) as folder:
        hosts = fleet.take(part.hosts)
        try:
            player = Player(history, part, hosts, Record(), (0, []))
            player.open(folder)
            player.play(history.most_steps)
            steps = [
                Counter((sample[0], sample[1]) for batch in step for sample in batch) for step in player.record.steps
            ]
            if "which" in claims:
                asked = [rng.randrange(len(steps)) for _ in range(QUESTIONS)]
                said = [Counter(map(tuple, hosts[0].ask("which", step=step))) for step in asked]
                values["which"] = sum(a == steps[step] for a, step in zip(said, asked, strict=True)) / QUESTIONS
            if "when" in claims:
                samples = [rng.choice(list(steps[rng.randrange(len(steps))])) for _ in range(QUESTIONS)]
                right = 0
                for dataset, number in samples:
                    when = hosts[0].ask("when", dataset=dataset, number=number, steps=len(steps))
                    right += when == [k for k, step in enumerate(steps) if (dataset, number) in step]
                values["when"] = right / QUESTIONS
        finally:
            fleet.give(hosts)
    return values


CHECK = Check(name="audit", needs=lambda claims: bool(claims & {"which", "when"}), measure=measure)
