"""elastic: samples repeated and lost within a pass after kills, each start on other hosts or workers, as claimed."""

from benchmarks.truth.checks.check import Check, Values, of_history
from benchmarks.truth.checks.resume import even
from benchmarks.truth.fleet import Fleet
from benchmarks.truth.history import Rules


def measure(fleet: Fleet, seed: int) -> Values:
    """Kill a run over one dataset, and resume it elsewhere. The global batch stays the same."""
    claims = fleet.claims
    rules = Rules(
        other_hosts="elastic_hosts" in claims,
        other_workers="elastic_workers" in claims,
        even=even(claims, seed),
    )
    return of_history(fleet, seed, rules)


CHECK = Check(name="elastic", needs=lambda claims: bool(claims & {"elastic_hosts", "elastic_workers"}), measure=measure)
