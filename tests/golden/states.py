"""A saved state of each kind per order version, and what must come of it: the next keys and digests, or a refusal.

`golden.record` adds a file for a new order version. Those of earlier ones are never recorded again: the revisions that
wrote them are gone.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from golden import streams
from golden.configurations import CONFIGURATIONS, Bench

STATES = Path(__file__).parent / "states"
STEPS = 30
"""Steps before a state is saved."""
NEXT = 12
"""Steps behind it that are recorded."""
KINDS = (
    "leaf, blocks",
    "leaf, full shuffle",
    "pass, padded",
    "pass, validation",
    "hooks, failing and skipping",
    "hooks, generator",
    "hooks, packing",
    "hooks, groups",
    "node, map",
    "node, filter",
    "node, iterated",
    "node, pack",
    "node, epochized blend",
    "node, packs and groups blended",
    "metadataset, blend",
    "metadataset, blend by cost",
    "metadataset, epochs",
    "metadataset, join",
    "columns, planned packs",
    "columns, planned packs of a pass",
    "columns, batches by budget",
    "columns, equal work",
)


def of_version(version: int) -> dict[str, Any]:
    """What was recorded of an order version."""
    return json.loads((STATES / f"order_{version}.json").read_text(encoding="utf-8"))


def record_states(api: ModuleType, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """States behind some steps, with what comes next."""
    found: dict[str, Any] = {}
    for kind in kinds:
        with api.get_savable_loader(CONFIGURATIONS[kind].build(Bench(api, 0, 1))) as loader:
            passes = streams.passes(loader)
            for _ in range(STEPS):
                next(passes)
            state = loader.get_state()
        found[kind] = {"state": state, "then": then(api, kind, state)}
    return found


def then(api: ModuleType, kind: str, state: Any, **options: Any) -> streams.Record:
    """What comes behind a state."""
    with api.get_savable_loader(CONFIGURATIONS[kind].build(Bench(api, 0, 1))) as loader:
        loader.restore_state_rank(state, **options)
        return streams.record(loader, NEXT, segment=NEXT)
