"""A row of the table: what stands side by side, and what ours has to reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.contender import Contender


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A bound on `ours / other` of a metric, pair by pair; without `against`, on the metric itself.

    `against` names a contender, or a family: then the one of it with the best median counts.
    """

    metric: str
    bound: float
    sense: Literal["at least", "at most"]
    against: str | None = None

    def met(self, value: float) -> bool:
        """Whether a measured value keeps the bound."""
        return value >= self.bound if self.sense == "at least" else value <= self.bound


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Contenders measured in turns; the first is ours. `served` names the data set that lies in a bucket meanwhile."""

    name: str
    title: str
    data_sets: tuple[str, ...]
    metrics: tuple[str, ...]
    contenders: tuple[Contender, ...]
    targets: tuple[Target, ...] = ()
    served: str = ""
