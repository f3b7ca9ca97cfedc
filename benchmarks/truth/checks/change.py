"""change: each restart changes weights or adds a dataset, as claimed; what each dataset repeats or loses."""

from benchmarks.truth.checks.check import Check, Values, of_history
from benchmarks.truth.checks.resume import even
from benchmarks.truth.fleet import Fleet
from benchmarks.truth.history import Rules


def measure(fleet: Fleet, seed: int) -> Values:
    """Restart a mixture with other weights, or with one more dataset."""
    claims = fleet.claims
    adds = "add_dataset" in claims and (seed % 2 == 1 or "change_weights" not in claims)
    rules = Rules(mixture=True, other_weights="change_weights" in claims, more_datasets=adds, even=even(claims, seed))
    return of_history(fleet, seed, rules)


CHECK = Check(name="change", needs=lambda claims: bool(claims & {"change_weights", "add_dataset"}), measure=measure)
