"""packs: the same with packing to a length in tokens. Samples that waited in a buffer count like all others.

A sample counts as delivered with its last token. Half of the histories mix datasets, and half of those change hosts, if
claimed.
"""

from benchmarks.truth.checks.check import Check, Values, of_history
from benchmarks.truth.checks.resume import even
from benchmarks.truth.fleet import Fleet
from benchmarks.truth.history import Rules


def measure(fleet: Fleet, seed: int) -> Values:
    """Kill and resume a run that packs."""
    claims = fleet.claims
    rules = Rules(
        pack=True,
        mixture="mixture" in claims and seed % 2 == 1,
        other_hosts={"elastic_hosts", "elastic_pack"} <= claims and seed // 2 % 2 == 1,
        even=even(claims, seed),
    )
    return of_history(fleet, seed, rules)


CHECK = Check(name="packs", needs=lambda claims: {"resume", "pack"} <= claims, measure=measure)
