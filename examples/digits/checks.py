"""What has to hold of the demo's runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Notes:
    """What one run of a training script wrote down."""

    batches: dict[int, set[str]] = field(default_factory=dict)
    """Step to what was in its batch, on all ranks: keys with hashes of their arrays."""
    result: dict[str, Any] = field(default_factory=dict)
    """Accuracy and a hash of the parameters; empty if the run did not come to its end."""

    @classmethod
    def read(cls, *paths: Path) -> Notes:
        """Read what the ranks of a run noted, as one; a killed run has a part of them."""
        notes = cls()
        for line in (line for path in paths for line in path.read_text().splitlines()):
            entry = json.loads(line)
            if "step" in entry:
                notes.batches.setdefault(entry["step"], set()).update(entry["batch"])
            else:
                notes.result = entry
        return notes


class Checks:
    """Collects (what holds, whether it does)."""

    def __init__(self) -> None:
        self.results: list[tuple[str, bool]] = []

    def expect(self, what: str, holds: bool) -> None:
        """Note a check."""
        self.results.append((what, bool(holds)))

    @property
    def passed(self) -> bool:
        """Whether all hold, and there are any."""
        return bool(self.results) and all(holds for _, holds in self.results)

    def same_batches(self, what: str, left: Notes, right: Notes, steps: range) -> None:
        """Both runs had, at each of `steps`, batches with equal keys and equal arrays."""
        same = all(step in left.batches and left.batches[step] == right.batches.get(step) for step in steps)
        self.expect(f"{what}: {len(steps)} batches, equal keys and equal arrays", same and len(steps) > 0)
