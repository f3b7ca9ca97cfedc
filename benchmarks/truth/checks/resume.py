"""resume: samples repeated and lost within a pass after kills, on the same hosts with the same workers."""

from benchmarks.truth.checks.check import Check, Claims, Values, of_history
from benchmarks.truth.fleet import Fleet
from benchmarks.truth.history import Rules


def measure(fleet: Fleet, seed: int) -> Values:
    """Kill and resume a run over one dataset."""
    return of_history(fleet, seed, Rules(even=even(fleet.claims, seed)))


def even(claims: Claims, seed: int) -> bool:
    """Return whether sizes divide by hosts, workers and batches. `any_size`: in three of four histories."""
    return "any_size" not in claims or seed % 4 != 0


CHECK = Check(name="resume", needs=lambda claims: "resume" in claims, measure=measure)
