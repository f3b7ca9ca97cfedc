"""mixture: the same with weights, and the share error at every prefix.

Half of the histories change hosts and workers, if claimed.
"""

from benchmarks.truth.checks.check import Check, Values, of_history
from benchmarks.truth.checks.resume import even
from benchmarks.truth.fleet import Fleet
from benchmarks.truth.history import Rules


def measure(fleet: Fleet, seed: int) -> Values:
    """Kill and resume a run over two to eight weighted datasets."""
    claims = fleet.claims
    elastic = "elastic_mixture" in claims and seed % 2 == 1
    rules = Rules(
        mixture=True,
        other_hosts=elastic and "elastic_hosts" in claims,
        other_workers=elastic and "elastic_workers" in claims,
        even=even(claims, seed),
    )
    return of_history(fleet, seed, rules)


CHECK = Check(name="mixture", needs=lambda claims: {"resume", "mixture"} <= claims, measure=measure)
