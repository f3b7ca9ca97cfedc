# SPDX-License-Identifier: Apache-2.0
"""The amendments that a run had until an earlier step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energon_grain.amendments import mixture as mixtures
from energon_grain.amendments.history import Amendments
from energon_grain.amendments.mixture import Mixture
from energon_grain.errors import StateError
from energon_grain.stream.cursor import saved_manifest
from energon_grain.stream.passes import Share


def amendments_until(cursor: Mapping[str, Any], step: int) -> list[str]:
    """The field `amendments` of a state, with the amendments that hold in a step; empty: there is nothing to keep.

    If the configuration was changed along with the run, the mixture from before stays in the field.

    Args:
        cursor: A checked state with amendments, of all hosts.
        step: The step.

    Raises StateError if the amendments are damaged, or the state has only later ones.
    """
    host, hosts = cursor["host"]
    share = Share(host, hosts, cursor["lanes"])
    found = Amendments.of_texts(cursor["amendments"], share, (host, hosts))
    kept = sum(begin <= step for begin, _, _ in found.steps)
    if found.before[0] and not kept:
        raise StateError(
            f"the state has only the last changes of the mixture, from step {found.steps[0][0]} on: use a state of "
            f"save_state_rank, save_state_global or a checkpoint, which have all"
        )
    del found.steps[kept:], found.cuts[kept:], found.ahead[kept:], found.digests[kept:]
    exclusions = found.exclusions
    exclusions.entries[:] = [entry for entry in exclusions.entries if entry.amendment < kept]
    _cut(found.mixture, kept)
    return found.texts(share, saved=True) if found.steps or exclusions.kept or _differs(found.mixture, cursor) else []


def _cut(mixture: Mixture, kept: int) -> None:
    """Take away the segments of later amendments, and the children that these added."""
    mixture.segments = [
        (start, row) for start, row in mixture.segments if not isinstance(start, str) or int(start[1:]) < kept
    ]
    last = mixture.segments[-1][1]
    del mixture.children[len(last) :]
    for child, weight in zip(mixture.children, last, strict=True):
        if isinstance(child, Mixture):
            _cut(child, kept)
        elif weight:
            child.removed = False


def _differs(mixture: Mixture, cursor: Mapping[str, Any]) -> bool:
    """Whether a mixture without amendments differs from that of the state's configuration."""
    saved = saved_manifest(cursor)
    if saved is None:
        return True
    if mixture.per_step == mixtures.ALONE:
        return False
    configured = mixtures.described(saved["mixture"], saved["leaves"])
    return configured is None or _weights(configured) != _weights(mixture)


def _weights(mixture: Mixture) -> list[Any]:
    """Weights and leaves of a mixture."""
    children = [_weights(child) if isinstance(child, Mixture) else list(child.leaves) for child in mixture.children]
    return [mixture.per_step, [[start, list(row)] for start, row in mixture.segments], children]
