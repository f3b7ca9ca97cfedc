"""The form of a check, and the measurement that five of them share: a history with events beside one without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.truth.adapter import Dataset
from benchmarks.truth.counts import Violations, by_dataset, differing_steps, share_error, total_violations
from benchmarks.truth.fleet import Fleet
from benchmarks.truth.history import History, Rules, draw
from benchmarks.truth.play import Record, data_of, play

Claims = frozenset[str]
Values = dict[str, float]


class FailedError(Exception):
    """The loader raised or hung where it promises to work."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One row of the table. `measure(fleet, seed)` runs one history, and returns what the loader claims of it."""

    name: str
    needs: Callable[[Claims], bool]  # whether a loader with these claims takes part
    measure: Callable[[Fleet, int], Values]
    most: int = 1 << 31  # histories that are enough, for checks whose values vary little


def of_history(fleet: Fleet, seed: int, rules: Rules) -> Values:
    """Play a history and its uninterrupted run, and compare them (`counts.py` has the formulas).

    Returns the samples repeated and lost within the first passes, the same of the uninterrupted run (`own_repeated`,
    `own_lost`, which are subtracted), and the samples of the first passes. Of mixtures, the largest error of a share in
    samples. Of loaders that claim `repeatable`, the steps with other samples or random numbers, unless weights change.
    """
    history = draw(seed, rules)
    with data_of(history, fleet) as folder:
        record = finished(play(history, fleet, folder))
        plain = finished(play(history.uninterrupted(), fleet, folder))
    own = _violations(plain, history)
    beyond = [mine.beyond(theirs) for mine, theirs in zip(_violations(record, history), own, strict=True)]
    total, base = sum(beyond, Violations()), sum(own, Violations())
    values: Values = {
        "repeated": total.repeated,
        "lost": total.lost,
        "own_repeated": base.repeated,
        "own_lost": base.lost,
        "samples": sum(each.samples for each in history.datasets),
        "kills": record.kills,
    }
    if record.state_bytes:
        values["state_bytes"] = max(record.state_bytes)
    changes = rules.other_weights or rules.more_datasets
    if rules.mixture and not rules.pack and not changes:
        values["share_error"] = share_error(record.steps, record.shares)
    if "repeatable" in fleet.claims and not changes:
        values["differing_steps"] = differing_steps(record.steps, plain.steps)
    return values


def finished(record: Record) -> Record:
    """Return a record whose history was played to its end. Raises FailedError."""
    if record.failure:
        raise FailedError(record.failure)
    return record


def _violations(record: Record, history: History) -> list[Violations]:
    datasets: tuple[Dataset, ...] = history.datasets
    numbers = by_dataset(record.steps, len(datasets), pieces=history.pack > 0)
    return total_violations(numbers, datasets, ended=record.ended)
