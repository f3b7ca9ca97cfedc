"""repeatability: the same run twice, and with other numbers of workers: equal batches and equal random numbers.

`batches` are the steps, of all steps, in which a host got other samples or another order; `randoms` those in which the
same samples got another random number. Both are compared with a run of the same seed on the same hosts: once with the
same workers, and once with another number of workers (`…_workers`).
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.truth.checks.check import Check, Values, finished
from benchmarks.truth.fleet import Fleet
from benchmarks.truth.history import MOST_WORKERS, Rules, draw
from benchmarks.truth.play import Record, data_of, play


def measure(fleet: Fleet, seed: int) -> Values:
    """Play one run two or three times."""
    claims = fleet.claims
    history = draw(seed, Rules(kills=False, mixture="mixture" in claims and seed % 2 == 1, most_hosts=4))
    (part,) = history.parts
    with data_of(history, fleet) as folder:
        first = finished(play(history, fleet, folder))
        values = _compare(first, finished(play(history, fleet, folder)), "", "random" in claims)
        if "repeatable_workers" in claims:
            workers = (part.workers + 1 + seed % MOST_WORKERS) % (MOST_WORKERS + 1)
            other = replace(history, parts=(replace(part, workers=workers),))
            values |= _compare(first, finished(play(other, fleet, folder)), "_workers", "random" in claims)
    return {**values, "steps": len(first.steps)}


def _compare(one: Record, other: Record, suffix: str, randoms: bool) -> Values:
    """Count differing steps, batch by batch in the order of their samples."""
    batches = drawn = abs(len(one.steps) - len(other.steps))
    for mine, theirs in zip(one.steps, other.steps, strict=False):
        same = [[sample[:2] for sample in batch] for batch in mine] == [
            [sample[:2] for sample in batch] for batch in theirs
        ]
        batches += not same
        drawn += same and mine != theirs
    return {"batches" + suffix: batches, **({"randoms" + suffix: drawn} if randoms else {})}


CHECK = Check(name="repeatability", needs=lambda claims: "repeatable" in claims, measure=measure)
