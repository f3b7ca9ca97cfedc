"""The checks on the runs of the demo."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Notes:
    """The notes written by one run of a training script."""

    batches: dict[int, set[str]] = field(default_factory=dict)
    """Maps each step to its batch on all ranks: the sample keys, each with a hash of its arrays."""
    result: dict[str, Any] = field(default_factory=dict)
    """Accuracy and a hash of the parameters. Empty if the run did not finish."""

    @classmethod
    def read(cls, *paths: Path) -> Notes:
        """Read and merge the notes of all ranks of a run. The notes of a killed run are incomplete."""
        notes = cls()
        for line in (line for path in paths for line in path.read_text().splitlines()):
            entry = json.loads(line)
            if "step" in entry:
                notes.batches.setdefault(entry["step"], set()).update(entry["batch"])
            else:
                notes.result = entry
        return notes


class Checks:
    """Collects pairs of a description and its outcome."""

    def __init__(self) -> None:
        self.results: list[tuple[str, bool]] = []

    def expect(self, what: str, holds: bool) -> None:
        """Record a check."""
        self.results.append((what, bool(holds)))

    @property
    def passed(self) -> bool:
        """Whether at least one check was recorded and all of them hold."""
        return bool(self.results) and all(holds for _, holds in self.results)

    def same_batches(self, what: str, left: Notes, right: Notes, steps: range) -> None:
        """Check that both runs had batches with equal keys and equal arrays at each of `steps`."""
        same = all(step in left.batches and left.batches[step] == right.batches.get(step) for step in steps)
        self.expect(f"{what}: {len(steps)} batches, equal keys and equal arrays", same and len(steps) > 0)
